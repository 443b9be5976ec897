//! `kube-ipvs top`: the traffic of each Service and real server, refreshed continuously.
//!
//! A [`Sample`] is read from the kernel, a [`Meter`] makes a [`Frame`] of two of them, and a frame is drawn on the
//! terminal or printed. The names of Services, and whether their endpoints answer, come from the daemon, if there is one.

mod answers;
mod meter;
mod names;
#[cfg(feature = "tui")]
mod screen;
#[cfg(test)]
mod tests;

use std::{
    io::{self, IsTerminal},
    num::NonZero,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use ipvs::{Ipvs, KernelIpvs, ObservedRealServer, ObservedVirtualServer};
use operator::top::{self, Column, Frame};

use super::{
    Format,
    output::{self, Readers},
    question::Daemon,
    syn_recv::SynRecv,
};
use crate::node::requirements;
use answers::Answers;
use meter::Meter;
use names::Names;

/// The flags of the command.
#[derive(clap::Args, Debug)]
pub(super) struct Top {
    /// Refresh interval in seconds; the kernel updates its counters every two seconds
    #[arg(short = 'd', long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    delay: Duration,
    /// Exit after this number of refreshes
    #[arg(short = 'n', long, value_name = "NUMBER", value_parser = refreshes)]
    iterations: Option<NonZero<usize>>,
    /// Print each refresh, as without a terminal
    #[arg(short = 'b', long)]
    batch: bool,
    /// Sort column: largest first, names in alphabetical order
    #[arg(long, value_name = "COLUMN", default_value = "bytes")]
    sort: Column,
    #[command(flatten)]
    output: output::Args,
    #[command(flatten)]
    daemon: Daemon,
}

/// The shortest and the longest refresh interval, in seconds.
const DELAYS: (f64, f64) = (0.1, 3600.0);

fn seconds(text: &str) -> Result<Duration, String> {
    let (shortest, longest) = DELAYS;
    match text.parse::<f64>() {
        Ok(seconds) if (shortest..=longest).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("expected {shortest} to {longest}")),
    }
}

fn refreshes(text: &str) -> Result<NonZero<usize>, String> {
    text.parse().map_err(|_| "expected a number of at least 1".to_owned())
}

/// Shows the table until it is stopped.
pub(super) fn top(top: Top) -> anyhow::Result<ExitCode> {
    let Top { delay, iterations, batch, sort, output, daemon } = top;
    let refreshes = iterations.map_or(usize::MAX, NonZero::get);
    let mut sampler = Sampler::open(&daemon, delay)?;
    // The full-screen table is gone at the end, but a number of refreshes asks for output that stays.
    let is_printed = batch || iterations.is_some() || output.format != Format::Text || !is_terminal();
    match cfg!(feature = "tui") && !is_printed {
        #[cfg(feature = "tui")]
        true => screen::show(&mut sampler, delay, sort)?,
        _ => print(&mut sampler, delay, refreshes, sort, output.format)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The traffic of two seconds, the kernel's own interval, the most bytes first.
pub(super) fn sample_once(daemon: &Daemon) -> anyhow::Result<Frame> {
    let delay = Duration::from_secs(2);
    let mut sampler = Sampler::open(daemon, delay)?;
    sampler.frame()?;
    sampler.names.wait();
    thread::sleep(delay);
    let mut frame = sampler.frame()?.unwrap_or_default();
    sampler.answers.wait(&mut frame);
    frame.sort(Column::Bytes);
    Ok(frame)
}

fn is_terminal() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Every virtual server with its real servers, read at about one time.
///
/// Only netlink has the packets and bytes of real servers, with one request for each virtual server:
/// `/proc/net/ip_vs` has no more than connections. What that costs is in docs/evidence/performance.md.
pub(super) struct Sample {
    /// When the reading ended.
    pub(super) at: Instant,
    pub(super) servers: Vec<(ObservedVirtualServer, Vec<ObservedRealServer>)>,
    pub(super) syn_recv: SynRecv,
}

impl Sample {
    /// Reads the whole table, and connections for no longer than `patience`. What comes or goes meanwhile is there or
    /// not.
    pub(super) fn read(kernel: &mut impl Ipvs, patience: Duration) -> Result<Self, ipvs::Error> {
        let mut servers = Vec::new();
        for virtual_server in kernel.virtual_servers()? {
            let real_servers = kernel.real_servers(virtual_server.config.id)?;
            servers.push((virtual_server, real_servers));
        }
        let at = Instant::now();
        Ok(Self { at, servers, syn_recv: SynRecv::read(patience) })
    }
}

/// Reads the kernel's counters repeatedly.
struct Sampler {
    kernel: KernelIpvs,
    names: Names,
    answers: Answers,
    meter: Meter,
    /// How long reading the connections may take: their number has no limit.
    patience: Duration,
}

impl Sampler {
    /// Opens IPVS. The names come from the daemon.
    fn open(daemon: &Daemon, delay: Duration) -> anyhow::Result<Self> {
        let (names, answers) = (Names::from(daemon.silent_client()), Answers::from(daemon.silent_client()));
        let kernel = requirements::open_ipvs()?;
        Ok(Self { kernel, names, answers, meter: Meter::default(), patience: delay / 10 })
    }

    /// The traffic since the last sample; `None` at the first.
    fn frame(&mut self) -> anyhow::Result<Option<Frame>> {
        let sample = Sample::read(&mut self.kernel, self.patience)?;
        self.names.refresh(&sample, Instant::now());
        let mut frame = self.meter.frame(&sample, &self.names);
        if let Some(frame) = &mut frame {
            self.answers.add_to(frame, Instant::now());
        }
        Ok(frame)
    }
}

fn print(
    sampler: &mut Sampler,
    delay: Duration,
    refreshes: usize,
    sort: Column,
    format: Format,
) -> anyhow::Result<()> {
    sampler.frame()?;
    sampler.names.wait();
    if let Some(doubt) = sampler.names.doubt(Instant::now()) {
        output::say(format_args!("kube-ipvs: {doubt}"));
    }
    for number in 0..refreshes {
        thread::sleep(delay);
        let Some(mut frame) = sampler.frame()? else { continue };
        sampler.answers.wait(&mut frame);
        frame.sort(sort);
        let text = output::one_of_many(format, &frame, || top::text(&frame, number > 0))?;
        if output::print_to_readers(&text)? == Readers::Gone {
            break;
        }
    }
    Ok(())
}
