//! The kernel parameters that IPVS mode needs, and those that it is asked to set.
//!
//! They are set at the start only, as kube-proxy does it: what an administrator changes afterwards stays.
//! Only when ip_vs was unloaded and loaded again, which makes new ones, IPVS' own are set again.

pub(crate) mod conntrack;
mod ipvs_table;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use service::one_line;
use tracing::{info, warn};

use crate::config::KernelParameters;
pub use conntrack::TableSize;

/// Whether IPVS counts; absent before Linux 5.16, which always does.
pub(crate) const RUN_ESTIMATION: &str = "net.ipv4.vs.run_estimation";

/// The file trees in which the kernel shows its parameters, its processors and its memory.
#[derive(Clone, Debug)]
pub struct Sysctl {
    proc: PathBuf,
    parameters: PathBuf,
    processors: PathBuf,
    slab: PathBuf,
}

/// A parameter could not be brought to its value.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The parameter cannot be read. The names below `net.ipv4.vs` exist once ip_vs has been asked for in this network
    /// namespace, and only in the initial user namespace; those below `net.netfilter` once nf_conntrack is
    /// loaded.
    #[error("sysctl {key} cannot be read")]
    Read {
        /// Its name, with dots.
        key: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The parameter has another value and cannot be written.
    #[error("sysctl {} is {} and cannot be set to {}{}", .change.key, .change.found, .change.wanted, hint(.source))]
    Write {
        /// What was to be written.
        change: Change,
        /// The system's answer.
        source: io::Error,
    },
}

/// Whether this process may not write a parameter: /proc/sys is mounted read-only, or the parameter belongs to the
/// first network namespace.
fn is_denied(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
}

/// What to do where writing is denied: an init container may write, and runs once in the life of a pod.
fn hint(error: &io::Error) -> &'static str {
    if is_denied(error) { " (if an init container sets it, delete the pod)" } else { "" }
}

/// A parameter, the value it is to have, and what is wrong on a node where it has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    key: &'static str,
    value: &'static str,
    otherwise: &'static str,
}

/// A parameter with another value than it must have, and what is wrong on such a node: a sentence without a full stop.
pub type Differing = (Change, &'static str);

/// A parameter with another value than the wanted one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its name, with dots.
    pub key: &'static str,
    /// The value that it has.
    pub found: String,
    /// The wanted value.
    pub wanted: String,
}

/// The parameters that are always set.
const NEEDED: [Wanted; 4] = [
    Wanted {
        key: "net.ipv4.vs.conntrack",
        value: "1",
        otherwise: "a connection that IPVS has rewritten cannot be masqueraded",
    },
    Wanted {
        key: "net.ipv4.vs.expire_nodest_conn",
        value: "1",
        otherwise: "a connection whose real server is gone hangs until it times out",
    },
    Wanted {
        key: "net.ipv4.vs.expire_quiescent_template",
        value: "1",
        otherwise: "a client with session affinity stays at a real server that drains",
    },
    Wanted { key: "net.ipv4.ip_forward", value: "1", otherwise: "the node forwards nothing to its pods" },
];

/// A node that answers ARP only where the address is: MetalLB's layer 2 mode asks for it.
const STRICT_ARP: [Wanted; 2] = [
    Wanted {
        key: "net.ipv4.conf.all.arp_ignore",
        value: "1",
        otherwise: "the node answers ARP for every VIP, regardless of ipvs.strictARP",
    },
    Wanted {
        key: "net.ipv4.conf.all.arp_announce",
        value: "2",
        otherwise: "the node may announce a VIP as its own, regardless of ipvs.strictARP",
    },
];

/// What nodes need that answer clients past the node by which these came.
const DIRECT_RETURN: [Wanted; 4] = [
    Wanted {
        key: "net.ipv4.vs.sloppy_tcp",
        value: "1",
        otherwise: "an open TCP connection breaks when its packets move to another node",
    },
    Wanted {
        key: "net.ipv4.vs.sloppy_sctp",
        value: "1",
        otherwise: "an SCTP association breaks when its packets move to another node",
    },
    Wanted {
        key: "net.ipv4.vs.schedule_icmp",
        value: "1",
        otherwise: "a packet-too-big message may not reach the pod that sent the packets",
    },
    Wanted { key: "net.ipv4.vs.pmtu_disc", value: "0", otherwise: "large datagrams do not fit into tunnels" },
];

