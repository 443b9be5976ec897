//! What is read of the node before the start as well as while the daemon runs.
//!
//! Any file may be missing: its module is not loaded, or the container does not see it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use ipvs::{Family, Timeouts};
use reconciler::NodeUsage;

use super::bypass::Bridge;
use crate::node::sysctl::{Change, Sysctl};

/// What Services use of the node, and the settings of the node on which that depends.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// What Services use of the node.
    pub(super) in_use: NodeUsage,
    /// Whether every flow is masqueraded.
    pub(super) masquerade_all: bool,
    /// Whether failing endpoints are ejected, unless a Service says otherwise.
    pub(super) ejects: bool,
    /// The timeouts of IPVS; `None` where there is no IPVS.
    pub(super) ipvs_timeouts: Option<Timeouts>,
    /// The kernel parameters that the start will set.
    pub(super) changes: Vec<Change>,
    /// The kernel parameters as they are.
    pub(super) sysctl: Sysctl,
}

impl Facts {
    /// A kernel parameter that is a number, as it is after the start.
    pub(super) fn number(&self, key: &'static str) -> Option<u32> {
        match self.changes.iter().find(|change| change.key == key) {
            Some(change) => change.wanted.parse().ok(),
            None => self.sysctl.number(key),
        }
    }
}

/// The network interfaces that /sys shows.
#[derive(Clone, Debug)]
pub(super) struct Interfaces(PathBuf);

impl Default for Interfaces {
    fn default() -> Self {
        Self::at(Path::new("/"))
    }
}

impl Interfaces {
    /// The interfaces below this directory, `/` on a node.
    pub(super) fn at(root: &Path) -> Self {
        Self(root.join("sys/class/net"))
    }

    /// The index of an interface.
    pub(super) fn index(&self, interface: &str) -> Option<u32> {
        index(&self.0.join(interface))
    }

    /// The names of all interfaces, by their indices.
    pub(super) fn names(&self) -> BTreeMap<u32, String> {
        let named = |path: PathBuf| Some((index(&path)?, path.file_name()?.to_str()?.to_owned()));
        self.all().filter_map(named).collect()
    }

    /// Every Linux bridge.
    pub(super) fn bridges(&self) -> Vec<Bridge> {
        let mut bridges: Vec<_> = self.all().filter_map(|path| bridge(&path)).collect();
        bridges.sort_by(|a, b| a.name.cmp(&b.name));
        bridges
    }

    fn all(&self) -> impl Iterator<Item = PathBuf> {
        fs::read_dir(&self.0).into_iter().flatten().flatten().map(|entry| entry.path())
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
    fn bridges_are_distinguished_from_other_interfaces_with_what_they_show() {
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
            Interfaces::at(root.path()).bridges(),
            [bridge("cni0", 3, BTreeSet::from([Family::V4])), bridge("docker0", 4, BTreeSet::new())]
        );
    }

    #[test]
    fn parameters_are_found_by_their_names() {
        let root = tree(&[("proc/sys/net/bridge/bridge-nf-call-iptables", "0\n")]);
        let facts = Facts { sysctl: Sysctl::at(root.path()), ..Facts::default() };
        let key = "net.bridge.bridge-nf-call-iptables";
        assert_eq!(facts.number(key), Some(0));
        let change = Change { key, found: "0".to_owned(), wanted: "1".to_owned() };
        assert_eq!(Facts { changes: vec![change], ..facts }.number(key), Some(1), "as it is after the start");
    }

    #[test]
    fn where_the_files_are_missing_nothing_is_known() {
        let root = tree(&[]);
        assert_eq!(Interfaces::at(root.path()).bridges(), []);
        let facts = Facts { sysctl: Sysctl::at(root.path()), ..Facts::default() };
        assert_eq!(facts.number("net.ipv4.ip_local_port_range"), None);
    }
}
