//! Which of a kernel package's modules go into the initramfs: those of networking, a few drivers,
//! and all they depend on.

use std::collections::{BTreeMap, BTreeSet};

/// Directories taken whole: whatever kube-ipvs or a test asks the kernel for by netlink is loaded
/// from there, without anyone having foreseen its name.
const DIRECTORIES: [&str; 8] = [
    "kernel/net/802/",
    "kernel/net/bridge/",
    "kernel/net/ipv4/",
    "kernel/net/ipv6/",
    "kernel/net/llc/",
    "kernel/net/netfilter/",
    "kernel/net/sched/",
    "kernel/net/sctp/",
];

/// Single modules: the devices tests make, those QEMU provides, and a checksum that modules ask for
/// by name rather than by symbol.
const MODULES: [&str; 12] = [
    "crc32c_generic",
    "dummy",
    "ifb",
    "ipvlan",
    "macvlan",
    "overlay",
    "veth",
    "virtio_console",
    "virtio_net",
    "virtio_pci",
    "virtio_rng",
    "vxlan",
];

/// modprobe's index files, as depmod writes them.
pub(crate) const INDEXES: [&str; 9] = [
    "modules.alias",
    "modules.alias.bin",
    "modules.builtin",
    "modules.builtin.alias.bin",
    "modules.builtin.bin",
    "modules.builtin.modinfo",
    "modules.dep",
    "modules.dep.bin",
    "modules.softdep",
];

/// The contents of a `modules.dep`: each module's file and the files it depends on, already
/// transitive, relative to the directory it is in.
pub(crate) struct Dependencies<'a>(BTreeMap<&'a str, Vec<&'a str>>);

impl<'a> Dependencies<'a> {
    /// Parses lines like `kernel/net/llc/llc.ko: kernel/x.ko kernel/y.ko`. A line of another form
    /// is skipped.
    pub(crate) fn parse(modules_dep: &'a str) -> Self {
        let lines = modules_dep.lines().filter_map(|line| line.split_once(':'));
        Self(lines.map(|(module, needs)| (module, needs.split_whitespace().collect())).collect())
    }

    /// Whether the kernel has the module.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.keys().any(|path| module_name(path) == name)
    }

    /// The files of the modules a guest needs, with their dependencies.
    pub(crate) fn wanted(&self) -> BTreeSet<&'a str> {
        let is_wanted = |path: &str| {
            DIRECTORIES.iter().any(|directory| path.starts_with(directory))
                || MODULES.contains(&module_name(path).as_str())
        };
        self.0
            .iter()
            .filter(|(path, _)| is_wanted(path))
            .flat_map(|(path, needs)| std::iter::once(*path).chain(needs.iter().copied()))
            .collect()
    }
}

/// `ip_vs` for `kernel/net/netfilter/ipvs/ip_vs.ko.xz`. File names may have dashes where the
/// module's name has underscores.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULES_DEP: &str = "\
kernel/lib/libcrc32c.ko:
kernel/net/netfilter/nf_conntrack.ko.xz: kernel/lib/libcrc32c.ko
kernel/net/netfilter/ipvs/ip_vs.ko.xz: kernel/net/netfilter/nf_conntrack.ko.xz kernel/lib/libcrc32c.ko
kernel/drivers/net/dummy.ko:
kernel/drivers/net/virtio_net.ko: kernel/net/core/failover.ko
kernel/net/core/failover.ko:
kernel/drivers/usb/storage/usb-storage.ko: kernel/drivers/scsi/scsi_mod.ko
kernel/drivers/scsi/scsi_mod.ko:
";

    #[test]
    fn wanted_modules_bring_what_they_depend_on_and_nothing_else() {
        let wanted: Vec<&str> = Dependencies::parse(MODULES_DEP).wanted().into_iter().collect();
        assert_eq!(
            wanted,
            [
                "kernel/drivers/net/dummy.ko",
                "kernel/drivers/net/virtio_net.ko",
                "kernel/lib/libcrc32c.ko",
                "kernel/net/core/failover.ko",
                "kernel/net/netfilter/ipvs/ip_vs.ko.xz",
                "kernel/net/netfilter/nf_conntrack.ko.xz",
            ]
        );
    }

    #[test]
    fn a_module_is_found_by_its_name_compressed_or_not_dash_or_underscore() {
        let dependencies = Dependencies::parse(MODULES_DEP);
        assert!(dependencies.has("ip_vs"));
        assert!(dependencies.has("usb_storage"));
        assert!(!dependencies.has("ip_v"));
    }
}
