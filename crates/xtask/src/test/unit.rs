//! The tier that needs nothing but Rust.

use std::io::{self, Read as _, Write as _};
use std::process::{Command, Stdio};

use anyhow::Context as _;

use super::libtest::Results;
use super::tally::Report;
use crate::programs;
use crate::workspace::{self, cargo};

/// Format, lints and, where cargo-deny is installed, licences and advisories.
pub(super) fn lint() -> Report {
    let mut report = Report::default();
    let mut check = |name: &str, args: &[&str]| {
        println!("--- cargo {}", args.join(" "));
        match cargo().args(args).status() {
            Ok(status) if status.success() => report.passed += 1,
            _ => report.failed.push(name.to_owned()),
        }
    };
    check("cargo fmt", &["fmt", "--all", "--check"]);
    check("cargo clippy", &["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]);
    if programs::find("cargo-deny").is_some() && workspace::root().join("deny.toml").exists() {
        check("cargo deny", &["deny", "check"]);
    }
    report
}

/// `cargo test`: all tests that are not ignored, documentation examples among them.
pub(super) fn tests() -> Report {
    let mut cargo = cargo();
    cargo.args(["test", "--workspace", "--no-fail-fast", "--", "--show-output"]);
    run(&mut cargo).unwrap_or_else(|error| Report::failure(format!("{error:#}")))
}

fn run(cargo: &mut Command) -> anyhow::Result<Report> {
    let mut child = cargo.stdout(Stdio::piped()).spawn().context("starting cargo")?;
    let mut results = Results::default();
    if let Some(mut stdout) = child.stdout.take() {
        let mut buffer = vec![0; 64 * 1024];
        while let read @ 1.. = stdout.read(&mut buffer).context("reading what cargo test prints")? {
            let piece = buffer.get(..read).unwrap_or_default();
            results.feed(piece);
            let mut out = io::stdout();
            drop(out.write_all(piece).and_then(|()| out.flush()));
        }
    }
    let status = child.wait().context("waiting for cargo")?;
    let mut report = results.finish();
    // Something that did not compile, or crashed.
    if !status.success() && report.failed.is_empty() {
        report.failed.push(format!("cargo test ({status})"));
    }
    Ok(report)
}
