//! kube-ipvs and the real kube-proxy, each on a node of its own, at one API server: after every step of a script in
//! `scripts/` their virtual servers, real servers and VIPs are compared.

use std::{collections::BTreeSet, path::Path};

use crate::support::peer::{play::Stage, script::Script};

/// Each script is a test of its name.
macro_rules! scripts {
    ($($name:ident)*) => {
        const SCRIPTS: &[&str] = &[$(stringify!($name)),*];

        $(
            #[test]
            #[ignore = "needs root, ip_vs, kube-apiserver and kube-proxy: cargo xtask test --tier peer"]
            fn $name() {
                play(stringify!($name));
            }
        )*
    };
}

scripts! {
    cluster_ip
    conditions
    drain
    exclude_cidrs
    external_ip
    external_ips_disabled
    external_traffic_policy
    families
    ignored_slices
    internal_traffic_policy
    internal_traffic_policy_exposed
    kube_ipvs0
    load_balancer
    node_port
    node_port_addresses
    node_port_addresses_keywords
    node_port_addresses_primary
    not_served
    protocols
    repair
    restart
    scheduler_lc
    scheduler_mh
    scheduler_sh
    session_affinity
    shared_addresses
    slices
    strangers
    target_ports
    types
    weights
    zone_hints
}

fn all() -> Vec<Script> {
    Script::all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peer/scripts")).unwrap()
}

fn play(name: &str) {
    let Some(mut stage) = Stage::new().unwrap() else { return };
    let script = all().into_iter().find(|script| script.name == name).unwrap();
    if let Some(since) = script.since
        && testkit::kube_proxy::version().unwrap() < since
    {
        println!("ABSENT: this kube-proxy is before {}.{}", since.0, since.1);
        return;
    }
    if let Err(error) = stage.play(&script) {
        panic!("{error:#}");
    }
}

#[test]
fn every_script_is_a_test() {
    let files: BTreeSet<String> = all().into_iter().map(|script| script.name).collect();
    let tests: BTreeSet<String> = SCRIPTS.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(files, tests);
}
