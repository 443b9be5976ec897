//! Changes of others are repaired: at once if the kernel notifies of them, otherwise with the period or on request.

mod kube_ipvs0;
mod tables;
mod virtual_servers;

use testkit::{daemon::eventually, lab::Host, metrics::value};

use crate::{
    daemon::restarts::terminate,
    support::cluster::{Cluster, Service, V4, page},
};

fn served(arguments: &[&str]) -> (Cluster, Service) {
    let cluster = Cluster::start(2, arguments);
    let web = Service::tcp(V4).endpoints([1, 2]);
    cluster.apply(&web);
    (cluster, web)
}

/// How many repairs of a kind the metrics count.
fn repairs(node: &Host, kind: &str) -> anyhow::Result<f64> {
    value(&page(node, "/metrics")?, &format!("kube_ipvs_repairs_total{{kind=\"{kind}\"}}"))
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn every_kind_of_repair_is_in_the_log_and_counted_in_the_metrics() {
    let (cluster, _) = served(&["--ipvs-sync-period=1s"]);
    let node = &cluster.lab.node;
    eventually("the metrics are there", || repairs(node, "device")).unwrap();
    for (kind, change, repair) in [
        ("device", "ip link delete kube-ipvs0", "ensure device kube-ipvs0"),
        ("vip", "ip address delete 10.96.0.10/32 dev kube-ipvs0", "bind 10.96.0.10"),
        ("table", "nft delete table ip kube-ipvs", "prepare table IPv4"),
        ("element", "nft delete element ip kube-ipvs vips { 10.96.0.10 }", "add element"),
        ("virtual_server", "ipvsadm -D -t 10.96.0.10:80", "add virtual server TCP 10.96.0.10:80"),
        (
            "real_server",
            "ipvsadm -d -t 10.96.0.10:80 -r 10.244.1.2:8080",
            "add real server TCP 10.96.0.10:80 -> 10.244.1.2:8080",
        ),
    ] {
        let (before, log) = (repairs(node, kind).unwrap(), cluster.daemon().log().len());
        node.run("sh", &["-c", change]).unwrap();
        eventually(&format!("{kind}: it is counted"), || {
            let now = repairs(node, kind)?;
            anyhow::ensure!(now > before, "{now}");
            Ok(())
        })
        .unwrap();
        let log = cluster.daemon().log()[log..].to_owned();
        let line = format!("repaired: {repair}");
        assert!(log.contains(&line), "{kind}: {line} is not in\n{log}");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_daemon_that_a_signal_ends_leaves_the_data_path_as_it_is() {
    let (cluster, web) = served(&[]);
    let node = &cluster.lab.node;
    let mut connection = cluster.lab.client.connect(web.address()).unwrap();
    let kernel = || {
        let programs: [(&str, &[&str]); 3] = [
            ("ipvsadm", &["-Sn"]),
            ("nft", &["list", "ruleset"]),
            ("ip", &["-brief", "addr", "show", "dev", "kube-ipvs0"]),
        ];
        programs.map(|(program, arguments)| node.run(program, arguments).unwrap())
    };
    let before = kernel();
    terminate(cluster.daemon(), node);
    eventually("the daemon has ended", || {
        let log = cluster.daemon().log();
        anyhow::ensure!(log.contains("kube-ipvs is exiting; the kernel keeps what was programmed"), "{log}");
        Ok(())
    })
    .unwrap();
    assert_eq!(kernel(), before);
    connection.still_works().unwrap();
    cluster.lab.client.ask(web.address()).unwrap();
}
