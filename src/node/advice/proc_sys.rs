//! Reads /proc/sys and /sys.
//!
//! Any file may be missing: its module is not loaded, or the container does not see it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use ipvs::Family;

use super::bridges::Bridge;

/// The file trees.
#[derive(Clone, Debug)]
pub(super) struct ProcSys {
    parameters: PathBuf,
    interfaces: PathBuf,
}

impl ProcSys {
    /// The kernel's files below this directory: `/` for the real ones.
    pub(super) fn at(root: &Path) -> Self {
        Self { parameters: root.join("proc/sys"), interfaces: root.join("sys/class/net") }
    }

    /// A kernel parameter, by its name with dots.
    pub(super) fn parameter(&self, key: &str) -> Option<String> {
        fs::read_to_string(self.parameters.join(key.replace('.', "/"))).ok()
    }

    /// A kernel parameter that is a number.
    pub(super) fn number(&self, key: &str) -> Option<u32> {
        self.parameter(key)?.trim().parse().ok()
    }

    /// The index of an interface.
    pub(super) fn index(&self, interface: &str) -> Option<u32> {
        index(&self.interfaces.join(interface))
    }

    /// Every Linux bridge.
    pub(super) fn bridges(&self) -> Vec<Bridge> {
        let entries = fs::read_dir(&self.interfaces).into_iter().flatten().flatten();
        let mut bridges: Vec<_> = entries.filter_map(|entry| bridge(&entry.path())).collect();
        bridges.sort_by(|a, b| a.name.cmp(&b.name));
        bridges
    }
}

fn index(interface: &Path) -> Option<u32> {
    fs::read_to_string(interface.join("ifindex")).ok()?.trim().parse().ok()
}

/// The interface, if it is a bridge: only those have a directory of that name.
fn bridge(interface: &Path) -> Option<Bridge> {
    let settings = interface.join("bridge");
    if !settings.is_dir() {
        return None;
    }
    let read = |file: PathBuf| fs::read_to_string(file).ok();
    let shows = |family: &Family| {
        let file = match family {
            Family::V4 => "nf_call_iptables",
            Family::V6 => "nf_call_ip6tables",
        };
        read(settings.join(file)).is_some_and(|value| value.trim() == "1")
    };
    Some(Bridge {
        name: interface.file_name()?.to_str()?.to_owned(),
        index: index(interface)?,
        shows: Family::BOTH.into_iter().filter(shows).collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        root
    }

    #[test]
    fn bridges_are_told_from_other_interfaces_and_with_what_they_show() {
        let root = tree(&[
            ("sys/class/net/eth0/ifindex", "2\n"),
            ("sys/class/net/docker0/ifindex", "4\n"),
            ("sys/class/net/docker0/bridge/nf_call_iptables", "0\n"),
            ("sys/class/net/cni0/ifindex", "3\n"),
            ("sys/class/net/cni0/bridge/nf_call_iptables", "1\n"),
            ("sys/class/net/cni0/bridge/nf_call_ip6tables", "0\n"),
            ("sys/class/net/bonding_masters", "\n"),
        ]);
        let bridge = |name: &str, index, shows| Bridge { name: name.to_owned(), index, shows };
        assert_eq!(
            ProcSys::at(root.path()).bridges(),
            [bridge("cni0", 3, BTreeSet::from([Family::V4])), bridge("docker0", 4, BTreeSet::new())]
        );
    }

    #[test]
    fn parameters_are_found_by_their_names() {
        let root = tree(&[("proc/sys/net/bridge/bridge-nf-call-iptables", "1\n")]);
        assert_eq!(ProcSys::at(root.path()).number("net.bridge.bridge-nf-call-iptables"), Some(1));
    }

    #[test]
    fn where_the_files_are_missing_nothing_is_known() {
        let root = tree(&[]);
        let node = ProcSys::at(root.path());
        assert_eq!(node.bridges(), []);
        assert_eq!(node.parameter("net.ipv4.ip_local_port_range"), None);
    }
}
