//! `cargo xtask chaos` injects what can go wrong around a node proxy, on a real kernel with a real API
//! server.
//!
//! There is a node with some Services, a daemon, and traffic. Then come the faults of [`catalogue`], one
//! after the other, each several times, in an order and at moments that follow from a seed. After each the
//! kernel must become what it was before, and the daemon must be alive. The table at the end shows how long
//! that took, when the daemon reported it, and which connections broke.

mod catalogue;
mod report;
mod scene;
mod sequence;
mod traffic;

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use catalogue::Own;
use guest::{KernelArgs, workspace};
use report::Report;
use scene::{PERIOD, PROBE, Scene};
use sequence::inject_all;
use serde::{Deserialize, Serialize};
use traffic::{Traffic, all as all_connections, targets};

use crate::{
    inside::Programs,
    stage::{
        self, Stage,
        objects::{self, Condition, Endpoint, Kind, Write},
    },
};

/// Pods of the lab. The last one is a client. From [`FIRST_EJECTED`] on they serve the Service that ejects.
const PODS: u8 = 5;
const FIRST_EJECTED: u8 = 3;
/// Services with traffic, and without.
const USED: u16 = 2;
const OTHERS: u16 = 100;
/// Parts of the names of the faults that are tried out as a test: some of each kind, and those that no other test causes.
const TRIED_OUT: [&str; 13] = [
    "ipvsadm -C",
    "kube-ipvs0 deleted",
    "our table deleted",
    "tunnel device deleted",
    "daemon killed",
    "way to the API server closed",
    "the watch has expired (410)",
    "a tenant replaces a large slice",
    "clock set",
    "second daemon",
    "memory limit",
    "kube-proxy runs beside",
    "an endpoint goes silent",
];
/// The Service that ejects failing endpoints. Its clients are patient, as a SYN may have to be repeated.
const EJECTING: &str = "ejecting";
/// The Service that is answered directly.
const DIRECT: &str = "other-0";
/// How long a run may take.
const TIMEOUT: Duration = Duration::from_secs(3 * 3600);

/// The command line of `cargo xtask chaos`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    kernel: KernelArgs,
    /// The seed for the order of the faults, their moments and their victims
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How often each fault happens; killing the daemon at its start happens forty times as often, and while endpoints
    /// change four times
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Only the faults whose name contains one of these
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Run the plan here: what the test kernel runs
    #[arg(long, hide = true, value_name = "JSON")]
    inside: Option<String>,
}

/// The plan for the guest.
#[derive(Debug, Serialize, Deserialize)]
struct Plan {
    seed: u64,
    rounds: u32,
    /// No fault more often than this.
    most: u32,
    others: u16,
    names: Vec<String>,
}

