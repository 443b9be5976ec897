//! What is checked without running a test: format, lints, dependencies; and the examples of the documentation, which
//! cargo-nextest does not run.

use std::{path::PathBuf, process::Command};

use guest::{
    platform, programs,
    workspace::{self, CargoTool, cargo},
};

use super::summary::Report;

/// What is installed where there is none.
const CARGO_DENY: CargoTool = CargoTool { name: "cargo-deny", version: "0.20.2", arguments: &[] };

/// A target of the plugin besides Linux. The check compiles no C and links nothing, so that it needs no SDK of Apple's.
const DARWIN: &str = "aarch64-apple-darwin";

/// All of it. Advisories are not looked up: they change without the project, and their database is not on a package
/// registry.
pub(super) fn all() -> Report {
    let deny = cargo_deny();
    // Another compiler, where there is no rustup, may have new lints: they are shown, and are not a failure.
    let is_ours = workspace::compiler_is_pinned().unwrap_or(false);
    let strictly: &[&str] = if is_ours { &["--", "--deny", "warnings"] } else { &[] };
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
    // Not a skipped test: offline the standard library may be missing, and the workflow of a release builds the plugin.
    match platform::ensure_standard_library(DARWIN) {
        Ok(()) => check("cargo check for macOS", &["check", "--package", "kubectl-ipvs", "--target", DARWIN]),
        Err(error) => println!("--- not checked for macOS: {error:#}"),
    }
    check("documentation examples", &["test", "--doc", "--workspace", "--all-features", "--quiet"]);
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
