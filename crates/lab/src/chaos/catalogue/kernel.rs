//! Other programs change what is in the kernel, for Services with traffic or without.

use std::{
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::{Fault, REPAIRED, costly, fault};
use crate::chaos::scene::Scene;

/// The time between two looks of the daemon at IPVS, and the least time between two of its reactions to
/// notifications.
const LOOKS: Duration = Duration::from_secs(1);
const ANSWERS: Duration = Duration::from_millis(200);
/// The time between two attacks of a program that does not give up.
const BETWEEN_HARMS: Duration = Duration::from_millis(20);

pub(super) const IPVS: &[Fault] = &[
    costly("ipvsadm -C", Some(REPAIRED), |scene| scene.ipvsadm("-C")),
    costly("virtual server deleted", Some(REPAIRED), |scene| {
        scene.ipvsadm(&format!("-D -t {}", scene.victim()))
    }),
    fault("virtual server added", Some(REPAIRED), |scene| scene.ipvsadm("-A -t 192.0.2.7:80 -s wlc")),
    fault("virtual server edited", Some(REPAIRED), |scene| {
        scene.ipvsadm(&format!("-E -t {} -s wlc", scene.victim()))
    }),
    costly("real server deleted", Some(REPAIRED), |scene| {
        scene.ipvsadm(&format!("-d -t {} -r 10.244.1.2:8080", scene.victim()))
    }),
    fault("real server added", Some(REPAIRED), |scene| {
        scene.ipvsadm(&format!("-a -t {} -r 192.0.2.9:8080 -m -w 0", scene.victim()))
    }),
    fault("real server set to weight 0", Some(REPAIRED), |scene| {
        scene.ipvsadm(&format!("-e -t {} -r 10.244.1.2:8080 -m -w 0", scene.victim()))
    }),
    costly("another program empties the table for seconds", Some(REPAIRED), emptied_again_and_again),
    fault("others add and delete while the daemon reads", Some(REPAIRED), edited_while_read),
];

pub(super) const DEVICE: &[Fault] = &[
    fault("kube-ipvs0 deleted", Some(REPAIRED), |scene| scene.ip("link delete kube-ipvs0")),
    fault("kube-ipvs0 set up", None, |scene| scene.ip("link set kube-ipvs0 up")),
    fault("kube-ipvs0 set up and down", Some(REPAIRED), |scene| {
        scene.ip("link set kube-ipvs0 up\nlink set kube-ipvs0 down")
    }),
    fault("kube-ipvs0 renamed", Some(REPAIRED), renamed),
    fault("kube-ipvs0 stripped of its addresses", Some(REPAIRED), |scene| {
        scene.ip("addr flush dev kube-ipvs0")
    }),
    fault("address added to kube-ipvs0", Some(REPAIRED), |scene| {
        scene.ip("addr add 10.96.255.99/32 dev kube-ipvs0")
    }),
];

pub(super) const ROUTES: &[Fault] = &[
    fault("VIPs as routes: the routes deleted", Some(REPAIRED), |scene| {
        ["-4", "-6"].into_iter().try_for_each(|family| {
            let flush = [family, "route", "flush", "table", "local", "proto", "73"];
            scene.stage.lab.node.run("ip", &flush).map(drop)
        })
    }),
    fault("VIPs as routes: kube-ipvs0 deleted", Some(REPAIRED), |scene| scene.ip("link delete kube-ipvs0")),
    fault("VIPs as routes: kube-ipvs0 set up", None, |scene| scene.ip("link set kube-ipvs0 up")),
    fault("VIPs as routes: kube-ipvs0 renamed", Some(REPAIRED), renamed),
];

pub(super) const NF_TABLES: &[Fault] = &[
    costly("nft flush ruleset", Some(REPAIRED), |scene| scene.nft("flush ruleset")),
    costly("our table deleted", Some(REPAIRED), |scene| scene.nft("delete table ip kube-ipvs")),
    fault("element removed from a set of ours", Some(REPAIRED), |scene| {
        let (ip, port) = (scene.victim().ip(), scene.victim().port());
        scene.nft(&format!("delete element ip kube-ipvs cluster-ips {{ {ip} . tcp . {port} }}"))
    }),
    costly("another program deletes our table for seconds", Some(REPAIRED), fought_over),
];

/// One of the Services without traffic is answered directly.
pub(super) const DIRECT_RETURN: &[Fault] = &[
    fault("tunnel device deleted", Some(REPAIRED), |scene| scene.ip("link delete kube-ipvs-tun4")),
    fault("tunnel device set down", Some(REPAIRED), |scene| scene.ip("link set kube-ipvs-tun6 down")),
    // That of IPv6 is the kernel's own, which is not needed and not restored.
    fault("tunnel device stripped of its address", Some(REPAIRED), |scene| {
        scene.stage.lab.node.run("ip", &["-4", "addr", "flush", "dev", "kube-ipvs-tun4"]).map(drop)
    }),
    fault("chain of direct return emptied", Some(REPAIRED), |scene| {
        scene.nft("flush chain ip kube-ipvs tunnel-prerouting")
    }),
    fault("set of direct return emptied", Some(REPAIRED), |scene| {
        scene.nft("flush set ip6 kube-ipvs endpoints-here")
    }),
];

/// Renames the device, which keeps all its addresses. If it still has that name after a while, it is deleted.
fn renamed(scene: &mut Scene<'_>) -> Result<()> {
    scene.ip("link set kube-ipvs0 down\nlink set kube-ipvs0 name mine0")?;
    thread::sleep(scene.seconds(0.0, 1.0));
    drop(scene.ip("link delete mine0"));
    Ok(())
}

/// Changes the tables during a read, which then misses entries or shows them twice.
fn edited_while_read(scene: &mut Scene<'_>) -> Result<()> {
    const ADD_AND_DELETE: &str = "while :; do for n in $(seq 1 120); do \
         printf -- '-A -t 192.0.2.%s:80 -s rr\\n' $n; done | ipvsadm -R; ipvsadm -Sn | \
         grep ' 192.0.2.' | sed 's/^-A/-D/; s/ -s.*//' | ipvsadm -R; done";
    let mut command = scene.stage.lab.node.command("sh");
    let command = command.args(["-c", ADD_AND_DELETE]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut others = command.spawn().context("starting a program that edits")?;
    for _ in 0..5 {
        scene.daemon()?.ask(&scene.stage.lab.node, "resync")?;
    }
    others.kill()?;
    others.wait()?;
    Ok(())
}

/// The daemon reacts at each look, and not more often.
fn emptied_again_and_again(scene: &mut Scene<'_>) -> Result<()> {
    let length = scene.seconds(5.0, 8.0);
    repairs_are_few(scene, length, LOOKS, |scene| scene.ipvsadm("-C"))
}

/// The daemon reacts at once, but not to each attack.
fn fought_over(scene: &mut Scene<'_>) -> Result<()> {
    let length = scene.seconds(1.0, 3.0);
    repairs_are_few(scene, length, ANSWERS, |scene| {
        // This fails as long as the table is not back.
        drop(scene.nft("delete table ip kube-ipvs"));
        Ok(())
    })
}

/// Attacks again and again for this time; checks that repairs are at least this far apart.
fn repairs_are_few(
    scene: &mut Scene<'_>,
    length: Duration,
    apart: Duration,
    harm: impl Fn(&Scene<'_>) -> Result<()>,
) -> Result<()> {
    let (before, begun) = (scene.repairs()?, Instant::now());
    while begun.elapsed() < length {
        harm(scene)?;
        thread::sleep(BETWEEN_HARMS);
    }
    let (repairs, took) = (scene.repairs()? - before, begun.elapsed());
    // One may be due at the beginning, and one at the end.
    let most = took.as_millis() / apart.as_millis() + 2;
    ensure!(u128::try_from(repairs)? <= most, "{repairs} repairs in {took:?}");
    Ok(())
}
