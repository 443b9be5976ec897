//! `cargo xtask soak`: an hour of random churn with a real API server and traffic, in which nothing may be
//! lost or grow.
//!
//! A few hundred Services are created, deleted and changed, about twenty times a second, as a seed
//! determines. Connections stay open to Services that never change and to Services whose endpoints come, go
//! and drain; new ones are made all the time, also to a Service that sometimes has no endpoint. At the end
//! the daemon must not have grown, what is in the kernel must be what another daemon makes of the same
//! Services on a fresh node, and no connection may be lost. Some Services eject failing endpoints: silent ones must be
//! ejected, and no healthy one ([`ejecting`]).

mod churn;
mod ejecting;
mod report;
mod samples;
mod used;
mod witness;

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use churn::{Churn, EndpointToggle, VACANT};
use ejecting::{ALL_PODS, Ejecting, Troubles};
use guest::{KernelArgs, workspace};
use report::Report;
use samples::{Sample, Trends};
use serde::{Deserialize, Serialize};
use testkit::daemon::Daemon;
use used::Used;
use witness::Witness;

use crate::{
    inside::Programs,
    stage::{self, Stage, kernel_state::KernelState},
};

/// Services that change.
const SERVICES: u32 = 300;
/// How many changes are made at a time, this far apart if the API server is fast enough.
const CHANGES: usize = 8;
const PACE: Duration = Duration::from_millis(320);
/// The time between two samples of the daemon, unless a run is too short for enough of them.
const SAMPLED_EVERY: Duration = Duration::from_secs(10);
const FEWEST_SAMPLES: u32 = 10;
/// How much longer a run may take than its set time.
const AROUND: Duration = Duration::from_secs(600);

/// The command line of `cargo xtask soak`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    kernel: KernelArgs,
    /// How many minutes to run
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    minutes: u32,
    /// The seed for the changes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run the plan here: what the test kernel runs
    #[arg(long, hide = true, value_name = "JSON")]
    inside: Option<String>,
}

/// The plan for the guest.
#[derive(Debug, Serialize, Deserialize)]
struct Plan {
    seed: u64,
    seconds: u32,
    services: u32,
}

/// Runs it, and writes target/soak/report.json. Fails if something was lost or has grown.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(plan) = &args.inside {
        let plan: Plan = serde_json::from_str(plan)?;
        let report = soak(&plan)?;
        return stage::conclude(&report, &directory(), report.complaints().is_empty());
    }
    let plan = Plan { seed: args.seed, seconds: args.minutes * 60, services: SERVICES };
    let kernel = args.kernel.choose_for_tests();
    kernel.prepare()?;
    let timeout = Duration::from_secs(plan.seconds.into()) + AROUND;
    Programs::released(workspace::myself()?)?.run_with_api_server(
        &kernel,
        "soak",
        &plan,
        &directory(),
        timeout,
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Ten seconds of churn here, as root on a kernel that has IPVS. Fails if something was lost or has grown.
pub fn small() -> Result<()> {
    let report = soak(&Plan { seed: 1, seconds: 10, services: 20 })?;
    println!("{report}");
    let complaints = report.complaints();
    ensure!(complaints.is_empty(), "{}", complaints.join("; "));
    Ok(())
}

fn directory() -> PathBuf {
    workspace::root().join("target/soak")
}

fn soak(plan: &Plan) -> Result<Report> {
    let stage = Stage::new(ALL_PODS)?;
    let mut churn = Churn::new(plan.seed, plan.services, &used::draining());
    stage.write(used::fixed().into_iter().chain(ejecting::services()).chain(churn.beginning()))?;
    let daemon = stage.daemon(&[])?;

    let used = Used::new(&stage)?;
    used.answer()?;
    stage.has_synced(&daemon)?;
    eprintln!("soak: {} Services are served", churn.len());
    let begun = Instant::now();
    let witness = Witness::new(used.vacant.since);
    let (stop, calm) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let ejecting = Ejecting::new(&stage, &daemon)?;
    witness.read(&stage, used.vacant.to, &stop)?;
    let (samples, changes) = thread::scope(|scope| {
        scope.spawn(|| witness.watch(&stage, VACANT, &stop));
        used.start(scope, plan.seed, &stop);
        ejecting.start(scope, plan.seed, &stop);
        let harmless = scope.spawn(|| Troubles::new(&ejecting, plan.seed).harmless(&calm));
        let silences = scope.spawn(|| Troubles::new(&ejecting, plan.seed).silences(&calm));
        let done =
            stage.change(plan, &daemon, &mut churn, EndpointToggle::new(&used.vacant.vacancy, &witness));
        calm.store(true, Ordering::Relaxed);
        let troubles = [harmless, silences].map(|thread| thread.join().ok().context("a thread panicked")?);
        let recovered = ejecting.recover();
        stop.store(true, Ordering::Relaxed);
        troubles.into_iter().collect::<Result<()>>()?;
        recovered?;
        done
    })?;
    let seconds = begun.elapsed().as_secs_f64();

    let connections = used.accounts().into_iter().chain(ejecting.accounts()).collect();
    let ejections = ejecting.ejections();
    stage.has_synced(&daemon)?;
    let state = KernelState::read(&stage.lab.node)?;
    daemon.kill()?;
    let fresh = stage.after_fresh_start(&[])?;
    Ok(Report {
        seed: plan.seed,
        kernel: stage::kernel_release()?,
        seconds,
        services: churn.len(),
        changes,
        trends: Trends::through(&samples),
        connections,
        ejections,
        turns: witness.seen(),
        state: state.len(),
        differences: fresh.differences(&state),
        samples,
    })
}

impl Stage {
    /// Changes Services until the time is over; samples of the daemon, and the number of changes.
    fn change(
        &self,
        plan: &Plan,
        daemon: &Daemon,
        churn: &mut Churn,
        mut toggle: EndpointToggle<'_>,
    ) -> Result<(Vec<Sample>, usize)> {
        let length = Duration::from_secs(plan.seconds.into());
        let sampled_every = SAMPLED_EVERY.min(length / FEWEST_SAMPLES);
        let (mut samples, mut changes) = (Vec::new(), 0);
        let (begun, mut sample_due) = (Instant::now(), Instant::now());
        while begun.elapsed() < length {
            let next = Instant::now() + PACE;
            if let Some(write) = toggle.due() {
                self.write([vec![write]].into_iter())?;
            }
            self.write(churn.next(CHANGES).into_iter())?;
            changes += CHANGES;
            if sample_due <= Instant::now() {
                samples.push(Sample::take(daemon.id(), begun.elapsed().as_secs_f64())?);
                sample_due += sampled_every;
            }
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        toggle.settle();
        self.write(toggle.end().map(|write| vec![write]).into_iter())?;
        toggle.settle();
        Ok((samples, changes))
    }
}
