//! The tier that needs nothing but Rust.

use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context as _;

use super::libtest::Results;
use super::tally::Report;
use guest::cargo_tool::CargoTool;
use guest::compiler;
use guest::programs;
use guest::workspace::{self, cargo};

/// What is installed where there is none.
const CARGO_DENY: CargoTool = CargoTool { name: "cargo-deny", version: "0.20.2" };

/// The release whose lints the code keeps. A later one has lints that nobody has looked at yet: they are shown, and are
/// no failure.
const LINTS_OF: &str = "rustc 1.95.";

/// Format, lints, and the rules for dependencies. Advisories are not looked up: they change without the
/// project, and their database is not on a package registry.
pub(super) fn lint() -> Report {
    let deny = cargo_deny();
    let is_known = compiler::version().is_ok_and(|version| version.starts_with(LINTS_OF));
    let strictly: &[&str] = if is_known { &["--", "--deny", "warnings"] } else { &[] };
    let mut report = Report::default();
    let mut check = |name: &str, args: &[&str]| {
        println!("--- cargo {}", args.join(" "));
        match cargo().args(args).status() {
            Ok(status) if status.success() => report.passed += 1,
            _ => report.failed.push(name.to_owned()),
        }
    };
    check("cargo fmt", &["fmt", "--all", "--check"]);
    let everything = ["--workspace", "--all-targets", "--all-features"];
    check("cargo clippy", &[&["clippy"], &everything[..], strictly].concat());
    // Not with `--all-features`, nor with the features of the other packages.
    let without_features = ["clippy", "--package", "kube-ipvs", "--no-default-features"];
    check("cargo clippy without features", &[&without_features[..], strictly].concat());
    match deny {
        Ok(deny) => {
            println!("--- cargo deny check bans licenses sources");
            let check = ["deny", "check", "bans", "licenses", "sources"];
            match Command::new(deny).args(check).current_dir(workspace::root()).status() {
                Ok(status) if status.success() => report.passed += 1,
                _ => report.failed.push("cargo deny".to_owned()),
            }
        }
        Err(error) => report.skipped.push(format!("cargo deny: {error:#}")),
    }
    report
}

/// Finds cargo-deny, or has it installed.
fn cargo_deny() -> anyhow::Result<PathBuf> {
    programs::find(CARGO_DENY.name).map_or_else(|| CARGO_DENY.installed(), Ok)
}

/// `cargo test`: all tests that are not ignored, documentation examples among them.
pub(super) fn tests(names: &[String]) -> Report {
    let mut cargo = cargo();
    // With the feature `otlp`, which is off by default and only adds to the log: a second run without it would
    // compile most dependencies again. The programs of the other tiers are without it.
    cargo
        .args(["test", "--workspace", "--all-features", "--no-fail-fast", "--", "--show-output"])
        .args(names);
    run(&mut cargo).unwrap_or_else(|error| Report::failure(format!("{error:#}")))
}

/// Runs a command that runs test binaries, and reads their results out of what it prints.
pub(super) fn run(command: &mut Command) -> anyhow::Result<Report> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("starting {name}"))?;
    let mut results = Results::default();
    if let Some(mut stdout) = child.stdout.take() {
        let mut buffer = vec![0; 64 * 1024];
        while let read @ 1.. = stdout.read(&mut buffer).context("reading what the tests print")? {
            let piece = buffer.get(..read).unwrap_or_default();
            results.feed(piece);
            let mut out = io::stdout();
            drop(out.write_all(piece).and_then(|()| out.flush()));
        }
    }
    let status = child.wait().context("waiting for the tests")?;
    let mut report = results.finish();
    // Something that did not compile, or crashed.
    if !status.success() && report.failed.is_empty() {
        report.failed.push(format!("{name} ended with {status}"));
    }
    Ok(report)
}
