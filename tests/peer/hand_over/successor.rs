//! A kube-proxy in nftables mode that has no code for IPVS any more: the rules that the real one writes on a node of its
//! own, put in place without its clean-up, and the answer by which a proxy is known.

use anyhow::{Result, ensure};
use testkit::{
    daemon::eventually_within,
    kube_proxy::{KubeProxy, Mode},
    lab::{Host, Lab},
};

use super::{PATIENCE, POD_PORT, SERVICE, Stage};
use crate::support::hand_over::Successor;

/// The rules of a kube-proxy, as nft prints them and takes them.
pub(crate) struct NftablesRules(String);

impl NftablesRules {
    /// Those that the real kube-proxy writes for the Services of the stage.
    pub(crate) fn written_elsewhere(stage: &Stage) -> Self {
        let elsewhere = Lab::new(0, POD_PORT).unwrap();
        elsewhere.node.reach(stage.server.address().unwrap()).unwrap();
        let kubeconfig = stage.server.proxy_kubeconfig();
        let arguments = ["--kubeconfig", &*kubeconfig.to_string_lossy()];
        let _kube_proxy = KubeProxy::start_in_mode(Mode::Nftables, &elsewhere.node, &arguments).unwrap();
        let rules = eventually_within(PATIENCE, "kube-proxy has written its rules", || {
            let list = |family| elsewhere.node.run("nft", &["list", "table", family, "kube-proxy"]);
            let rules = ["ip", "ip6"].into_iter().map(list).collect::<Result<String>>()?;
            for vip in SERVICE.cluster_ips {
                ensure!(rules.contains(vip), "{vip} is not in:\n{rules}");
            }
            Ok(rules)
        });
        Self(rules.unwrap())
    }

    /// Puts them in place, and answers as their author does.
    pub(crate) fn put_on(&self, node: &Host) -> Successor {
        node.run("nft", &[&self.0]).unwrap();
        Successor::in_mode(node, "nftables")
    }
}
