//! The faults, and how to inject each.

mod endpoints;
mod kernel;
mod process;

use std::thread;

use anyhow::Result;

use super::scene::Scene;
use crate::stage::objects::{self, Kind, PORTS, Write};

/// Something that goes wrong around a node proxy.
#[derive(Clone, Copy)]
pub(super) struct Fault {
    /// The name in the table.
    pub(super) name: &'static str,
    /// Injects the fault, and ends it if it does not end by itself. The time to heal counts from its end.
    pub(super) inject: fn(&mut Scene<'_>) -> Result<()>,
    /// What the daemon then logs. `None` if nothing is to be logged: the daemon has just started, or nothing
    /// is wrong.
    pub(super) logged: Option<&'static str>,
    /// Whether connections break with any proxy. With other faults none may break.
    pub(super) costs: bool,
    /// How many times as often it happens as the others.
    pub(super) times: u32,
    /// Whether the daemon is to be killed in the middle of a sync.
    pub(super) cuts_short: bool,
}

/// What the log says when something else has changed the kernel.
pub(super) const REPAIRED: &str = "repaired what something else had changed";

const fn fault(
    name: &'static str,
    logged: Option<&'static str>,
    inject: fn(&mut Scene<'_>) -> Result<()>,
) -> Fault {
    Fault { name, inject, logged, costs: false, times: 1, cuts_short: false }
}

/// One that costs connections.
const fn costly(
    name: &'static str,
    logged: Option<&'static str>,
    inject: fn(&mut Scene<'_>) -> Result<()>,
) -> Fault {
    Fault { costs: true, ..fault(name, logged, inject) }
}

/// What the guest does not share with the host, and may be harmed.
#[derive(Clone, Copy)]
pub(super) struct Own {
    pub(super) api_server: bool,
    pub(super) clock: bool,
}

/// All faults while VIPs are addresses of kube-ipvs0.
pub(super) fn with_addresses(own: Own) -> Vec<Fault> {
    let server = if own.api_server { SERVER } else { &[] };
    let clock = if own.clock { process::CLOCK } else { &[] };
    let others = [
        CONNECTIONS,
        TENANT,
        endpoints::FAULTS,
        kernel::IPVS,
        kernel::DEVICE,
        kernel::NF_TABLES,
        kernel::DIRECT_RETURN,
        process::FAULTS,
    ];
    [server, clock].into_iter().chain(others).flatten().copied().collect()
}

/// The faults that differ if VIPs are routes.
pub(super) fn with_routes() -> Vec<Fault> {
    kernel::ROUTES.to_vec()
}

impl Own {
    pub(super) const EVERYTHING: Self = Self { api_server: true, clock: true };
}

/// What the log says when a watch has ended and cannot be restarted.
const UNWATCHED: &str = "cannot watch";

/// What it says about the version at which it would have resumed.
const EXPIRED: &str = "(410)";

const SERVER: &[Fault] = &[
    fault("API server killed and started again", Some(UNWATCHED), killed),
    fault("API server stopped for seconds (SIGSTOP)", None, stopped),
    fault("API server restarted over a compacted etcd: the watch has expired (410)", Some(EXPIRED), expired),
];

const CONNECTIONS: &[Fault] = &[fault("way to the API server closed for seconds", None, cut_off)];

const TENANT: &[Fault] =
    &[fault("a tenant replaces a large slice again and again", None, large_slice_replaced)];

/// Kills the server. Afterwards the kernel must get what is written as soon as the server accepts it.
fn killed(scene: &mut Scene<'_>) -> Result<()> {
    scene.stage.server.restart_api_server()?;
    scene.change_probe()
}

fn stopped(scene: &mut Scene<'_>) -> Result<()> {
    let server = scene.stage.server.api_server_process()?;
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
    scene.stage.server.restart_api_server()?;
    scene.change_probe()?;
    scene.stage.server.compact()?;
    scene.reconnect()
}

/// A Service with many endpoints comes, all of these are replaced, and it goes. Another Service, whose endpoint changes
/// meanwhile, does not wait for that.
fn large_slice_replaced(scene: &mut Scene<'_>) -> Result<()> {
    const LARGE: &str = "large";
    scene.write(&Write::Create(Kind::Service, objects::service(LARGE, &PORTS, false)))?;
    scene.write(&Write::Create(Kind::Slice, objects::large_slice(LARGE, 0)))?;
    let replaced = (1..=3).try_for_each(|round| {
        scene.write(&Write::Replace(Kind::Slice, objects::large_slice(LARGE, round)))?;
        scene.change_probe()?;
        scene.probe_follows()
    });
    scene.write(&Write::Delete(Kind::Service, LARGE.to_owned()))?;
    scene.write(&Write::Delete(Kind::Slice, LARGE.to_owned()))?;
    replaced
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_fault_has_a_name_of_its_own() {
        let all = [with_addresses(Own::EVERYTHING), with_routes()].concat();
        let names: BTreeSet<_> = all.iter().map(|fault| fault.name).collect();
        assert_eq!(names.len(), all.len());
    }
}
