//! The tiers: which tests each one is, where they run, and what they need there.

use std::thread;

use anyhow::Result;
use guest::{
    Kernel,
    go::{CLIENTS, PROM2JSON, PROMTOOL, control_plane},
    source::earlier_program,
};

use super::{
    guests::{ApiServers, Equipment, Run},
    nextest::{self, Build, Built, Selection},
    summary::Report,
};

/// Everything that is not ignored.
pub(super) fn unit(names: &[String]) -> Report {
    let selection = Selection { filter: "all()", ignored: false, names: names.to_vec() };
    Report::from_result(nextest::here(&selection, Build::All, |_| ()))
}

/// The programs named `kernel`.
pub(super) fn kernel(kernel: &Kernel, names: &[String]) -> Report {
    let tests = GuestTests { filter: "binary(kernel) - test(/^upgrades::/)", build: &["kernel"], names };
    in_guests(kernel, &tests, |_, _| Ok(()))
}

/// What of these needs the program of the version before.
pub(super) fn upgrades(kernel: &Kernel, names: &[String]) -> Report {
    let tests = GuestTests { filter: "binary(kernel) & test(/^upgrades::/)", build: &["kernel"], names };
    in_guests(kernel, &tests, |_, equipment| {
        equipment.program("KUBE_IPVS_EARLIER_BIN", earlier_program()?);
        Ok(())
    })
}

/// The programs named `api`: what needs no kernel beside what does.
pub(super) fn api(kernel: &Kernel, names: &[String]) -> Report {
    let tests = GuestTests { filter: "binary(api) & test(/^node::/)", build: &["api", "faults"], names };
    // Compiled before both begin, or they would wait for one another and report it twice.
    if let Err(error) = nextest::build(Build::Tests(tests.build)) {
        return Report::from_result(Err(error));
    }
    thread::scope(|scope| {
        let here = scope.spawn(|| api_here(names));
        let mut report = in_guests(kernel, &tests, |built, equipment| {
            control_plane::ensure()?;
            equipment.api_servers = ApiServers::Shared(built.program("lab")?);
            Ok(())
        });
        report.extend(here.join().unwrap_or_else(|_| Report::failure("a thread that ran tests panicked")));
        report
    })
}

fn api_here(names: &[String]) -> Report {
    let run = || {
        let (servers, clients) = (control_plane::ensure()?, CLIENTS.built()?);
        let promtool = PROMTOOL.program("promtool")?;
        let filter = "binary(api) - test(/^node::/)";
        let selection = Selection { filter, ignored: true, names: names.to_vec() };
        nextest::here(&selection, Build::Tests(&["api", "faults"]), |command| {
            command.env("KUBEBUILDER_ASSETS", servers);
            command.env("KUBE_IPVS_TEST_CLIENTS", clients);
            command.env("PROMTOOL_BIN", promtool);
            command.arg("--test-threads=1");
        })
    };
    Report::from_result(run())
}

/// The program named `peer`.
pub(super) fn peer(kernel: &Kernel, names: &[String]) -> Report {
    let tests = GuestTests { filter: "binary(peer)", build: &["peer", "faults"], names };
    in_guests(kernel, &tests, |built, equipment| {
        equipment.program("KUBE_PROXY_BIN", control_plane::kube_proxy()?);
        equipment.program("PROM2JSON_BIN", PROM2JSON.program("prom2json")?);
        equipment.api_servers = ApiServers::Shared(built.program("lab")?);
        Ok(())
    })
}

/// The program named `bench`: measurements in guests, and instruction counts here.
pub(super) fn bench(kernel: &Kernel, names: &[String]) -> Report {
    let tests =
        GuestTests { filter: "binary(bench) - test(/^instructions::/)", build: &["bench", "kernel"], names };
    let mut report = in_guests(kernel, &tests, |_, equipment| {
        equipment.program("KUBE_PROXY_BIN", control_plane::kube_proxy()?);
        Ok(())
    });
    let filter = "binary(bench) & test(/^instructions::/)";
    let counts = Selection { filter, ignored: true, names: names.to_vec() };
    let counted = nextest::here(&counts, Build::Tests(tests.build), |_| ());
    report.extend(Report::from_result(counted));
    report
}

/// The program named `faults`.
pub(super) fn faults(kernel: &Kernel, names: &[String]) -> Report {
    let tests = GuestTests { filter: "binary(faults)", build: &["faults", "kernel"], names };
    in_guests(kernel, &tests, |built, equipment| {
        equipment.program("KUBE_PROXY_BIN", control_plane::kube_proxy()?);
        equipment.api_servers = ApiServers::Own(built.program("lab")?);
        Ok(())
    })
}

/// Tests that run in guests.
struct GuestTests<'a> {
    filter: &'static str,
    /// The integration tests to build, those of the packages whose programs are needed among them.
    build: &'static [&'static str],
    names: &'a [String],
}

/// Builds the tests and runs them in guests, after `equip` has added what they need beside.
fn in_guests(
    kernel: &Kernel,
    tests: &GuestTests<'_>,
    equip: impl FnOnce(&Built, &mut Equipment) -> Result<()>,
) -> Report {
    // What is missing is reported before anything is built.
    if let Err(error) = kernel.prepare() {
        return Report::skip(format!("{error:#}"));
    }
    let run = || {
        let built = nextest::build(Build::Tests(tests.build))?;
        let mut equipment = Equipment::default();
        equipment.program("KUBE_IPVS_BIN", built.program("kube-ipvs")?);
        if let Err(error) = equip(&built, &mut equipment) {
            return Ok(Report::skip(format!("{error:#}")));
        }
        let selection = Selection { filter: tests.filter, ignored: true, names: tests.names.to_vec() };
        Run { kernel, built: &built, selection: &selection, equipment: &equipment }.in_guests()
    };
    Report::from_result(run())
}
