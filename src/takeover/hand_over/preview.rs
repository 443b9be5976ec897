//! What a hand-over would find on this node, wait for and remove, read without a change.

use std::{os::unix::net::UnixStream, path::Path};

use anyhow::ensure;
use dummy_interface::has_device;
use host_rules::legacy_tables_in_use;
use ipvs::{Family, KernelIpvs};

use super::{NoSuccessor, OpenConnections, Served};
use crate::{
    node::sysctl::{Sysctl, parse_release},
    takeover::{
        cleanup::{CleanupReport, foreseen, open_if_loaded},
        instance_lock,
        live_proxy::LiveProxy,
    },
};

/// The first kernel on which kube-proxy starts in nftables mode (pkg/proxy/nftables/supported.go).
const NFTABLES_MODE_SINCE: (u32, u32) = (5, 13);

/// A hand-over that has not happened.
#[derive(Debug)]
pub struct Preview {
    /// What it would wait for and remove, and warnings.
    pub report: CleanupReport,
    /// The connections that are open now.
    pub open: OpenConnections<KernelIpvs>,
}

/// Reads what a hand-over would do. Fails where the hand-over would refuse. May run beside kube-ipvs.
pub fn preview(control_socket: &Path) -> anyhow::Result<Preview> {
    let node = Node::read(control_socket)?;
    let open = OpenConnections::read(&node.served)?;
    let mut report = foreseen(&node.served);
    report.waits = node.waits()?;
    report.warnings = node.warnings(&open);
    Ok(Preview { report, open })
}

/// What a hand-over depends on.
struct Node {
    served: Served,
    /// How a kube-ipvs that runs is known.
    kube_ipvs: Option<String>,
    /// The proxy that answers where kube-proxy does: kube-ipvs itself, as long as it runs.
    live: Option<LiveProxy>,
    /// The kernel's release.
    release: String,
    /// The families with tables of iptables-legacy.
    legacy: Vec<Family>,
}

impl Node {
    fn read(control_socket: &Path) -> anyhow::Result<Self> {
        let served = Served::read()?;
        let kube_ipvs = running(control_socket);
        if served.is_empty() && kube_ipvs.is_none() {
            nothing_unknown_is_left()?;
        }
        let has_legacy = |family: &Family| legacy_tables_in_use(*family).is_ok_and(|names| !names.is_empty());
        Ok(Self {
            served,
            kube_ipvs,
            live: LiveProxy::find(),
            release: Sysctl::default().release(),
            legacy: Family::BOTH.into_iter().filter(has_legacy).collect(),
        })
    }

    fn waits(&self) -> Result<Vec<String>, NoSuccessor> {
        if let Some(how) = &self.kube_ipvs {
            return Ok(vec![format!("another kube-ipvs runs on this node: it {how}")]);
        }
        match if self.served.is_empty() { None } else { self.served.successor().err() } {
            Some(never @ NoSuccessor::OtherMode(_)) => Err(never),
            why => Ok(why.iter().map(ToString::to_string).collect()),
        }
    }

    /// The mode in which another proxy runs already.
    fn next_mode(&self) -> Option<&str> {
        self.live.as_ref().map(LiveProxy::mode).filter(|mode| *mode != "ipvs")
    }

    fn warnings(&self, open: &OpenConnections<KernelIpvs>) -> Vec<String> {
        let mut warnings: Vec<_> =
            self.served.families_without_a_route().into_iter().map(no_default_route).collect();
        warnings.extend(open.unread().map(str::to_owned));
        let may_be = |mode: &str| self.next_mode().is_none_or(|next| next == mode);
        if may_be("nftables") && parse_release(&self.release).is_some_and(|it| it < NFTABLES_MODE_SINCE) {
            warnings.push(format!(
                "kube-proxy in nftables mode needs Linux 5.13, and this is Linux {}: use iptables mode",
                self.release
            ));
        }
        if may_be("iptables") && !self.legacy.is_empty() {
            let families: Vec<_> = self.legacy.iter().map(ToString::to_string).collect();
            warnings.push(format!(
                "iptables-legacy has tables of {}: if kube-proxy in iptables mode writes its rules there, they \
                 cannot be read, and the hand-over refuses. Use nftables mode if `iptables -V` on the host says \
                 legacy",
                families.join(" and ")
            ));
        }
        if self.next_mode().is_none() && open.count().active > 0 {
            warnings.push(format!(
                "kube-proxy up to 1.42 deletes all virtual servers when it starts in nftables mode, and cuts {}: \
                 drain the node before",
                open.count()
            ));
        }
        if self.kube_ipvs.is_some() && self.live.is_none() {
            warnings.push(
                "kube-ipvs runs and does not answer at 127.0.0.1:10249/proxyMode: with its metricsBindAddress \
                 kube-proxy would not be found either"
                    .to_owned(),
            );
        }
        warnings
    }
}