/// Runs it, and writes target/chaos/report.json. Fails if something did not heal, or the daemon died by
/// itself.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(plan) = &args.inside {
        let plan: Plan = serde_json::from_str(plan)?;
        let report = chaos(&plan)?;
        return stage::conclude(&report, &directory(), report.failures.is_empty());
    }
    let kernel = args.kernel.choose_for_tests();
    let plan = Plan {
        seed: args.seed,
        rounds: args.rounds,
        most: u32::MAX,
        others: OTHERS,
        names: args.names.clone(),
    };
    kernel.prepare()?;
    Programs::released(workspace::myself()?)?.run_with_api_server(
        &kernel,
        "chaos",
        &plan,
        &directory(),
        TIMEOUT,
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Injects a few faults here, as root on a kernel that has IPVS. Fails if something did not heal, or the daemon died
/// by itself.
pub fn small() -> Result<()> {
    let names = TRIED_OUT.map(str::to_owned).to_vec();
    let report = chaos(&Plan { seed: 1, rounds: 1, most: 2, others: 20, names })?;
    println!("{report}");
    ensure!(report.failures.is_empty(), "{}", report.failures.join("; "));
    Ok(())
}

fn directory() -> PathBuf {
    workspace::root().join("target/chaos")
}

fn chaos(plan: &Plan) -> Result<Report> {
    let stage = Stage::new(PODS)?;
    let names =
        |kind: &str, count: u16| (0..count).map(|number| format!("{kind}-{number}")).collect::<Vec<_>>();
    let (used, others) = (names("used", USED), names("other", plan.others));
    let all = used.iter().chain(&others).map(String::as_str).chain([PROBE]);
    stage.write(all.map(service).chain([ejecting()]))?;
    let addresses =
        |names: &[String]| names.iter().map(|name| stage.cluster_ip(name)).collect::<Result<Vec<_>>>();
    let (used, others) = (addresses(&used)?, addresses(&others)?);

    let own = Own {
        api_server: stage.server.api_server_process().is_ok(),
        clock: std::env::var_os("KUBE_IPVS_OWN_KERNEL").is_some(),
    };
    if !own.api_server {
        eprintln!("chaos: the API server is not in this guest: it is neither killed nor stopped");
    }
    if !own.clock {
        eprintln!("chaos: the clock is the host's: it is not set");
    }
    let targets = targets(&stage.lab, &used, stage.cluster_ip(EJECTING)?);
    let mut report = Report {
        seed: plan.seed,
        kernel: stage::kernel_release()?,
        period: PERIOD,
        rows: Vec::new(),
        failures: Vec::new(),
    };
    let mut random = fastrand::Rng::with_seed(plan.seed);
    let bindings = [
        ("--vip-binding=address", catalogue::with_addresses(own)),
        ("--vip-binding=route", catalogue::with_routes()),
    ];
    // A fault that is in the catalogue may still be none for this guest.
    let all = [catalogue::with_addresses(Own::EVERYTHING), catalogue::with_routes()].concat();
    let unknown = plan.names.iter().find(|name| !all.iter().any(|fault| fault.name.contains(*name)));
    ensure!(unknown.is_none(), "unknown fault {unknown:?}");
    for (binding, mut faults) in bindings {
        faults
            .retain(|fault| plan.names.is_empty() || plan.names.iter().any(|name| fault.name.contains(name)));
        if faults.is_empty() {
            continue;
        }
        let random = random.fork();
        let flags = [binding, "--external-forwarding-method=by-annotation"];
        let mut scene = Scene::new(&stage, random, used.clone(), others.clone(), &flags)?;
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let traffic = Traffic::start(&targets, scope, &stop);
            let done =
                traffic.and_then(|traffic| inject_all(&mut scene, &faults, plan, &traffic, &mut report));
            stop.store(true, Ordering::Relaxed);
            done
        })?;
        let counts = all_connections(&targets);
        let accounted: u64 = report.rows.iter().map(|row| row.lost + row.unanswered).sum();
        if !counts.is_complete() || counts.lost() != accounted {
            report.failures.push(format!(
                "between the faults connections were lost: {counts:?}, {accounted} of it after faults"
            ));
        }
        scene.finish()?;
    }
    Ok(report)
}

/// A Service that ejects failing endpoints, with pods of its own.
fn ejecting() -> Vec<Write> {
    let endpoints: Vec<_> =
        (FIRST_EJECTED..=PODS).map(|number| Endpoint { number, condition: Condition::Ready }).collect();
    vec![
        Write::Create(Kind::Service, objects::ejecting(objects::service(EJECTING, &[80], false))),
        Write::Create(Kind::Slice, objects::slice(EJECTING, EJECTING, &endpoints)),
    ]
}

/// A Service at port 80 of both families with two pods; one of those without traffic is answered directly.
fn service(name: &str) -> Vec<Write> {
    let endpoints = [1, 2].map(|number| Endpoint { number, condition: Condition::Ready });
    let service = objects::service(name, &[80], true);
    let service = if name == DIRECT { objects::answered_directly(service) } else { service };
    vec![
        Write::Create(Kind::Service, service),
        Write::Create(Kind::Slice, objects::slice(&format!("{name}-v4"), name, &endpoints)),
        Write::Create(Kind::Slice, objects::slice_v6(&format!("{name}-v6"), name, &endpoints)),
    ]
}
