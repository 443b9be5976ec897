//! The daemon itself is killed, stopped, short of memory, misled about the time, or not alone.

use std::{fs, path::Path, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::time::TimeSpec,
    time::{ClockId, clock_gettime, clock_settime},
};
use testkit::daemon::eventually;

use super::{Fault, REPAIRED, fault};
use crate::chaos::scene::Scene;

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        times: 40,
        cuts_short: true,
        ..fault("daemon killed at any moment of its start and first sync", None, killed)
    },
    Fault {
        times: 4,
        cuts_short: true,
        ..fault("daemon killed while the endpoints of every Service change", None, killed_in_a_change)
    },
    fault("daemon stopped for seconds (SIGSTOP)", None, stopped),
    fault("second daemon started beside", None, doubled),
    fault("memory limit reached", None, out_of_memory),
    fault(
        "kube-proxy runs beside for seconds",
        Some("kube-proxy's rules are on this node beside ours"),
        beside_kube_proxy,
    ),
];

pub(super) const CLOCK: &[Fault] =
    &[fault("clock set an hour forward, then two back", Some(REPAIRED), clock_set)];

/// Kills a starting daemon. Much of what it had programmed is removed first, so that it has something to do,
/// and it is killed before, during or after that.
fn killed(scene: &mut Scene<'_>) -> Result<()> {
    scene.kill()?;
    scene.ruin()?;
    scene.start()?;
    if scene.random.bool() {
        scene.wait_for_a_repair()?;
    } else {
        thread::sleep(scene.seconds(0.0, 0.7));
    }
    scene.kill()?;
    scene.count_if_cut_short()?;
    scene.start()
}

/// Kills a daemon that takes a pod from every Service. The next one finds that they have it again: a real server that
/// was set to weight 0, or was deleted, is as before, and connections to it go on.
fn killed_in_a_change(scene: &mut Scene<'_>) -> Result<()> {
    let changed = scene.wait_for_a_change();
    scene.kill()?;
    scene.count_if_changed_in_part()?;
    scene.write_endpoints(&[1, 2])?;
    changed?;
    scene.start()
}

fn stopped(scene: &mut Scene<'_>) -> Result<()> {
    let daemon = scene.daemon()?.id();
    scene.stop_for_seconds(daemon)?;
    scene.change_probe()
}

/// Starts a second daemon, which waits and does nothing.
fn doubled(scene: &mut Scene<'_>) -> Result<()> {
    let second = scene.another()?;
    eventually("the second daemon waits", || {
        ensure!(second.log().contains("waiting until it ends"), "{}", second.log());
        Ok(())
    })?;
    thread::sleep(scene.seconds(0.5, 2.0));
    second.kill()
}

/// The kernel kills it; the kubelet, which is not here, would start another.
fn out_of_memory(scene: &mut Scene<'_>) -> Result<()> {
    let group = Path::new("/sys/fs/cgroup/kube-ipvs-chaos");
    fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory").context("no memory controller")?;
    fs::create_dir_all(group)?;
    let daemon = scene.daemon()?.id();
    fs::write(group.join("cgroup.procs"), daemon.to_string())?;
    // Memory that it already has counts elsewhere; any new memory is too much.
    fs::write(group.join("memory.max"), "4096")?;
    let asked = scene.daemon()?.ask(&scene.stage.lab.node, "resync");
    let gone = eventually("the kernel kills the daemon", || {
        let state = fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap_or_default();
        ensure!(state.is_empty() || state.contains(") Z "), "it lives: {asked:?}");
        Ok(())
    });
    scene.kill()?;
    fs::remove_dir(group)?;
    gone?;
    scene.start()
}

/// Whatever the time of day, the next periodic sync comes, and changes at the API server arrive.
fn clock_set(scene: &mut Scene<'_>) -> Result<()> {
    const HOUR: TimeSpec = TimeSpec::new(3600, 0);
    let set = |change: fn(TimeSpec) -> TimeSpec| -> Result<()> {
        Ok(clock_settime(ClockId::CLOCK_REALTIME, change(clock_gettime(ClockId::CLOCK_REALTIME)?))?)
    };
    let lives_on = |scene: &mut Scene<'_>| {
        scene.ipvsadm("-A -t 192.0.2.7:80 -s wlc")?;
        scene.change_probe()?;
        scene.heals()
    };
    set(|now| now + HOUR)?;
    let ahead = lives_on(scene).context("the clock is an hour ahead");
    set(|now| now - HOUR - HOUR)?;
    let behind = lives_on(scene).context("the clock has gone two hours back");
    set(|now| now + HOUR)?;
    ahead.and(behind)
}

/// Each removes what only the other wants. They want the same but for the scheduler, which each sets again and again,
/// kube-proxy every second. What it leaves behind is removed at the next start.
fn beside_kube_proxy(scene: &mut Scene<'_>) -> Result<()> {
    let before = scene.repairs()?;
    let kube_proxy = scene.kube_proxy()?;
    let known = eventually("the daemon names kube-proxy", || {
        let log = scene.daemon()?.log();
        ensure!(log.contains("kube-proxy's rules are on this node beside ours"), "{log}");
        Ok(())
    });
    thread::sleep(Duration::from_secs(2));
    let said = kube_proxy.log();
    kube_proxy.kill()?;
    known.with_context(|| said)?;
    let repairs = scene.repairs()? - before;
    ensure!(repairs < 60, "{repairs} repairs: {REPAIRED}");
    scene.kill()?;
    scene.start()
}
