//! The daemon: what is around the writer thread.

mod node;
mod source;

use std::{collections::BTreeSet, thread, time::Duration};

use anyhow::{Context, anyhow, bail};
use dummy_interface::{Change, Changed, KernelLinks, Links, Monitor, VipBinding};
use netfilter::KernelNetfilter;
use reconciler::{Handle, Notices, Timing};
use service::{Options, State};
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
    task::spawn_blocking,
    time::sleep,
};
use tracing::{info, warn};
use watcher::{Kernel, Ownership, api::Troubles, one_line};

use crate::{
    config,
    config::Settings,
    control::{self, Answers, Request, Response},
    preflight,
    sysctl::Sysctl,
};
use source::Source;

/// Runs until it is told to stop. What was programmed stays in the kernel: traffic goes on without us.
pub fn run(settings: Settings) -> anyhow::Result<()> {
    // The work is done by the writer thread; here are only timers, watches and sockets.
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(serve(settings))
}

async fn serve(settings: Settings) -> anyhow::Result<()> {
    // First whatever can be wrong without the kernel having been changed.
    let source = Source::open(&settings).await?;
    let mut ipvs = preflight::open_ipvs()?;
    // One proxy to a node: a second one does not even probe.
    let control = control::Server::bind(&settings.control_socket)?;
    preflight::scheduler(&mut ipvs, settings.scheduler)?;

    Sysctl::default().prepare(settings.strict_arp)?;
    let binding = vip_binding(settings.vip_binding);
    let kernel = Kernel {
        ipvs: Box::new(ipvs),
        netfilter: Box::new(KernelNetfilter::open(&settings.policy)?),
        links: Box::new(links(binding)?),
    };
    let families = node::families();
    info!(node = settings.node_name, scheduler = %settings.scheduler, ?binding, ?families, "kube-ipvs starts");

    let notices = source.notices(&settings.node_name);
    let (handle, writer) = start_writer(&settings, kernel, families, notices)?;
    let mut writer = spawn_blocking(move || writer.join());
    let troubles = Troubles::default();
    let stop = tokio::select! {
        error = source.follow(&settings.node_name, &troubles, &handle) => Err(error),
        error = follow_kernel(binding, &handle) => Err(error),
        () = control.serve(Operator { handle: handle.clone(), troubles: troubles.clone() }) => Ok(()),
        signal = stop_signal() => signal,
        _ = &mut writer => bail!("the writer thread has ended unexpectedly"),
    };
    // A sync that is running ends first. If the thread is gone there is nothing left to stop.
    if handle.stop().is_ok() {
        drop(writer.await);
    }
    // Only now may another daemon begin: two writers would undo each other's work.
    drop(control);
    info!("kube-ipvs ends; the kernel keeps what was programmed");
    stop
}

/// Answers the control socket.
struct Operator {
    handle: Handle,
    troubles: Troubles,
}

impl Answers for Operator {
    fn answer(&self, request: Request) -> Response {
        let answer = match request {
            Request::Resync => self.handle.resync().map(Response::Report),
            Request::Status => self.handle.status().map(|mut status| {
                status.problems.splice(0..0, self.troubles.lines());
                Response::Status(Box::new(status))
            }),
        };
        answer.unwrap_or_else(|stopped| Response::Error(stopped.to_string()))
    }
}

fn start_writer(
    settings: &Settings,
    kernel: Kernel,
    families: BTreeSet<ipvs::Family>,
    notices: Notices,
) -> anyhow::Result<(Handle, thread::JoinHandle<()>)> {
    let options = Options {
        node_name: settings.node_name.as_str().into(),
        scheduler: settings.scheduler,
        node_port_addresses: settings.node_port_addresses.clone(),
        bind_address: settings.bind_address,
        external_ips: settings.external_ips,
    };
    let ours = Ownership { families, exclude: settings.exclude_cidrs.clone() };
    let timing = Timing {
        sync_period: settings.sync_period,
        min_sync_period: settings.min_sync_period,
        drain_timeout: settings.drain_timeout,
    };
    let started = reconciler::start(State::new(options), kernel, ours, timing, notices);
    started.context("cannot start the writer thread")
}

/// kube-ipvs0 is made before anything else: Calico's Felix looks for the name once, at its own start.
fn links(binding: VipBinding) -> anyhow::Result<KernelLinks> {
    let mut links = KernelLinks::open(binding)?;
    if !links.observe()?.device
        && let Some(failed) = links.apply(&[Change::EnsureDevice])?.first()
    {
        bail!("cannot create {}: {}", dummy_interface::DEVICE, failed.errno);
    }
    Ok(links)
}

fn vip_binding(wanted: config::VipBinding) -> VipBinding {
    match wanted {
        config::VipBinding::Address => VipBinding::Address,
        config::VipBinding::Route => outward(VipBinding::Route { source_v4: None, source_v6: None }),
    }
}

/// The binding with the source addresses that the node has now.
fn outward(binding: VipBinding) -> VipBinding {
    match binding {
        VipBinding::Address => VipBinding::Address,
        VipBinding::Route { .. } => {
            let (source_v4, source_v6) = node::outward_addresses();
            VipBinding::Route { source_v4, source_v6 }
        }
    }
}

/// Passes on what the kernel says of kube-ipvs0 and the VIPs, for ever; returns only with a change that
/// asks for a new start.
async fn follow_kernel(binding: VipBinding, handle: &Handle) -> anyhow::Error {
    loop {
        match Monitor::start(binding) {
            Ok(mut monitor) => {
                // Whatever changed before the subscription was not told.
                let mut changed = Changed::everything();
                loop {
                    if changed.node_addresses && outward(binding) != binding {
                        return anyhow!(
                            "this node's address has changed, and --vip-binding=route names it: start again"
                        );
                    }
                    // When the writer thread is gone the daemon ends.
                    _ = handle.kernel_changed(changed);
                    changed = match monitor.changed().await {
                        Ok(changed) => changed,
                        Err(error) => {
                            warn!(
                                "no longer told of changes to kube-ipvs0, subscribing again: {}",
                                one_line(&error)
                            );
                            break;
                        }
                    };
                }
            }
            Err(error) => {
                warn!("not told of changes to kube-ipvs0, the periodic sync sees them: {}", one_line(&error));
            }
        }
        sleep(Duration::from_secs(1)).await;
    }
}

async fn stop_signal() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
