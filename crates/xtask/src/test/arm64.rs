//! The tier **arm64**: the demo, with files and with an API server, and tests of what talks to the kernel, on the
//! distribution's kernel for 64-bit ARM. Where the machine has another processor, QEMU emulates it.
//!
//! There is no cargo-nextest for it: the test programs are run one after the other, in one guest.

use std::{ffi::OsString, path::Path, process::Command, sync::Mutex, time::Duration};

use anyhow::{Context as _, Result, ensure};
use guest::{
    Guest, KernelArgs,
    platform::{self, Platform},
    quoted, workspace,
};

use super::summary::Report;

/// Whose unit tests, and tests on a kernel, are run: bytes from and to the kernel are theirs.
const PACKAGES: [&str; 5] = [
    "linux-ipvs",
    "kube-ipvs-netlink",
    "kube-ipvs-netfilter",
    "kube-ipvs-dummy-interface",
    "kube-ipvs-host-rules",
];

/// Of the program's tests on a kernel: traffic, drift, restarts, both bindings.
const OF_THE_PROGRAM: [&str; 6] =
    ["balancing::", "draining::", "repair::", "restarts::a_restart_under", "services::", "vip_binding::"];

/// Runs all of it.
pub(super) fn run(kernel: &KernelArgs) -> Report {
    let mut report = Report::default();
    for arguments in [&[][..], &["--api"]] {
        report.extend(Report::from_result(demo(arguments)));
    }
    report.extend(Report::from_result(tests(kernel)));
    report
}

fn demo(arguments: &[&str]) -> Result<Report> {
    println!("--- cargo xtask demo --arch arm64 {}", arguments.join(" "));
    let mut demo = Command::new(workspace::lab()?);
    let status = demo.args(["demo", "--arch", "arm64"]).args(arguments).status().context("starting lab")?;
    ensure!(status.success(), "the demo failed ({status})");
    Ok(Report { passed: 1, ..Report::default() })
}

fn tests(kernel: &KernelArgs) -> Result<Report> {
    let packages: Vec<&str> = PACKAGES.iter().flat_map(|package| ["--package", package]).collect();
    let of_crates = ["test", "--no-run", "--all-features", "--lib", "--test", "kernel"];
    let crates = Platform::Arm64.executables(&[&of_crates[..], &packages].concat())?;
    let of_program = ["test", "--no-run", "--package", "kube-ipvs", "--test", "kernel"];
    let program = Platform::Arm64.executables(&of_program)?;
    let daemon = platform::build_program(Platform::Arm64)?;

    let mut lines = Vec::new();
    for (name, path) in &crates {
        let options: &[&str] = if name == "kernel" { &["--ignored"] } else { &[] };
        lines.push(line(path, options));
    }
    for (name, path) in &program {
        if name == "kernel" {
            lines.push(line(path, &[&["--ignored"], &OF_THE_PROGRAM[..]].concat()));
        }
    }
    let files = ["crates", "docs", "manifests", "tests"].map(|path| workspace::root().join(path));
    let mut guest = Guest {
        timeout: Duration::from_secs(60 * 60),
        memory: 4096,
        files: files.into_iter().chain([daemon.clone()]).collect(),
        ..Guest::new(kernel.choose_for(Platform::Arm64))
    };
    guest.files.extend(crates.iter().chain(&program).map(|(_, path)| path.clone()));
    guest.env.push(("KUBE_IPVS_BIN".into(), daemon.into()));
    let said = Mutex::new(String::new());
    let tap = |piece: &[u8]| {
        if let Ok(mut said) = said.lock() {
            said.push_str(&String::from_utf8_lossy(piece));
        }
    };
    let script = format!("code=0\n{}exit $code\n", lines.concat());
    let code = guest.run_tapped(&["sh".into(), "-c".into(), OsString::from(script)], &tap)?;
    let said = said.into_inner().unwrap_or_default();
    let mut report = results(&said, lines.len());
    if code != 0 && report.failed.is_empty() {
        report.failed.push(format!("the test programs ended with code {code}"));
    }
    Ok(report)
}

/// A line of the script that runs one test program.
fn line(program: &Path, options: &[&str]) -> String {
    let program = quoted(program);
    format!("{program} --test-threads=1 --show-output {} || code=$?\n", options.join(" "))
}

/// What `programs` test programs have printed: libtest's line for each test, its sums for each program, and what the
/// tests say of what they cannot do.
fn results(said: &str, programs: usize) -> Report {
    let mut report = Report::default();
    for line in said.lines() {
        if let Some(why) = line.strip_prefix("SKIP: ") {
            report.skipped.push(why.to_owned());
        } else if let Some(what) = line.strip_prefix("ABSENT: ") {
            report.absent.insert(what.to_owned());
        } else if let Some((name, "FAILED")) =
            line.strip_prefix("test ").and_then(|line| line.split_once(" ... "))
        {
            report.failed.push(name.to_owned());
        }
    }
    // Not line by line: what a child has printed may stand between a test's name and its result.
    let sums =
        said.split("test result: ").skip(1).filter_map(|sums| sums.split_once(". ")?.1.split_once(" passed"));
    let passed: Vec<usize> = sums.filter_map(|(passed, _)| passed.parse().ok()).collect();
    // A test that could not do what it is for has passed for libtest.
    report.passed = passed.iter().sum::<usize>().saturating_sub(report.skipped.len());
    if passed.len() != programs || passed.contains(&0) {
        report.failed.push(format!("{programs} test programs, of which these had so many tests: {passed:?}"));
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_those_of_every_program() {
        let said = "running 3 tests\ntest a::one ... ok\ntest a::two ... FAILED\ntest b ... a child's wordsok\nSKIP: no sctp\n\
                    test result: FAILED. 2 passed; 1 failed; 0 ignored\n";
        let report = results(said, 1);
        assert_eq!((report.passed, report.failed), (1, vec!["a::two".to_owned()]));
        assert_eq!(report.skipped, ["no sctp"]);
        assert!(!results(said, 2).failed.is_empty());
        assert_eq!(results("test result: ok. 0 passed; 0 failed", 1).failed.len(), 1);
    }
}
