//! The daemon: connects the source, the writer thread, what it serves and the checks of the node.

mod control_handler;
mod kernel;
mod observers;
mod pod_cidrs;
mod reload;
mod without_daemon;
mod writer;

use std::{
    collections::BTreeSet,
    convert::Infallible,
    path::Path,
    pin::pin,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use ipvs::{Family, KernelIpvs};
use kubernetes::api::Watches;
use netfilter::{Policy, conntrack::KernelConntrack};
use reconciler::{Callbacks, Handle, Timing};
use service::{Options, State, one_line};
use tokio::{runtime::Builder, select, time::sleep};
use tracing::info;

use crate::{
    checks::{self, FoundElsewhere, Modules},
    config::{self, Settings},
    conntrack,
    direct_return::{DirectReturn, FilteredTunnels},
    events::{Cause, Outbox},
    logging::{LineLimit, LogLevelHandle, SAID_EVERY},
    node::{families, requirements, sysctl::Sysctl},
    process::{self, TerminationSignals, VERSION},
    serve::{
        control,
        http::{
            Pages,
            endpoint::{self, HttpEndpoint, UnboundEndpoints},
        },
        packets::Packets,
    },
    source::{
        Source,
        nodes::{KnownNode, OtherNodes},
    },
    takeover::leftovers::{self, AnotherProxy, NodeRules},
};
use control_handler::{ControlHandler, HeldAdvice, Identity, Problems};
use kernel::OpenedKernel;
use observers::{Reported, Shown, observers};
use pod_cidrs::PodCidrGuard;
use reload::Credentials;
pub use without_daemon::WithoutDaemon;
use writer::WriterThread;

/// The threads of the runtime.
const WORKERS: usize = 2;

/// How long the daemon may take to end. The kubelet kills a pod 30 seconds after SIGTERM unless its manifest says
/// otherwise. The longest wait is that for the writer thread (`WriterThread::stop`).
const LONGEST_END: Duration = Duration::from_secs(25);
/// How long it waits for other threads at the end: one may hang in the kernel, or wait for a program.
const LAST_THREADS: Duration = Duration::from_secs(2);

/// Runs until a signal ends it, or `reread` finds another configuration than `settings`. What was programmed stays in
/// the kernel: traffic goes on without the daemon.
pub fn run(
    settings: &Settings,
    log_level: LogLevelHandle,
    reread: impl Fn() -> Result<Settings, config::Error>,
) -> anyhow::Result<()> {
    // The writer thread does the work. This runtime has only timers, watches and sockets.
    let runtime = process::try_threads(WORKERS)
        .and_then(|()| Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build());
    let runtime = runtime.context("cannot start the threads of the runtime")?;
    let end = runtime.block_on(take_turn(settings, log_level, reread));
    runtime.shutdown_timeout(LAST_THREADS);
    end
}

/// Waits until no other daemon runs on this node, then runs.
async fn take_turn(
    settings: &Settings,
    log_level: LogLevelHandle,
    reread: impl Fn() -> Result<Settings, config::Error>,
) -> anyhow::Result<()> {
    let mut signals = TerminationSignals::new()?;
    tokio::spawn(TerminationSignals::new()?.enforce(LONGEST_END));
    // First all that can fail without changing the kernel.
    let modules = Modules::read(Path::new("/"), &Sysctl::default().release());
    requirements::scheduler_module(settings.services.scheduler, |module| modules.lacks(module))?;
    let credentials = Credentials::for_settings(settings);
    let source = Source::open(settings).await?;
    let outbox = source.outbox(&settings.services.node_name);
    let advice = HeldAdvice::default();
    let writer = OnceLock::new();
    let suits = async |other: &Settings| families::suits(other, writer.get().map(WriterThread::handle)).await;
    let unusable = advice.config_file.clone();
    let mut end = pin!(async {
        select! {
            error = reload::configuration_changed(settings, reread, suits, unusable, &outbox) => Err(error),
            error = credentials.changed(settings) => Err(error),
            () = signals.received() => Ok(()),
        }
    });
    // One proxy per node: a second one does not even probe the kernel.
    let control = select! {
        bound = control::ControlServer::bind_in_turn(&settings.control_socket) => bound?,
        end = &mut end => return end,
    };
    // Another daemon may begin when no thread of this one is left: two writers would undo each other's work.
    control.keep_lock_until_exit();
    let ipvs = requirements::open_ipvs()?;
    if let Some(refused) = control.refused() {
        outbox.post_about_node(Cause::NO_CONTROL_SOCKET, one_line(refused));
    }
    let watches = Watches::default();
    let identity = Identity::new(&settings.services.node_name, Instant::now(), &source, &watches);
    let node = KnownNode::new(&settings.services.node_name, source.unknown_node());
    let manifests = source.manifest_problems();
    let problems = Problems { watches, manifests, node, unbound: UnboundEndpoints::default() };
    let (source, outbox, advice) = (&source, &outbox, &advice);
    let writer = &writer;
    let packets = Packets::default();
    let daemon =
        Daemon { settings, source, outbox, packets, advice, problems, identity, control, log_level, writer };

    // Boxed because it is large, so that it is moved once.
    let mut served = Box::pin(daemon.serve(ipvs));
    let end = select! {
        end = end => end,
        end = &mut served => end,
    };
    // Whatever the end, the writer thread must not be left behind. `served` is not dropped before: health checks are
    // answered until the last sync has ended.
    let Some(writer) = writer.get() else { return end };
    let stopped = writer.stop().await;
    info!("kube-ipvs is exiting; the kernel keeps what was programmed");
    end.and(stopped)
}

/// The only proxy of this node.
struct Daemon<'a> {
    settings: &'a Settings,
    source: &'a Source,
    outbox: &'a Outbox,
    packets: Packets,
    advice: &'a HeldAdvice,
    problems: Problems,
    identity: Identity,
    control: control::ControlServer,
    log_level: LogLevelHandle,
    /// The writer thread, once it has started.
    writer: &'a OnceLock<WriterThread>,
}

