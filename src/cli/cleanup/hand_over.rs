//! `kube-ipvs cleanup --hand-over`.

use std::{
    fmt::Display,
    io,
    path::Path,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use ipvs::Ipvs;
use service::one_line;
use tokio::{select, sync::oneshot, time::sleep};

use super::{
    super::output::{Time, say},
    Format, answers_yes, print,
};
use crate::{
    config::{GoDuration, InvalidDuration},
    node::requirements,
    process::TerminationSignals,
    takeover::{
        cleanup::cut,
        hand_over::{
            NoSuccessor, OpenConnections, Preview, Served, hand_over, no_default_route,
            nothing_unknown_is_left, preview,
        },
        instance_lock::{InstanceLock, InstanceLockError},
        live_proxy::LiveProxy,
    },
};

/// How long kube-proxy and its rules are waited for: it may have to be scheduled and pulled.
const PATIENCE: Duration = Duration::from_secs(600);
/// The least time between two counts.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause after a count, as a multiple of its duration.
const PAUSE_PER_COUNT: u32 = 20;
/// How long clients on the node may take to notice that their connections are cut. Programs of Kubernetes ask over an
/// idle connection every 30 seconds.
const TIME_FOR_RESETS: Duration = Duration::from_secs(40);
/// How often the number of open connections is printed.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// Whether to hand over, and how.
#[derive(clap::Args, Debug)]
pub(super) struct HandOver {
    /// Leave new connections to a kube-proxy in nftables or iptables mode, and remove everything of kube-ipvs when the
    /// open ones have ended; virtual servers of other programs stay
    #[arg(
        id = "hand_over",
        long = "hand-over",
        conflicts_with_all = ["keep_ipvs", "kube_proxy_nftables", "force", "config", "ipvs_exclude_cidrs"]
    )]
    pub(super) is_asked: bool,
    /// Time that open connections have to end before they are cut
    #[arg(long, value_name = "DURATION", default_value = "24h", requires = "hand_over", value_parser = limit)]
    pub(super) wait: Duration,
}

fn limit(text: &str) -> Result<Duration, String> {
    let duration: GoDuration = text.parse().map_err(|error: InvalidDuration| error.to_string())?;
    duration.duration().ok_or_else(|| "expected 0 or more".to_owned())
}

/// Prints what a hand-over would wait for and remove. Writes nothing.
pub(super) fn dry_run(limit: Duration, control_socket: &Path, format: Format) -> anyhow::Result<ExitCode> {
    requirements::net_admin()?;
    let Preview { mut report, open } = preview(control_socket)?;
    if limit.is_zero() {
        report.cuts(&open);
    } else if open.count().total() > 0 {
        report.waits.push(format!("{}, which have {} to end", open.count(), Time(limit)));
    }
    print(format, &report)
}

/// Hands new connections to a kube-proxy in another mode, and removes everything of ours when the open ones have ended,
/// or `limit` is over. If `asks`, a person confirms it first.
pub(super) fn run(
    limit: Duration,
    asks: bool,
    control_socket: &Path,
    format: Format,
) -> anyhow::Result<ExitCode> {
    requirements::net_admin()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // As process 1 of a container it would not end by a signal otherwise.
        let mut signals = TerminationSignals::new()?;
        select! {
            code = go(limit, asks, control_socket, format) => code,
            () = signals.received() => {
                bail!("interrupted: what open connections need is kept. Run the command again, or start kube-ipvs")
            }
        }
    })
}

