//! `kube-ipvs bugreport` beside a daemon, on a kernel with Services.

use std::{collections::BTreeMap, fs, io::Read};

use flate2::read::GzDecoder;
use testkit::daemon::binary;

use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4, at};

/// The files of an archive by their names in its directory.
fn files(archive: &[u8]) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(GzDecoder::new(archive));
    let files = archive.entries().unwrap().map(|file| {
        let mut file = file.unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        (file.path().unwrap().file_name().unwrap().to_str().unwrap().to_owned(), text)
    });
    files.collect()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_bug_report_has_what_the_daemon_and_the_kernel_know_and_no_environment() {
    const SECRET: &str = "c2VjcmV0LW9mLXRoZS1lbnZpcm9ubWVudA";
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    cluster.apply(&Service::tcp(V4).endpoints([1]));
    let _connection = cluster.lab.client.connect(at(V4, 80)).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.tar.gz");
    let mut report = cluster.lab.node.command(&binary().unwrap().to_string_lossy());
    report.arg("bugreport").arg(&path).arg("--control-socket").arg(cluster.daemon().socket());
    let output = report.env("KUBE_TOKEN", SECRET).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let files = files(&fs::read(path).unwrap());
    let missing: Vec<_> = files.iter().filter(|(name, _)| name.ends_with(".error.txt")).collect();
    // A kernel without modules has no list of them.
    assert!(missing.iter().all(|(name, _)| *name == "modules.txt.error.txt"), "{missing:#?}");
    for (name, expected) in [
        ("status.txt", "synced:          yes"),
        ("configuration.json", "KubeProxyConfiguration"),
        ("metrics.txt", "kube_ipvs_virtual_servers 1"),
        ("list.txt", V4),
        ("list.json", V4),
        ("top.json", "default/web4"),
        ("ip_vs.txt", "IP Virtual Server"),
        ("connections.txt", "TCP ESTABLISHED 1"),
        ("kube-ipvs0.txt", &format!("address {V4}")),
        ("elements.txt", &format!("IPv4 cluster-ips TCP {V4}:80")),
        ("tables.txt", "table ip6 kube-ipvs"),
        ("sysctls.txt", "net.ipv4.vs.conntrack = 1"),
    ] {
        let file = files.get(name).unwrap_or_else(|| panic!("{name} is not in {:?}", files.keys()));
        assert!(file.contains(expected), "{expected} is not in {name}:\n{file}");
    }
    let with_secret: Vec<_> = files.iter().filter(|(_, text)| text.contains(SECRET)).collect();
    assert!(with_secret.is_empty(), "{with_secret:?}");
}
