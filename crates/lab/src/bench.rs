//! `cargo xtask bench`: kube-ipvs, what the kernel itself needs, and the real kube-proxy, side by side.
//!
//! Each measurement boots the test kernel anew, and there runs this same program, as a release build, for one
//! [`case::Case`]. kube-ipvs is the program of the container image. The API server is [`api`], so that the
//! proxy is what is measured. The tiny size, which only shows that everything works, uses the existing debug
//! builds.
//!
//! For code that needs no kernel, [`instructions`] are counted instead.

mod api;
pub mod case;
pub mod data_plane;
pub mod ejection;
mod endpoint_change;
mod fairness;
pub mod figures;
pub mod instructions;
mod node;
pub mod plan;
pub mod published;
mod report;
mod rolling_update;
pub mod schedulers;
mod syncs;
mod tables;

use std::{
    process::ExitCode,
    sync::Mutex,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use case::{Case, Subject};
use data_plane::processor_clock::{self, Answering};
use figures::{Figures, Measured};
use guest::{Kernel, KernelArgs, workspace};
use report::{Machine, Report};

use crate::inside::{Programs, ended};

/// How long one measurement may take, boot included.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The same for the way of a packet, in which every program sets a node up, one after the other, and for the changes of a
/// tenant, each of which takes minutes.
const TIMEOUT_OF_MANY: Duration = Duration::from_secs(3_600);
/// Where the tables are, of everything, of the way of a packet, of ejection, of schedulers and beside published figures.
const TABLES: &str = "docs/evidence/performance/tables.txt";
const DATA_PLANE: &str = "docs/evidence/performance/data-plane.txt";
const EJECTION: &str = "docs/evidence/performance/ejection.txt";
const SCHEDULERS: &str = "docs/evidence/performance/schedulers.txt";
const PUBLISHED: &str = "docs/evidence/performance/published.txt";
/// How often a measurement is made, unless one takes [`LONG_ENOUGH`].
const REPEATED: u32 = 3;
/// A longer measurement is hardly affected by short disturbances.
const LONG_ENOUGH: Duration = Duration::from_secs(30);

/// The command line of `cargo xtask bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    kernel: KernelArgs,
    /// Measure everything in a tiny size, with debug builds, to see that it works; the tables stay as they are
    #[arg(long)]
    small: bool,
    /// Instead of measuring, count the instructions of kube-ipvs's own computation, and fail if they have
    /// grown by more than a tenth
    #[arg(long, conflicts_with_all = ["small", "names"])]
    check: bool,
    /// With --check: record the counts as the new baseline
    #[arg(long, requires = "check")]
    bless: bool,
    /// Only the measurements whose line in the progress contains one of these; `data-plane`, `ejection` and `schedulers`
    /// alone are plans of their own, and so is `published`, which may be followed by the names of a part
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Make one measurement here: what the test kernel runs
    #[arg(long, hide = true, value_name = "JSON")]
    inside: Option<String>,
}

/// What the measurements need.
struct Equipment {
    kernel: Kernel,
    programs: Programs,
    /// How often each measurement is made.
    times: u32,
}

