//! The verdict of `status`, and what `status --check` and `list` say of a table that another program has changed.

use anyhow::ensure;
use serde_json::json;
use testkit::daemon::{binary, eventually};

use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4};

/// A command for the daemon: its exit code, and what it printed, errors last.
fn ask(cluster: &Cluster, arguments: &[&str]) -> anyhow::Result<(Option<i32>, String)> {
    let mut command = cluster.lab.node.command(&binary()?.to_string_lossy());
    let output = command.args(arguments).arg("--control-socket").arg(cluster.daemon().socket()).output()?;
    Ok((output.status.code(), String::from_utf8([output.stdout, output.stderr].concat())?))
}

/// A node that serves one Service, and its name.
fn serving() -> (Cluster, String) {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    let web = Service::tcp(V4).endpoints([1]);
    cluster.apply(&web);
    let name = format!("default/{}", web.name());
    (cluster, name)
}

/// Waits until a check succeeds, and returns its first line.
fn passes(cluster: &Cluster) -> String {
    eventually("the check succeeds", || {
        let (code, said) = ask(cluster, &["status", "--check"])?;
        ensure!(code == Some(0), "{said}");
        Ok(said.lines().next().unwrap_or_default().to_owned())
    })
    .unwrap()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_check_fails_as_soon_as_the_kernel_differs_and_its_first_line_says_how() {
    let (cluster, web) = serving();
    assert_eq!(passes(&cluster), "serving:         1 Service, all as desired");
    let (node, at) = (&cluster.lab.node, format!("{V4}:80"));
    let pod = cluster.pod_address(1, V4.parse().unwrap()).to_string();

    node.run("ipvsadm", &["-d", "-t", &at, "-r", &pod]).unwrap();
    let (code, said) = ask(&cluster, &["status", "--check"]).unwrap();
    let differs = format!("the kernel differs: 1 real server to be added, for {web}");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.starts_with(&format!("NOT in sync:     {differs}\n")), "{said}");
    assert!(
        said.contains(&format!("differs:         add real server TCP {at} -> {pod} weight 1\n")),
        "{said}"
    );
    assert!(said.ends_with(&format!("kube-ipvs: the check failed: NOT in sync: {differs}\n")), "{said}");
    cluster.daemon().ask(node, "resync").unwrap();
    passes(&cluster);

    eventually("an emptied table is noticed by the check, if that is before the daemon does", || {
        node.run("ipvsadm", &["-C"])?;
        let (code, said) = ask(&cluster, &["status", "--check"])?;
        let differs =
            "NOT in sync:     the kernel differs: 1 real server and 1 virtual server to be added, for ";
        ensure!(code == Some(1) && said.starts_with(differs), "{said}");
        Ok(())
    })
    .unwrap();
    passes(&cluster);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_service_without_an_endpoint_is_counted_named_and_no_fault() {
    let (cluster, _) = serving();
    let typo = Service::new("typo", &json!({ "clusterIPs": ["10.96.0.77"], "ports": [{ "port": 80 }] }));
    cluster.write(&typo);
    eventually("the status names it, once it is programmed", || {
        let (_, said) = ask(&cluster, &["status", "--check"])?;
        let verdict = "serving:         2 Services, all as desired; 1 Service without endpoint";
        ensure!(said.starts_with(verdict), "{said}");
        ensure!(said.contains("Services:        2, without endpoint: default/typo\n"), "{said}");
        Ok(())
    })
    .unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn list_says_which_service_wants_a_virtual_server_that_is_not_there() {
    let (cluster, web) = serving();
    let wanted = format!("there is no virtual server at {V4}, but {web} wants one: `kube-ipvs diff` prints");
    eventually("list says it, if that is before the daemon has repaired it", || {
        cluster.lab.node.run("ipvsadm", &["-D", "-t", &format!("{V4}:80")])?;
        let (code, said) = ask(&cluster, &["list", V4])?;
        ensure!(code == Some(1) && said.contains(&wanted), "{said}");
        Ok(())
    })
    .unwrap();
    let (_, said) = ask(&cluster, &["list", "10.96.0.99"]).unwrap();
    assert_eq!(said, "kube-ipvs: there is no virtual server at 10.96.0.99\n");
}
