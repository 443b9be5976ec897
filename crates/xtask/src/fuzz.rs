//! `cargo xtask fuzz`: searches for bytes that some decoder does not handle correctly.
//!
//! What is fuzzed, and what must hold, is in crates/fuzz-targets. cargo-fuzz builds the programs of fuzz/
//! around it, and libFuzzer mutates the inputs of the corpus to reach new code. There is no `unsafe` for a
//! sanitizer to check, and without a sanitizer the stable compiler is enough.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result};
use guest::{files, programs, workspace, workspace::CargoTool};

/// What is installed once.
const CARGO_FUZZ: CargoTool = CargoTool { name: "cargo-fuzz", version: "0.13.1", arguments: &[] };
/// An input that takes more seconds is a fault: a daemon does nothing else while it decodes.
const LONGEST_INPUT: u32 = 10;
/// More MiB of memory are a fault: the memory for a small input must not depend on its content.
const MOST_MEMORY: u32 = 1024;

/// The command line of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long each target is fuzzed
    #[arg(long, default_value_t = 600)]
    seconds: u32,
    /// What to fuzz; everything if none is named
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
}

/// Fuzzes one target after the other, and prints a line for each. Fails if one of them has found something.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let targets = chosen(&args.targets)?;
    let program = CARGO_FUZZ.installed()?;
    programs::run(&mut cargo_fuzz(&program, "build"))?;

    println!("{HEAD}");
    let mut all_clean = true;
    for target in targets {
        all_clean &= fuzz(&program, &target, args.seconds)?;
    }
    Ok(if all_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The targets of these names, all if there are none.
fn chosen(names: &[String]) -> Result<Vec<String>> {
    let programs = files::list(&workspace::root().join("fuzz/src/bin"))?;
    let all: Vec<String> = programs.iter().map(|path| files::name(&path.with_extension(""))).collect();
    if let Some(unknown) = names.iter().find(|name| !all.contains(name)) {
        anyhow::bail!("no target {unknown}; there are {}", all.join(", "));
    }
    Ok(if names.is_empty() { all } else { names.to_vec() })
}

/// Fuzzes one target, and prints its row; whether nothing was found. libFuzzer's output goes to a file; inputs that
/// reached new code are kept for the next run.
fn fuzz(program: &PathBuf, target: &str, seconds: u32) -> Result<bool> {
    let root = workspace::root();
    let found = root.join("target/fuzz/corpus").join(target);
    fs::create_dir_all(&found).with_context(|| format!("creating {}", found.display()))?;
    let log = root.join(format!("target/fuzz/{target}.log"));
    let said = File::create(&log).with_context(|| format!("creating {}", log.display()))?;

    let mut command = cargo_fuzz(program, "run");
    command.args([target.as_ref(), found.as_os_str(), root.join("fuzz/corpus").join(target).as_os_str()]);
    command.args(["--", "-print_final_stats=1"]);
    command.arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-timeout={LONGEST_INPUT}"));
    command.arg(format!("-rss_limit_mb={MOST_MEMORY}"));
    eprintln!("xtask: {target} for {seconds} s, see {}", log.display());
    let status = command.stdout(said.try_clone()?).stderr(said).status().context("starting cargo-fuzz")?;
    let said = files::bytes(&log)?;
    println!("{}", row(target, &String::from_utf8_lossy(&said), status.success()));
    Ok(status.success())
}

fn cargo_fuzz(program: &PathBuf, command: &str) -> Command {
    let mut cargo_fuzz = Command::new(program);
    cargo_fuzz.current_dir(workspace::root());
    cargo_fuzz.args(["fuzz", command, "--sanitizer", "none", "--target-dir", "target/fuzz"]);
    cargo_fuzz
}

/// The head of the table of what came of each target.
const HEAD: &str = "\
| target         |  executions | corpus      | fault\n\
|----------------|------------:|-------------|------";

/// The row of a target, out of all that libFuzzer has said: how many inputs were run, how many there are that each
/// reach something and their bytes, such as `120/34Kb`, and the file with an input that failed.
fn row(target: &str, said: &str, is_clean: bool) -> String {
    let lines = || said.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let after = |mark: &str| lines().find_map(|line| Some(line.split_once(mark)?.1.trim()));
    let executions = after("stat::number_of_executed_units:").unwrap_or_default();
    let corpus = after("corp: ").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    let found = || after("Test unit written to ").or_else(|| lines().next()).unwrap_or("nothing was said");
    let fault = if is_clean { "none" } else { found() };
    format!("| {target:<14} | {executions:>11} | {corpus:<11} | {fault}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
INFO: Seed: 1\n\
#2\tINITED cov: 400 ft: 500 corp: 1/21b exec/s: 0 rss: 40Mb\n\
#12000\tNEW    cov: 410 ft: 600 corp: 20/3Kb lim: 60 exec/s: 900 rss: 50Mb L: 7/60 MS: 1 EraseBytes-\n";

    #[test]
    fn a_clean_run_is_read_from_its_last_lines() {
        let said = format!(
            "{SAID}#99\tDONE   cov: 410 ft: 600 corp: 21/4Kb lim: 60 exec/s: 900 rss: 50Mb\n\
             Done 54321 runs in 61 second(s)\nstat::number_of_executed_units: 54321\n"
        );
        assert_eq!(row("ipvs", &said, true), "| ipvs           |       54321 | 21/4Kb      | none");
    }

    #[test]
    fn a_run_that_found_something_names_the_file() {
        let said = format!(
            "{SAID}==7== ERROR: libFuzzer: deadly signal\nstat::number_of_executed_units: 12345\n\
             artifact_prefix='fuzz/artifacts/ipvs/'; Test unit written to fuzz/artifacts/ipvs/crash-1\nBase64: eA==\n"
        );
        let expected = "| ipvs           |       12345 | 20/3Kb      | fuzz/artifacts/ipvs/crash-1";
        assert_eq!(row("ipvs", &said, false), expected);
    }

    #[test]
    fn a_program_that_did_not_run_is_a_fault_too() {
        assert!(row("x", "error: no such target\n\n", false).ends_with("| error: no such target"));
    }
}