/// Measures, and writes the report. Fails if a measurement of kube-ipvs or of the baseline does.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(case) = &args.inside {
        let outcome = measure(serde_json::from_str(case)?).map_err(|error| format!("{error:#}"));
        println!("{}", serde_json::to_string(&outcome)?);
        return Ok(ExitCode::SUCCESS);
    }
    if args.check {
        return instructions::run(args.bless);
    }
    let kernel = args.kernel.choose_for_tests();
    kernel.prepare()?;
    let names: Vec<&str> = args.names.iter().map(String::as_str).collect();
    let report = match *names {
        _ if args.small => {
            let equipment = Equipment { kernel, programs: Programs::debug()?, times: 1 };
            equipment.measure_all(plan::small(), &names, None)?
        }
        ["schedulers"] => {
            // No program is measured, and what takes time sleeps: a debug build does.
            let equipment = Equipment { kernel, programs: Programs::alone(workspace::myself()?), times: 1 };
            equipment.measure_all(plan::schedulers(), &[], Some(SCHEDULERS))?
        }
        ["ejection"] => {
            // Only the daemon is measured.
            let programs = Programs::released(workspace::myself()?)?;
            let equipment = Equipment { kernel, programs, times: 1 };
            equipment.measure_all(plan::ejection(), &[], Some(EJECTION))?
        }
        ["published", ref part @ ..] => {
            full(kernel, plan::published(), part, part.is_empty().then_some(PUBLISHED))?
        }
        ["data-plane"] => full(kernel, plan::data_plane(), &[], Some(DATA_PLANE))?,
        [] => full(kernel, plan::full(), &[], Some(TABLES))?,
        _ => full(kernel, plan::full(), &names, None)?,
    };
    eprintln!("xtask: target/bench/report.json has all figures");
    print!("{}", tables::all(&report));
    Ok(if report.is_ours_whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn full(kernel: Kernel, cases: Vec<Case>, names: &[&str], document: Option<&str>) -> Result<Report> {
    let programs = Programs::released(workspace::release_lab()?)?;
    Equipment { kernel, programs, times: REPEATED }.measure_all(cases, names, document)
}

impl Equipment {
    /// Makes the measurements whose name contains one of these, or all if there are none. The report is written after
    /// each: some runs take hours, and can be interrupted.
    fn measure_all(&self, mut cases: Vec<Case>, names: &[&str], document: Option<&str>) -> Result<Report> {
        cases.retain(|case| names.is_empty() || names.iter().any(|name| case.to_string().contains(name)));
        let mut report = Report { machine: Machine::now(&self.kernel), measured: Vec::new() };
        for (number, &case) in cases.iter().enumerate() {
            eprintln!("xtask: measurement {} of {}: {case}", number + 1, cases.len());
            let outcome = self.fastest(case).map_err(|error| format!("{error:#}"));
            if let Err(error) = &outcome {
                eprintln!("xtask: {error}");
            }
            report.measured.push(Measured { case, outcome });
            report.machine.note_load();
            report.write(document)?;
        }
        Ok(report)
    }

    /// The fastest of several runs: whatever else the machine does makes one slower.
    fn fastest(&self, case: Case) -> Result<Figures> {
        let begun = Instant::now();
        let mut fastest = self.boot(case)?;
        for _ in 1..self.times {
            if !fastest.vary() || begun.elapsed() > LONG_ENOUGH {
                break;
            }
            fastest = fastest.faster(self.boot(case)?);
        }
        Ok(fastest)
    }

    /// Boots a guest for one measurement.
    fn boot(&self, case: Case) -> Result<Figures> {
        let mut guest = self.programs.guest(&self.kernel, case.timeout());
        // A guest whose own clock does not do asks here.
        let is_coarse = matches!((case.subject, &self.kernel), (Subject::DataPlane(_), Kernel::Uml(_)));
        let clock = is_coarse.then(Answering::start).transpose()?;
        if let Some(clock) = &clock {
            guest.share = Some(clock.directory().to_owned());
            guest.env.push((processor_clock::DIRECTORY.into(), clock.directory().into()));
        }
        if matches!(case.subject, Subject::Published(..)) {
            guest.memory = published::MEMORY;
        }
        let said = Mutex::new(Vec::new());
        let code = guest.run_tapped(&self.programs.command("bench", &case)?, &|piece| {
            if let Ok(mut said) = said.lock() {
                said.extend_from_slice(piece);
            }
        })?;
        ended(code, case.timeout())?;
        let said = said.into_inner().unwrap_or_default();
        let outcome: Result<Figures, String> =
            serde_json::from_slice(&said).context("what the measurement printed")?;
        outcome.map_err(anyhow::Error::msg)
    }
}

impl Case {
    const fn timeout(self) -> Duration {
        match self.subject {
            Subject::DataPlane(_) | Subject::Fairness | Subject::Ejection(..) | Subject::Schedulers(_) => {
                TIMEOUT_OF_MANY
            }
            Subject::Published(..) => published::TIMEOUT,
            _ => TIMEOUT,
        }
    }
}

/// Makes a measurement here, as root on a kernel that has IPVS.
pub fn measure(Case { subject, size }: Case) -> Result<Figures> {
    match subject {
        Subject::KernelBaseline(binding) => syncs::kernel_baseline(size, binding),
        Subject::ColdSync(program) => syncs::cold_sync(size, program),
        Subject::EndpointChange(program, times) => endpoint_change::measure(size, program, times),
        Subject::Reconcile(binding, times) => syncs::reconcile(size, binding, times),
        Subject::Restart(binding) => syncs::restart(size, binding),
        Subject::Memory(program) => syncs::memory(size, program),
        Subject::FirstVip(binding) => syncs::first_vip(size, binding),
        Subject::RollingUpdate => rolling_update::measure(size),
        Subject::Fairness => fairness::measure(size),
        Subject::Growth => syncs::growth(size),
        Subject::Published(program, more) => Ok(Figures::Published(published::measure(size, program, more)?)),
        Subject::Core => Ok(Figures::Core(published::core(size)?)),
        Subject::Ejection(ejecting, effort) => ejection::measure(size, ejecting, effort),
        Subject::Schedulers(effort) => Ok(Figures::Schedulers(schedulers::measure(size, effort)?)),
        Subject::DataPlane(effort) => Ok(Figures::DataPlane(data_plane::measure(size, effort)?)),
    }
}