impl Daemon<'_> {
    /// Serves health checks and metrics, and programs the kernel. Returns on an error.
    async fn serve(&self, mut ipvs: KernelIpvs) -> anyhow::Result<()> {
        let settings = self.settings;
        requirements::scheduler(&mut ipvs, settings.services.scheduler)?;
        kernel::way_to_api_server::clear(&mut ipvs, &self.source.api_server_addresses().await);
        let families = families::families();
        families::serves(&families, settings.effective.bind_address())?;
        let shown = Shown::new(self, &families)?;
        // Health checks and metrics are answered even while the daemon waits for its pod CIDRs.
        select! {
            biased;
            error = self.show(HttpEndpoint::health_checks(settings), Arc::new(shown.health.clone())) => Err(error),
            error = self.show(HttpEndpoint::metrics(settings), Arc::clone(&shown.pages)) => Err(error),
            end = self.program(ipvs, families, &shown) => end,
        }
    }

    async fn show(&self, place: HttpEndpoint, pages: Arc<impl Pages>) -> anyhow::Error {
        let (hard_fail, unbound) = (self.settings.bind_address_hard_fail, &self.problems.unbound);
        endpoint::serve_endpoint(place, hard_fail, pages, unbound, self.outbox).await
    }

    /// Opens the kernel once it is known how pods are recognised, and works.
    async fn program(
        &self,
        ipvs: KernelIpvs,
        families: BTreeSet<Family>,
        shown: &Shown,
    ) -> anyhow::Result<()> {
        let (local_traffic, guard) = pod_cidrs::local_traffic(self, shown).await?;
        let opened = kernel::open(self.settings, ipvs, self.settings.policy(local_traffic), families)?;
        process::adjust_oom_score(self.settings.oom_score_adj);
        self.announce(&opened);
        Box::pin(self.work(opened, guard, shown)).await
    }

    fn announce(&self, OpenedKernel { binding, families, .. }: &OpenedKernel) {
        let Options { node_name, scheduler, .. } = &self.settings.services;
        let families = families.iter().map(Family::to_string).collect::<Vec<_>>().join(", ");
        info!(node = &**node_name, %scheduler, %binding, families, "kube-ipvs starts");
        self.outbox.post_about_node(Cause::STARTING, format!("kube-ipvs {VERSION}"));
    }

    /// The handler of the control socket. Before the writer thread and the kernel are there, `writer` is what the
    /// daemon waits for.
    fn control_handler(
        &self,
        Shown { pages, answers, .. }: &Shown,
        writer: Result<(Handle, Policy), String>,
        kernel: Option<control::KernelInfo>,
    ) -> ControlHandler {
        ControlHandler {
            identity: self.identity.clone().with(kernel),
            writer,
            problems: self.problems.clone(),
            packets: self.packets.clone(),
            advice: self.advice.clone(),
            answers: answers.clone(),
            log_level: self.log_level.clone(),
            pages: Arc::clone(pages),
        }
    }

    /// Starts the writer thread and everything connected to it, and follows the source and the kernel.
    async fn work(&self, opened: OpenedKernel, guard: PodCidrGuard, shown: &Shown) -> anyhow::Result<()> {
        let Self { settings, source, outbox, problems, control, .. } = self;
        let OpenedKernel { kernel, nf_tables_port, binding, families, policy, tcp_timeout, found } = opened;
        let (observers, reported) = observers(self, &families, shown);
        let Reported { health_ports, rules_in_place, first_sync_ended, peers_to_ask, nodes_needed } =
            reported;
        let knows_pods = Family::BOTH.into_iter().filter(|it| policy.local_traffic.is_known(*it)).collect();
        let untracked_pods = policy.untracked_pods.clone();
        let options = Options { knows_pods, untracked_pods, ..settings.services.clone() };
        shown.metrics.set_tcp_timeout(tcp_timeout);
        let kernel_calls = shown.metrics.kernel_calls();
        let notices = Outbox::clone(outbox);
        let writer = WriterThread::start(
            State::new(options.clone()),
            kernel_calls.counted(kernel),
            settings.ownership(families.clone()),
            Timing { tcp_timeout, ..settings.timing },
            Callbacks {
                notices: Box::new(move |notice| notices.post(notice)),
                stale_flows: conntrack::start(KernelConntrack::open()?, shown.metrics.conntrack_cleanup())
                    .context("cannot start the conntrack thread")?,
                observers,
            },
        )?;
        let writer = self.writer.get_or_init(|| writer);
        let handle = writer.handle();
        let counters = || Ok(kernel_calls.counted_ipvs(KernelIpvs::open()?));
        shown.traffic.start(settings.service_metrics, counters, handle.clone())?;
        shown
            .answers
            .start(KernelIpvs::open()?, handle.clone(), Outbox::clone(outbox))
            .context("cannot start the thread that finds out whether endpoints answer")?;

        let another_proxy = AnotherProxy::default();
        let filtered_tunnels = FilteredTunnels::new(settings.services.tunnel.kind);
        let (recheck, our_rules_applied) = checks::start(
            settings,
            policy.clone(),
            handle.clone(),
            FoundElsewhere {
                another_proxy: another_proxy.clone(),
                instance_lock: control.instance_lock(),
                filtered_tunnels: filtered_tunnels.clone(),
            },
            Outbox::clone(outbox),
            self.advice.checks.clone(),
        );
        let node = NodeRules::new(policy.clone());
        let leftovers = leftovers::remove(
            rules_in_place,
            our_rules_applied,
            node,
            settings.timing.sync_period,
            another_proxy,
        );

        let on_change = |change| {
            nodes_needed.on_change(&change, &options);
            guard.on_change(&change);
            shown.health.on_change(&change);
            problems.node.on_change(&change);
            handle.change(change);
        };
        let direct_return = DirectReturn {
            node_name: &settings.services.node_name,
            health_port: settings.port_for_peers(),
            filtered: filtered_tunnels,
            packets: self.packets.clone(),
            send: &on_change,
        };
        let nodes = OtherNodes {
            source,
            node_name: &settings.services.node_name,
            watches: &problems.watches,
            first_sync_ended: first_sync_ended.clone(),
            send: &on_change,
        };
        select! {
            never = nodes.follow(nodes_needed.receiver()) => match never {},
            never = source.follow_api_server(&on_change) => match never {},
            error = source.follow(&settings.services.node_name, &problems.watches, &on_change) => Err(error),
            error = guard.broken() => Err(error),
            never = problems.node.report(outbox) => match never {},
            error = kernel::kube_ipvs0::follow(binding, &families, handle, first_sync_ended.clone()) => Err(error),
            never = kernel::notifications::follow_nf_tables(nf_tables_port, handle, &recheck, first_sync_ended) => match never {},
            never = health_ports.run() => match never {},
            never = leftovers => match never {},
            never = log_dropped(self.log_level.limit()) => match never {},
            never = self.packets.follow() => match never {},
            never = direct_return.follow(peers_to_ask) => match never {},
            () = control.serve(self.control_handler(shown, Ok((handle.clone(), policy)), Some(found))) => Ok(()),
            () = writer.ended() => bail!("the writer thread has ended unexpectedly"),
        }
    }
}

/// Logs how many lines were dropped, because there were too many like them.
async fn log_dropped(limit: &LineLimit) -> Infallible {
    loop {
        sleep(SAID_EVERY).await;
        limit.say_dropped();
    }
}
