//! The level of the log can be changed at run time; each verbosity adds to what is logged of a sync.

use anyhow::ensure;
use testkit::daemon::{binary, eventually};

use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4};

/// `kube-ipvs log-level`, and its exit code.
fn log_level(cluster: &Cluster, level: &[&str]) -> (Option<i32>, String) {
    let socket = cluster.daemon().socket().to_str().unwrap();
    let mut command = cluster.lab.node.command(binary().unwrap().to_str().unwrap());
    let output = command.args(["log-level", "--control-socket", socket]).args(level).output().unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

/// The lines about syncs that a change to this many endpoints adds to the log.
fn lines_of_a_change(cluster: &Cluster, endpoints: usize) -> Vec<String> {
    // The first sync may not have ended.
    cluster.daemon().ask(&cluster.lab.node, "resync").unwrap();
    let before = cluster.daemon().log().len();
    cluster.apply(&Service::tcp(V4).endpoints(1..=endpoints));
    eventually("the change is in IPVS", || {
        let listed = cluster.lab.node.run("ipvsadm", &["-Ln"])?;
        ensure!(listed.matches("Masq    1").count() == endpoints, "{listed}");
        Ok(())
    })
    .unwrap();
    // What is logged of it is logged when it has ended, and this is answered after that.
    cluster.daemon().status(&cluster.lab.node).unwrap();
    let log = cluster.daemon().log();
    let is_of_syncs = |line: &&str| line.contains(" reconciler::") || line.contains(" plan: ");
    log.split_at(before).1.lines().filter(is_of_syncs).map(str::to_owned).collect()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_log_level_changes_at_run_time_and_each_adds_to_what_is_logged_of_a_sync() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    assert_eq!(lines_of_a_change(&cluster, 1), [""; 0], "nothing of a sync that went well");

    let synced = ": synced trigger=Change full=false done=";
    let plan = "plan: ";
    let phase = "sync{trigger=Change full=false done=2 failed=0}";
    for (level, shown) in [
        ("3", vec![synced]),
        ("4", vec![synced, plan]),
        ("5", vec![synced, plan, phase, "}:read:", "}:compare:", "ipvs{operations=1}"]),
    ] {
        lines_of_a_change(&cluster, 1);
        let (code, printed) = log_level(&cluster, &[level]);
        assert_eq!((code, printed), (Some(0), format!("{level}\n")));
        let lines = lines_of_a_change(&cluster, 2);
        for what in [synced, plan, phase, "}:read:", "}:compare:", "ipvs{operations=1}"] {
            let is_there = lines.iter().any(|line| line.contains(what));
            assert_eq!(is_there, shown.contains(&what), "{level}: {what} in {lines:#?}");
        }
        assert!(level != "5" || lines.iter().any(|line| line.contains("time.busy=")), "{lines:#?}");
    }

    assert_eq!(log_level(&cluster, &["start"]).0, Some(0));
    assert_eq!(lines_of_a_change(&cluster, 1), [""; 0], "as at the start");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn log_level_prints_the_level_and_refuses_what_is_none() {
    let cluster = Cluster::start(0, &[NO_PERIOD]);
    let (code, printed) = log_level(&cluster, &[]);
    assert_eq!(code, Some(0), "{printed}");
    assert_eq!(printed, "2\n", "as the daemon was started");
    for no_level in ["reconciler=loud", "verbose", "debgu"] {
        let (code, refused) = log_level(&cluster, &[no_level]);
        assert_eq!(code, Some(64), "{refused}");
        assert!(refused.contains(&format!("invalid level {no_level:?}")), "{refused}");
    }
    assert_eq!(log_level(&cluster, &[]).1, printed, "as before");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_level_of_one_part_leaves_the_others_and_a_log_switched_off_says_so_last() {
    let cluster = Cluster::start(0, &[NO_PERIOD]);
    let (code, level) = log_level(&cluster, &["reconciler=debug"]);
    assert_eq!(code, Some(0), "{level}");
    for part in ["reconciler=debug", "kube_ipvs=info", "warn"] {
        assert!(level.contains(part), "{level}");
    }

    assert_eq!(log_level(&cluster, &["off"]), (Some(0), "off\n".to_owned()));
    let log = cluster.daemon().log();
    let last = log.lines().last().unwrap_or_default();
    assert!(last.ends_with("an operator has set the log level to off"), "{last}");
}
