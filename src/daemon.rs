//! The daemon: what is around the writer thread.

mod conntrack;
mod links;
mod nf_tables;
mod node;
mod pod_cidrs;
mod source;

use std::{collections::BTreeSet, thread, time::Duration};

use anyhow::{Context, bail};
use netfilter::{KernelNetfilter, Policy, conntrack::KernelConntrack};
use reconciler::{Handle, Notices, Outlets, Timing};
use service::{Options, State};
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
    task::spawn_blocking,
};
use tracing::info;
use watcher::{Kernel, Ownership, api::Troubles};

use crate::{
    advice::{Doorbell, Held, Lookout, Rounds},
    config::Settings,
    control::{self, Answers, Request, Response},
    events::Outbox,
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

    let (local_traffic, guard) = tokio::select! {
        known = pod_cidrs::local_traffic(&settings, &source, &control) => known?,
        signal = stop_signal() => return signal,
    };
    let policy = settings.policy(local_traffic);

    Sysctl::default().prepare(settings.strict_arp)?;
    let binding = links::vip_binding(settings.vip_binding);
    let families = node::families();
    let netfilter = KernelNetfilter::open(&policy)?;
    for &family in &families {
        preflight::nf_tables(family, netfilter.missing_features(family))?;
    }
    let our_port = netfilter.port();
    let kernel = Kernel {
        ipvs: Box::new(ipvs),
        netfilter: Box::new(netfilter),
        links: Box::new(links::open(binding)?),
    };
    info!(node = settings.node_name, scheduler = %settings.scheduler, ?binding, ?families, "kube-ipvs starts");

    let outbox = source.outbox(&settings.node_name);
    let (handle, writer) = start_writer(&settings, kernel, families, notices(outbox.clone()))?;
    let mut writer = spawn_blocking(move || writer.join());
    let (advice, doorbell) = look_at_node(settings.sync_period, policy, handle.clone(), outbox);
    let troubles = Troubles::default();
    let operator = Operator { handle: handle.clone(), troubles: troubles.clone(), advice };
    // When the writer thread is gone the daemon ends; until then there is nobody to tell.
    let news = |change| {
        guard.hear(&change);
        _ = handle.change(change);
    };
    let stop = tokio::select! {
        error = source.follow(&settings.node_name, &troubles, news) => Err(error),
        error = guard.broken() => Err(error),
        error = links::follow(binding, &handle) => Err(error),
        never = nf_tables::follow(our_port, &handle, &doorbell) => match never {},
        () = control.serve(operator) => Ok(()),
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
    advice: Held,
}

impl Answers for Operator {
    fn answer(&self, request: Request) -> Response {
        let answer = match request {
            Request::Resync => self.handle.resync().map(Response::Report),
            Request::Status => self.handle.status().map(|mut programmed| {
                programmed.problems.splice(0..0, self.troubles.lines());
                let advice = self.advice.advice();
                Response::Status(Box::new(control::Status { programmed, advice }))
            }),
        };
        answer.unwrap_or_else(|stopped| Response::Error(stopped.to_string()))
    }
}

/// What becomes of notices: Events, if there is where to post them.
fn notices(outbox: Option<Outbox>) -> Notices {
    match outbox {
        Some(outbox) => Box::new(move |notice| outbox.post(notice)),
        None => Box::new(drop),
    }
}

/// Looks at the node from the first sync on. Returns what is found, and the bell to ring when the host's
/// firewall has changed.
fn look_at_node(
    period: Duration,
    policy: Policy,
    handle: Handle,
    outbox: Option<Outbox>,
) -> (Held, Doorbell) {
    let held = Held::default();
    let mut lookout = Lookout::new(handle, policy, held.clone(), move |advice| {
        if let Some(outbox) = &outbox {
            outbox.post_about_node(advice.cause.reason(), advice.to_string());
        }
    });
    let (rounds, doorbell) = Rounds::new(period);
    tokio::spawn(rounds.run(move || lookout.look()));
    (held, doorbell)
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
    let stale_flows = conntrack::start(KernelConntrack::open()?).context("cannot start a thread")?;
    let outlets = Outlets { notices, stale_flows };
    let started = reconciler::start(State::new(options), kernel, ours, timing, outlets);
    started.context("cannot start the writer thread")
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
