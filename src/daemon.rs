//! The daemon: what is around the writer thread.

mod config_file;
mod conntrack;
mod kernel;
mod links;
mod listeners;
mod lookout;
mod nf_tables;
mod node;
mod oom;
mod operator;
mod pages;
mod pod_cidrs;
mod source;
mod stop;
mod writer;

use std::{
    pin::{Pin, pin},
    sync::Arc,
};

use anyhow::{Context, bail};
use ipvs::KernelIpvs;
use tokio::{runtime::Builder, select, task::spawn_blocking};
use tracing::info;
use watcher::api::Troubles;

use crate::{
    config::{self, Settings},
    control,
    events::Cause,
    health::Health,
    leftovers::{self, ThisNode},
    preflight,
};
use kernel::Opened;
use listeners::Listeners;
use operator::Operator;
use source::Source;
use stop::Stop;

/// Runs until it is told to stop, or `reread` finds another configuration than `settings`. What was programmed
/// stays in the kernel: traffic goes on without us.
pub fn run(settings: &Settings, reread: impl Fn() -> Result<Settings, config::Error>) -> anyhow::Result<()> {
    // The work is done by the writer thread; here are only timers, watches and sockets.
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    runtime.block_on(async { take_turn(settings, pin!(config_file::changed(settings, reread))).await })
}

/// Waits until no other daemon runs on this node, then is the one that does. `reconfigured` ends with what to say
/// when the daemon is to be started again.
async fn take_turn(
    settings: &Settings,
    mut reconfigured: Pin<&mut impl Future<Output = anyhow::Error>>,
) -> anyhow::Result<()> {
    let mut stop = Stop::new()?;
    // First whatever can be wrong without the kernel having been changed.
    let source = Source::open(settings).await?;
    let ipvs = preflight::open_ipvs()?;
    // One proxy to a node: a second one does not even probe.
    let control = select! {
        bound = control::Server::bind_in_turn(&settings.control_socket) => bound?,
        error = &mut reconfigured => return Err(error),
        () = stop.asked() => return Ok(()),
    };
    // Boxed: it is large, and moved into place once.
    let end = Box::pin(serve(settings, &source, ipvs, &control, reconfigured, stop)).await;
    // Only now may another daemon begin: two writers would undo each other's work.
    drop(control);
    end
}

async fn serve(
    settings: &Settings,
    source: &Source,
    mut ipvs: KernelIpvs,
    control: &control::Server,
    mut reconfigured: Pin<&mut impl Future<Output = anyhow::Error>>,
    mut stop: Stop,
) -> anyhow::Result<()> {
    preflight::scheduler(&mut ipvs, settings.scheduler)?;
    let families = node::families();
    node::serves(&families, settings.effective.bind_address())?;
    let outbox = source.outbox(&settings.node_name);

    // Whoever asks whether the daemon is alive gets an answer also while it waits.
    let health = Health::new(families.clone(), settings.sync_period, source.unknown_node());
    let mut health_page = pin!(pages::show(
        ("health checks", Cause::NO_HEALTH_CHECKS),
        settings.healthz_bind_address,
        settings,
        Arc::new(health.clone()),
        outbox.as_ref(),
    ));
    let (local_traffic, guard) = select! {
        known = pod_cidrs::local_traffic(settings, source, control) => known?,
        error = &mut reconfigured => return Err(error),
        error = &mut health_page => return Err(error),
        () = stop.asked() => return Ok(()),
    };

    let policy = settings.policy(local_traffic);
    let Opened { kernel, nf_tables_port, binding } = kernel::open(settings, ipvs, &policy, &families)?;
    oom::adjust(settings.oom_score_adj);
    info!(node = settings.node_name, scheduler = %settings.scheduler, ?binding, ?families, "kube-ipvs starts");
    if let Some(outbox) = &outbox {
        outbox.post_of_proxy(Cause::STARTING, concat!("kube-ipvs ", env!("CARGO_PKG_VERSION")).to_owned());
    }

    let Listeners { observers, health_ports, metrics, tidying, first_sync } =
        Listeners::new(settings, &families, &health, outbox.clone())?;
    let (handle, writer) = writer::start(settings, kernel, families, outbox.clone(), observers, tidying)?;
    let mut writer = spawn_blocking(move || writer.join());
    let (advice, doorbell) =
        lookout::start(settings.sync_period, policy.clone(), handle.clone(), outbox.clone());
    let leftovers = leftovers::remove(first_sync, advice.looked(), ThisNode::new(policy));
    let troubles = Troubles::default();
    let operator = Operator { handle: handle.clone(), troubles: troubles.clone(), advice };
    // When the writer thread is gone the daemon ends; until then there is nobody to tell.
    let news = |change| {
        guard.hear(&change);
        health.hear(&change);
        _ = handle.change(change);
    };

    let end = select! {
        error = source.follow(&settings.node_name, &troubles, news) => Err(error),
        error = guard.broken() => Err(error),
        error = &mut reconfigured => Err(error),
        error = links::follow(binding, &handle) => Err(error),
        never = nf_tables::follow(nf_tables_port, &handle, &doorbell) => match never {},
        error = &mut health_page => Err(error),
        error = pages::show(
            ("metrics", Cause::NO_METRICS),
            settings.metrics_bind_address,
            settings,
            Arc::new(metrics),
            outbox.as_ref(),
        ) => Err(error),
        never = health_ports.run() => match never {},
        never = leftovers => match never {},
        () = control.serve(operator) => Ok(()),
        () = stop.asked() => Ok(()),
        _ = &mut writer => bail!("the writer thread has ended unexpectedly"),
    };
    // A sync that is running ends first. If the thread is gone there is nothing left to stop.
    if handle.stop().is_ok() {
        drop(writer.await);
    }
    info!("kube-ipvs ends; the kernel keeps what was programmed");
    end
}