async fn go(limit: Duration, asks: bool, control_socket: &Path, format: Format) -> anyhow::Result<ExitCode> {
    let turn = patiently(|| try_turn(control_socket)).await.context("nothing was changed")?;
    let mut open = OpenConnections::none();
    if let Some(proxy) = &turn.successor {
        for family in turn.served.families_without_a_route() {
            warn(no_default_route(family));
        }
        if asks {
            confirm(proxy, limit).await?;
            turn.served.still_served_by(proxy).context("nothing was changed")?;
        }
        let (found, refused) = hand_over(&turn.served).context("cannot hand over new connections")?;
        open = found;
        for refused in refused {
            warn(format_args!("cannot {refused}"));
        }
        say(format_args!("handed over: new connections go to the proxy in {} mode", proxy.mode()));
        ended(&mut open, limit).await;
        patiently(|| Ok(turn.served.still_served_by(proxy)?)).await.context("nothing was removed")?;
    }
    let mut cleaned = cut(&turn.served, &open);
    if !cleaned.cut.is_empty() {
        sleep(TIME_FOR_RESETS).await;
    }
    cleaned.after_the_cut();
    print(format, &cleaned)
}

/// Asks a person. A signal ends the command meanwhile, so the terminal is read by a thread of its own.
async fn confirm(proxy: &LiveProxy, limit: Duration) -> anyhow::Result<()> {
    say(format_args!(
        "The proxy in {} mode gets all new connections. Open ones have {} to end; then everything of kube-ipvs is \
         removed. Hand over? [y/N]",
        proxy.mode(),
        Time(limit)
    ));
    let (answer, answered) = oneshot::channel::<io::Result<bool>>();
    thread::spawn(move || answer.send(answers_yes()));
    ensure!(answered.await.context("reading the answer")??, "nothing was changed");
    Ok(())
}

fn warn(what: impl Display) {
    say(format_args!("kube-ipvs: warning: {what}"));
}

/// What a hand-over needs.
struct Turn {
    served: Served,
    /// The proxy that takes over; `None` where nothing is served.
    successor: Option<LiveProxy>,
    /// Keeps a kube-ipvs from starting meanwhile.
    _alone: InstanceLock,
}

/// Repeats until it succeeds, while the error may be temporary.
async fn patiently<T>(mut attempt: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let started = Instant::now();
    let mut said = String::new();
    loop {
        let why = match attempt() {
            Ok(done) => return Ok(done),
            Err(error) if started.elapsed() >= PATIENCE || !passes(&error) => return Err(error),
            Err(error) => format!("{error:#}"),
        };
        if said != why {
            say(format_args!("waiting: {why}"));
            said = why;
        }
        sleep(PAUSE).await;
    }
}

/// Succeeds if no kube-ipvs runs, and another proxy has rules for all that is served. A kube-ipvs may start until then.
fn try_turn(control_socket: &Path) -> anyhow::Result<Turn> {
    let alone = InstanceLock::acquire(control_socket).map_err(InstanceLockError::named)?;
    let served = Served::read()?;
    let successor = if served.is_empty() {
        nothing_unknown_is_left()?;
        None
    } else {
        Some(served.successor()?)
    };
    Ok(Turn { served, successor, _alone: alone })
}

/// Whether the error may be temporary.
fn passes(error: &anyhow::Error) -> bool {
    match (error.downcast_ref(), error.downcast_ref()) {
        (Some(InstanceLockError::AnotherRuns { .. }), _) => true,
        (_, Some(NoSuccessor::OtherMode(_))) => false,
        (_, Some(_)) => true,
        _ => error.is::<netfilter::Error>(),
    }
}

/// Waits until no connection is open, or the limit is over.
async fn ended(open: &mut OpenConnections<impl Ipvs>, limit: Duration) {
    let started = Instant::now();
    let mut said: Option<Instant> = None;
    loop {
        let began = Instant::now();
        let recounted = open.recount();
        let took = began.elapsed();
        let left = limit.saturating_sub(started.elapsed());
        if open.count().total() == 0 || left.is_zero() {
            return;
        }
        if said.is_none_or(|said| said.elapsed() >= SAID_EVERY) {
            said = Some(began);
            say(format_args!("open: {}, which have {} to end", open.count(), Time(left)));
            open.unread().into_iter().for_each(warn);
            recounted.err().iter().for_each(|error| warn(one_line(error)));
        }
        sleep(left.min(PAUSE.max(took.saturating_mul(PAUSE_PER_COUNT)))).await;
    }
}