/// How a kube-ipvs that runs on this node is known: it answers, or only its locks can be seen from here.
fn running(control_socket: &Path) -> Option<String> {
    if UnixStream::connect(control_socket).is_ok() {
        return Some(format!("answers at {}", control_socket.display()));
    }
    let locks = instance_lock::held(control_socket);
    (!locks.is_empty()).then(|| format!("holds {}", locks.join("; ")))
}

/// Fails if VIPs of a proxy are there, and our tables, which would say which virtual servers are ours, are not.
pub fn nothing_unknown_is_left() -> anyhow::Result<()> {
    ensure!(
        !has_device()?,
        "kube-ipvs0 exists without our tables, which record what is ours: reboot the node, or remove everything with \
         `kube-ipvs cleanup --force`"
    );
    Ok(())
}

/// The warning of a family without a default route.
pub fn no_default_route(family: Family) -> String {
    format!("there is no {family} default route: this node itself will not reach any ClusterIP")
}

impl OpenConnections<KernelIpvs> {
    /// The connections that are open now. Writes nothing, and loads nothing.
    fn read(served: &Served) -> Result<Self, ipvs::Error> {
        let mut open = match open_if_loaded() {
            Ok(kernel) => Self::at(kernel, served),
            Err(ipvs::Error::NoIpvs) => Self::none(),
            Err(error) => return Err(error),
        };
        open.count_again();
        Ok(open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Node {
        Node {
            served: Served::default(),
            kube_ipvs: None,
            live: None,
            release: "6.12.0".to_owned(),
            legacy: Vec::new(),
        }
    }

    fn warnings(node: &Node) -> String {
        node.warnings(&OpenConnections::none()).join("\n")
    }

    #[test]
    fn an_old_kernel_and_legacy_tables_matter_only_to_the_mode_that_needs_others() {
        assert_eq!(warnings(&node()), "");
        let old = || Node { release: "5.10.0-21-amd64".to_owned(), legacy: vec![Family::V4], ..node() };
        let in_mode = |mode| Node { live: Some(LiveProxy::in_mode(mode)), ..old() };
        let [kernel, legacy] =
            ["needs Linux 5.13, and this is Linux 5.10.0-21-amd64", "has tables of IPv4: "];
        for (node, too_old, is_legacy) in
            [(old(), true, true), (in_mode("ipvs"), true, true), (in_mode("nftables"), true, false)]
        {
            let said = warnings(&node);
            assert_eq!((said.contains(kernel), said.contains(legacy)), (too_old, is_legacy), "{said}");
        }
        let said = warnings(&in_mode("iptables"));
        assert!(!said.contains(kernel) && said.contains(legacy), "{said}");
    }

    #[test]
    fn a_running_kube_ipvs_is_waited_for_and_must_answer_where_kube_proxy_will() {
        let running = Node { kube_ipvs: Some("holds /run/xtables.lock".to_owned()), ..node() };
        let waits = running.waits().unwrap();
        assert_eq!(waits, ["another kube-ipvs runs on this node: it holds /run/xtables.lock"]);
        assert!(warnings(&running).contains("does not answer at 127.0.0.1:10249/proxyMode"));
        let answers = Node { live: Some(LiveProxy::in_mode("ipvs")), ..running };
        assert_eq!(warnings(&answers), "");
        assert_eq!(node().waits().unwrap(), [""; 0], "nothing is served");
    }
}