/// Never changed by us.
const LOOSE_CONNTRACK: Wanted = Wanted {
    key: "net.netfilter.nf_conntrack_tcp_loose",
    value: "1",
    otherwise: "an open TCP connection breaks when its packets move to another node",
};

/// Kernel 5.9 mended both; before 4.1 the choice does not exist.
const CONN_REUSE_MODE: Wanted = Wanted {
    key: "net.ipv4.vs.conn_reuse_mode",
    value: "0",
    otherwise: "a client that reuses a port is dropped for a second",
};

impl Default for Sysctl {
    fn default() -> Self {
        Self::at(Path::new("/"))
    }
}

impl Sysctl {
    /// The kernel parameters below another directory than `/`.
    pub fn at(root: &Path) -> Self {
        Self {
            proc: root.join("proc"),
            parameters: root.join("proc/sys"),
            processors: root.join("sys/devices/system/cpu"),
            slab: root.join("sys/kernel/slab"),
        }
    }

    /// Sets every parameter that IPVS mode needs, and stops at the first that cannot be set. Those that direct return
    /// needs are set as far as possible: everything else is served without them.
    ///
    /// A parameter that has its value is not written, so a read-only /proc/sys with the right values is
    /// enough.
    pub fn prepare(&self, wanted: &KernelParameters) -> Result<(), Error> {
        let kernel = self.kernel();
        if let Err(release) = &kernel {
            warn!(release, "cannot determine the kernel's version: conn_reuse_mode is not changed");
        }
        for Wanted { key, value, .. } in needed(kernel.ok()) {
            self.set(key, value)?;
        }
        for Wanted { key, value, .. } in STRICT_ARP.into_iter().filter(|_| wanted.strict_arp) {
            self.set_if_allowed(key, value)?;
        }
        self.set_as_far_as_possible(DIRECT_RETURN.into_iter().filter(|_| wanted.direct_return));
        Ok(())
    }

    /// Sets IPVS' own parameters again, as far as possible: they went with the module, when it was unloaded. What an
    /// administrator has changed went too.
    pub(crate) fn prepare_ipvs_again(&self, wanted: &KernelParameters) {
        self.set_as_far_as_possible(self.all(wanted).filter(|it| it.key.starts_with("net.ipv4.vs.")));
    }

    fn set_as_far_as_possible(&self, all: impl Iterator<Item = Wanted>) {
        for Wanted { key, value, .. } in all {
            if let Err(error) = self.set(key, value) {
                warn!("{}", one_line(&error));
            }
        }
    }

    /// The parameters of [`Sysctl::prepare`] that have another value now: another program has changed them, or they
    /// could not be set. One that cannot be read is not among them.
    pub fn differing(&self, wanted: &KernelParameters) -> Vec<Differing> {
        let mut differing = self.to_set(wanted);
        differing.extend(self.loose_conntrack().filter(|_| wanted.direct_return));
        differing
    }

    /// The parameters that the start would set, but for conntrack's.
    pub(crate) fn to_set(&self, wanted: &KernelParameters) -> Vec<Differing> {
        self.all(wanted).filter_map(|wanted| self.difference(wanted)).collect()
    }

    /// The parameter that direct return needs and the daemon does not set.
    pub(crate) fn loose_conntrack(&self) -> Option<Differing> {
        self.difference(LOOSE_CONNTRACK)
    }

    fn difference(&self, Wanted { key, value, otherwise }: Wanted) -> Option<Differing> {
        Some((self.change(key, value.to_owned()).ok()??, otherwise))
    }

