//! The API server goes, hangs, breaks off, and forgets.

use std::thread;

use anyhow::Result;

use super::{Fault, fault};
use crate::chaos::scene::Scene;

/// What the log says when a watch has ended and cannot be restarted.
const UNWATCHED: &str = "cannot watch";

/// What it says about the version at which it would have resumed.
const EXPIRED: &str = "(410)";

pub(super) const SERVER: &[Fault] = &[
    fault("API server killed and started again", Some(UNWATCHED), killed),
    fault("API server stopped for seconds (SIGSTOP)", None, stopped),
    fault("API server restarted over a compacted etcd: the watch has expired (410)", Some(EXPIRED), expired),
];

pub(super) const CONNECTIONS: &[Fault] = &[fault("way to the API server closed for seconds", None, cut_off)];

/// Kills the server. Afterwards the kernel must get what is written as soon as the server accepts it.
fn killed(scene: &mut Scene<'_>) -> Result<()> {
    scene.server.restart_api_server()?;
    scene.change_probe()
}

fn stopped(scene: &mut Scene<'_>) -> Result<()> {
    let server = scene.server.api_server_process()?;
    scene.stop_for_seconds(server)?;
    scene.change_probe()
}

/// Closes the way to the server. A watch that ends and can be restarted is not reported.
fn cut_off(scene: &mut Scene<'_>) -> Result<()> {
    scene.cut_off()?;
    scene.change_probe()?;
    thread::sleep(scene.seconds(1.0, 4.0));
    scene.reconnect()
}

/// Makes the watch expire: the server knows no change from before its start, and the daemon has missed some.
fn expired(scene: &mut Scene<'_>) -> Result<()> {
    scene.cut_off()?;
    scene.change_probe()?;
    scene.server.restart_api_server()?;
    scene.change_probe()?;
    scene.server.compact()?;
    scene.reconnect()
}
