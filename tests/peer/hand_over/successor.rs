//! A kube-proxy that has no code for IPVS any more: the rules that the real one writes on a node of its own, put in
//! place without its clean-up, and the answer by which a proxy is known.

use anyhow::{Result, ensure};
use testkit::{
    daemon::eventually_within,
    kube_proxy::{KubeProxy, Mode},
    lab::{Host, Lab},
};

use super::{PATIENCE, POD_PORT, SERVICE, Stage};
use crate::support::hand_over::Successor;

/// The rules of a kube-proxy, as the programs take them that write them.
pub(crate) struct Rules {
    mode: Mode,
    /// Each with the program that takes it.
    texts: [(&'static str, String); 2],
}

impl Rules {
    /// Those that the real kube-proxy writes for the Services of the stage.
    pub(crate) fn written_elsewhere(stage: &Stage, mode: Mode) -> Self {
        let elsewhere = Lab::new(0, POD_PORT).unwrap();
        elsewhere.node.reach(stage.server.address().unwrap()).unwrap();
        let kubeconfig = stage.server.proxy_kubeconfig();
        let arguments = ["--kubeconfig", &*kubeconfig.to_string_lossy()];
        let _kube_proxy = KubeProxy::start_in_mode(mode, &elsewhere.node, &arguments).unwrap();
        let texts = eventually_within(PATIENCE, "kube-proxy has written its rules", || {
            let texts = listed(&elsewhere.node, mode)?;
            for ((_, text), vip) in texts.iter().zip(SERVICE.cluster_ips) {
                ensure!(text.contains(vip), "{vip} is not in:\n{text}");
            }
            Ok(texts)
        })
        .unwrap();
        Self { mode, texts }
    }

    /// Puts them in place, and answers as their author does.
    pub(crate) fn put_on(&self, node: &Host) -> Successor {
        for (program, text) in &self.texts {
            let script = format!("{program} <<'END'\n{text}END\n");
            node.run("sh", &["-ec", &script]).unwrap();
        }
        Successor::in_mode(node, if self.mode == Mode::Nftables { "nftables" } else { "iptables" })
    }
}

fn listed(node: &Host, mode: Mode) -> Result<[(&'static str, String); 2]> {
    let run = |program, arguments: &[&str]| node.run(program, arguments);
    Ok(match mode {
        Mode::Nftables => [
            ("nft -f -", run("nft", &["list", "table", "ip", "kube-proxy"])?),
            ("nft -f -", run("nft", &["list", "table", "ip6", "kube-proxy"])?),
        ],
        _ => [
            ("iptables-restore --noflush", uncounted(&run("iptables-save", &[])?)),
            ("ip6tables-restore --noflush", uncounted(&run("ip6tables-save", &[])?)),
        ],
    })
}

/// Rules without the counters that kube-proxy has made beforehand, by a protocol of their own (nfacct).
fn uncounted(rules: &str) -> String {
    let mut words = rules.split_inclusive(' ').peekable();
    let mut uncounted = String::new();
    while let Some(word) = words.next() {
        if word == "-m " && words.next_if_eq(&"nfacct ").is_some() {
            // `--nfacct-name`, an empty word, and the name.
            words.nth(2);
        } else {
            uncounted.push_str(word);
        }
    }
    uncounted
}