    fn all(&self, wanted: &KernelParameters) -> impl Iterator<Item = Wanted> + use<> {
        let KernelParameters { strict_arp, direct_return, .. } = *wanted;
        let of_arp = STRICT_ARP.into_iter().filter(move |_| strict_arp);
        let of_direct_return = DIRECT_RETURN.into_iter().filter(move |_| direct_return);
        needed(self.kernel().ok()).chain(of_arp).chain(of_direct_return)
    }

    fn set(&self, key: &'static str, wanted: &str) -> Result<(), Error> {
        self.change(key, wanted.to_owned())?.map_or(Ok(()), |change| self.write(change))
    }

    /// Sets a parameter that a node can do without: if writing is denied, that is logged and its value stays.
    /// A container without rights is restarted without its init container, which would have set it.
    pub(crate) fn set_if_allowed(&self, key: &'static str, wanted: &str) -> Result<(), Error> {
        match self.set(key, wanted) {
            Err(Error::Write { change: Change { key, found, wanted }, source }) if is_denied(&source) => {
                warn!("sysctl {key} left at {found}, wanted {wanted}: {source}");
                Ok(())
            }
            result => result,
        }
    }

    /// The change of a parameter to this value; none if it has it.
    pub(crate) fn change(&self, key: &'static str, wanted: String) -> Result<Option<Change>, Error> {
        let found = self.read(key)?;
        Ok((found != wanted).then_some(Change { key, found, wanted }))
    }

    pub(crate) fn read(&self, key: &'static str) -> Result<String, Error> {
        let text = fs::read_to_string(self.file(key)).map_err(|source| Error::Read { key, source })?;
        Ok(text.trim().to_owned())
    }

    /// A parameter that is a number; `None` if it cannot be read.
    pub(crate) fn number(&self, key: &'static str) -> Option<u32> {
        self.read(key).ok()?.parse().ok()
    }

    fn write(&self, change: Change) -> Result<(), Error> {
        match fs::write(self.file(change.key), &change.wanted) {
            Ok(()) => {
                info!(key = change.key, from = change.found, to = change.wanted, "set a kernel parameter");
                Ok(())
            }
            Err(source) => Err(Error::Write { change, source }),
        }
    }

    fn file(&self, key: &str) -> PathBuf {
        self.parameters.join(key.replace('.', "/"))
    }

    /// The kernel's release, as `uname -r` prints it; empty if it cannot be read.
    pub(crate) fn release(&self) -> String {
        self.read("kernel.osrelease").unwrap_or_default()
    }

    /// The kernel's major and minor version, or the release that has none.
    fn kernel(&self) -> Result<(u32, u32), String> {
        let release = self.release();
        parse_release(&release).ok_or(release)
    }
}

/// The parameters that IPVS mode needs on this kernel.
fn needed(kernel: Option<(u32, u32)>) -> impl Iterator<Item = Wanted> {
    let reuses = kernel.is_some_and(|kernel| ((4, 1)..(5, 9)).contains(&kernel));
    NEEDED.into_iter().chain(reuses.then_some(CONN_REUSE_MODE))
}

