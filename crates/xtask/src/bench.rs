//! `cargo xtask bench`: kube-ipvs, what the kernel itself needs, and the real kube-proxy, side by side.
//!
//! Each measurement is a boot of the test kernel of its own, in which this same program, as a release build, is run
//! again for one [`case::Case`]. kube-ipvs is the program of the container image. The API server is [`api`], so that
//! what is measured is the proxy.

mod api;
mod case;
mod cold_sync;
mod endpoint_change;
mod floor;
mod memory;
mod node;
mod objects;
mod plan;
mod reconcile;
mod report;
mod restart;
mod tables;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::guest::{Guest, Kernel, KernelArgs};
use crate::{control_plane, image, workspace};
use case::{Case, Figures, Measured, Subject};
use report::{Machine, Report};

/// How long one measurement may take, boot included.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Guest memory in MiB: the API server keeps all it says, and the largest cluster is said in 150 MB.
const MEMORY: u32 = 4096;

/// The command line of `cargo xtask bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    kernel: KernelArgs,
    /// A tiny size of everything, to see that it runs; docs/performance.md stays as it is
    #[arg(long)]
    small: bool,
    /// Only the measurements whose line in the progress contains one of these
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// One measurement, here and now: what the test kernel runs
    #[arg(long, hide = true, value_name = "JSON")]
    inside: Option<String>,
}

/// What the measurements need.
struct Equipment {
    kernel: Kernel,
    myself: PathBuf,
    kube_ipvs: PathBuf,
    kube_proxy: PathBuf,
}

/// Measures, and writes the report. Fails if a measurement of kube-ipvs or of the floor does.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(case) = &args.inside {
        println!("{}", serde_json::to_string(&measure(serde_json::from_str(case)?)?)?);
        return Ok(ExitCode::SUCCESS);
    }
    let equipment = Equipment {
        kernel: args.kernel.choose_for_tests(),
        myself: workspace::release_xtask()?,
        kube_ipvs: image::program()?,
        kube_proxy: control_plane::kube_proxy()?,
    };
    equipment.kernel.prepare()?;
    let mut cases = if args.small { plan::small() } else { plan::full() };
    cases.retain(|case| {
        args.names.is_empty() || args.names.iter().any(|name| case.to_string().contains(name))
    });
    let mut machine = Machine::now(&equipment.kernel);
    let mut measured = Vec::new();
    for (number, &case) in cases.iter().enumerate() {
        eprintln!("xtask: measurement {} of {}: {case}", number + 1, cases.len());
        let outcome = equipment.boot(case).map_err(|error| format!("{error:#}"));
        if let Err(error) = &outcome {
            eprintln!("xtask: {error}");
        }
        measured.push(Measured { case, outcome });
        machine.note_load();
    }
    let report = Report { machine, measured };
    report.write(!args.small && args.names.is_empty())?;
    print!("{}", tables::all(&report));
    Ok(if report.is_ours_whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Equipment {
    /// Boots a guest for one measurement.
    fn boot(&self, case: Case) -> Result<Figures> {
        let files = vec![self.myself.clone(), self.kube_ipvs.clone(), self.kube_proxy.clone()];
        let env = vec![
            ("KUBE_IPVS_BIN".into(), self.kube_ipvs.clone().into()),
            ("KUBE_PROXY_BIN".into(), self.kube_proxy.clone().into()),
        ];
        let guest = Guest { files, env, timeout: TIMEOUT, memory: MEMORY, ..Guest::new(self.kernel.clone()) };
        let command: [OsString; 4] = [
            self.myself.clone().into(),
            "bench".into(),
            "--inside".into(),
            serde_json::to_string(&case)?.into(),
        ];
        let said = Mutex::new(Vec::new());
        let code = guest.run_tapped(&command, &|piece| {
            if let Ok(mut said) = said.lock() {
                said.extend_from_slice(piece);
            }
        })?;
        ensure!(code == 0, "the measurement ended with code {code}");
        let said = said.into_inner().unwrap_or_default();
        serde_json::from_slice(&said).context("what the measurement printed")
    }
}

/// In the guest.
fn measure(Case { subject, size }: Case) -> Result<Figures> {
    match subject {
        Subject::Floor(binding) => floor::measure(size, binding),
        Subject::ColdSync(program) => cold_sync::measure(size, program),
        Subject::EndpointChange(program, times) => endpoint_change::measure(size, program, times),
        Subject::Reconcile(binding, times) => reconcile::measure(size, binding, times),
        Subject::Restart(binding) => restart::measure(size, binding),
        Subject::Memory(program) => memory::measure(size, program),
    }
}