/// `5.4.0-150-generic` is 5.4.
pub(crate) fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, path::Path};

    use super::*;
    use crate::config::ConntrackSettings;

    const KEYS: [(&str, &str); 8] = [
        ("net/ipv4/vs/conntrack", "0\n"),
        ("net/ipv4/vs/expire_nodest_conn", "0\n"),
        ("net/ipv4/vs/expire_quiescent_template", "0\n"),
        ("net/ipv4/vs/conn_reuse_mode", "1\n"),
        ("net/ipv4/ip_forward", "1\n"),
        ("net/ipv4/conf/all/arp_ignore", "0\n"),
        ("net/ipv4/conf/all/arp_announce", "0\n"),
        ("kernel/osrelease", "6.12.0-amd64\n"),
    ];

    /// What is always set.
    const NEEDED_ALONE: KernelParameters = KernelParameters {
        strict_arp: false,
        direct_return: false,
        conntrack: ConntrackSettings {
            max_per_core: 0,
            min: 0,
            tcp_established_timeout: 0,
            tcp_close_wait_timeout: 0,
            tcp_be_liberal: false,
            udp_timeout: 0,
            udp_stream_timeout: 0,
        },
    };
    const WITH_STRICT_ARP: KernelParameters = KernelParameters { strict_arp: true, ..NEEDED_ALONE };
    const WITH_DIRECT_RETURN: KernelParameters = KernelParameters { direct_return: true, ..NEEDED_ALONE };

    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (key, value) in KEYS {
            let file = file(root.path(), key);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, value).unwrap();
        }
        root
    }

    fn file(root: &Path, key: &str) -> PathBuf {
        root.join("proc/sys").join(key)
    }

    fn value(root: &Path, key: &str) -> String {
        fs::read_to_string(file(root, key)).unwrap()
    }

    #[test]
    fn what_differs_is_written_and_what_is_right_is_not_touched() {
        let root = tree();
        Sysctl::at(root.path()).prepare(&NEEDED_ALONE).unwrap();
        assert_eq!(value(root.path(), "net/ipv4/vs/conntrack"), "1");
        assert_eq!(value(root.path(), "net/ipv4/vs/expire_nodest_conn"), "1");
        assert_eq!(value(root.path(), "net/ipv4/vs/expire_quiescent_template"), "1");
        assert_eq!(value(root.path(), "net/ipv4/ip_forward"), "1\n", "written although it was right");
        assert_eq!(value(root.path(), "net/ipv4/conf/all/arp_ignore"), "0\n", "not asked for");
        assert_eq!(value(root.path(), "net/ipv4/vs/conn_reuse_mode"), "1\n", "mended in 5.9");
    }

    #[test]
    fn after_a_reload_all_of_ipvs_that_can_be_set_is_set_and_nothing_else() {
        let root = tree();
        fs::remove_file(file(root.path(), "net/ipv4/vs/conntrack")).unwrap();
        fs::write(file(root.path(), "net/ipv4/ip_forward"), "0\n").unwrap();
        Sysctl::at(root.path()).prepare_ipvs_again(&NEEDED_ALONE);
        assert_eq!(value(root.path(), "net/ipv4/vs/expire_nodest_conn"), "1");
        assert_eq!(value(root.path(), "net/ipv4/vs/expire_quiescent_template"), "1");
        assert_eq!(value(root.path(), "net/ipv4/ip_forward"), "0\n", "an administrator has changed it");
    }

    #[test]
    fn strict_arp_sets_both_of_its_parameters() {
        let root = tree();
        Sysctl::at(root.path()).prepare(&WITH_STRICT_ARP).unwrap();
        assert_eq!(value(root.path(), "net/ipv4/conf/all/arp_ignore"), "1");
        assert_eq!(value(root.path(), "net/ipv4/conf/all/arp_announce"), "2");
    }

    #[test]
    fn what_has_been_changed_since_or_could_not_be_set_is_known_with_what_it_means() {
        let root = tree();
        let sysctl = Sysctl::at(root.path());
        let keys = |wanted| -> Vec<_> {
            sysctl.differing(wanted).into_iter().map(|(change, _)| change.key).collect()
        };
        sysctl.prepare(&NEEDED_ALONE).unwrap();
        assert_eq!(keys(&NEEDED_ALONE), [""; 0]);
        assert_eq!(
            keys(&WITH_STRICT_ARP),
            ["net.ipv4.conf.all.arp_ignore", "net.ipv4.conf.all.arp_announce"]
        );
        fs::write(file(root.path(), "net/ipv4/ip_forward"), "0\n").unwrap();
        fs::remove_file(file(root.path(), "net/ipv4/vs/conntrack")).unwrap();
        let change = Change { key: "net.ipv4.ip_forward", found: "0".to_owned(), wanted: "1".to_owned() };
        let differing = (change, "the node forwards nothing to its pods");
        assert_eq!(sysctl.differing(&NEEDED_ALONE), [differing], "and what cannot be read is left out");
        fs::write(file(root.path(), "kernel/osrelease"), "5.4.0\n").unwrap();
        assert_eq!(keys(&NEEDED_ALONE), ["net.ipv4.ip_forward", "net.ipv4.vs.conn_reuse_mode"]);
    }

    #[test]
    fn only_kernels_from_4_1_to_5_8_need_conn_reuse_mode_0() {
        for (release, expected) in [
            ("4.0.9\n", "1\n"),
            ("4.1.0\n", "0"),
            ("4.18.0-553.el8\n", "0"),
            ("5.4.0-150-generic\n", "0"),
            ("5.8.18\n", "0"),
            ("5.9-rc1\n", "1\n"),
            ("5.10.0\n", "1\n"),
            ("7.2.12\n", "1\n"),
            ("strange\n", "1\n"),
        ] {
            let root = tree();
            fs::write(file(root.path(), "kernel/osrelease"), release).unwrap();
            Sysctl::at(root.path()).prepare(&NEEDED_ALONE).unwrap();
            assert_eq!(value(root.path(), "net/ipv4/vs/conn_reuse_mode"), expected, "{release}");
        }
    }

    #[test]
    fn right_values_need_no_right_to_write() {
        let root = tree();
        for (key, _) in &KEYS[..3] {
            fs::write(file(root.path(), key), "1\n").unwrap();
            fs::set_permissions(file(root.path(), key), PermissionsExt::from_mode(0o444)).unwrap();
        }
        Sysctl::at(root.path()).prepare(&NEEDED_ALONE).unwrap();
        assert_eq!(value(root.path(), "net/ipv4/vs/conntrack"), "1\n");
    }

    #[test]
    fn what_direct_return_needs_is_set_and_looked_after() {
        let root = tree();
        for (key, before) in [
            ("net/ipv4/vs/sloppy_tcp", "0\n"),
            ("net/ipv4/vs/sloppy_sctp", "1\n"),
            ("net/ipv4/vs/pmtu_disc", "1\n"),
            ("net/netfilter/nf_conntrack_tcp_loose", "0\n"),
        ] {
            let file = file(root.path(), key);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, before).unwrap();
        }
        let sysctl = Sysctl::at(root.path());
        sysctl.prepare(&NEEDED_ALONE).unwrap();
        let differing = || -> Vec<_> {
            sysctl.differing(&WITH_DIRECT_RETURN).into_iter().map(|(change, _)| change.key).collect()
        };
        let strict = "net.netfilter.nf_conntrack_tcp_loose";
        assert_eq!(differing(), ["net.ipv4.vs.sloppy_tcp", "net.ipv4.vs.pmtu_disc", strict]);
        sysctl.prepare(&WITH_DIRECT_RETURN).unwrap();
        assert_eq!(differing(), [strict]);
        assert_eq!(value(root.path(), "net/ipv4/vs/sloppy_sctp"), "1\n", "written although it was right");
    }

    #[test]
    fn an_error_names_the_parameter_and_keeps_the_system_s_answer() {
        let root = tree();
        fs::remove_file(file(root.path(), "net/ipv4/vs/conntrack")).unwrap();
        let error = Sysctl::at(root.path()).prepare(&NEEDED_ALONE).unwrap_err();
        assert_eq!(error.to_string(), "sysctl net.ipv4.vs.conntrack cannot be read");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("os error 2"), "{source}");
    }

    #[test]
    fn only_a_denied_parameter_names_the_init_container() {
        let said = |kind: io::ErrorKind| {
            let change = Change { key: "net.ipv4.ip_forward", found: "0".to_owned(), wanted: "1".to_owned() };
            Error::Write { change, source: kind.into() }.to_string()
        };
        let cannot = "sysctl net.ipv4.ip_forward is 0 and cannot be set to 1";
        let delete = format!("{cannot} (if an init container sets it, delete the pod)");
        assert_eq!(said(io::ErrorKind::ReadOnlyFilesystem), delete);
        assert_eq!(said(io::ErrorKind::PermissionDenied), delete);
        assert_eq!(said(io::ErrorKind::InvalidInput), cannot);
    }
}
