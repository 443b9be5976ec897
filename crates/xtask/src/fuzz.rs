//! `cargo xtask fuzz`: searches for bytes that some decoder does not handle correctly.
//!
//! What is fuzzed, and what must hold, is in crates/fuzz-targets. cargo-fuzz builds the programs of fuzz/
//! around it, and libFuzzer mutates the inputs of the corpus to reach new code. There is no `unsafe` for a
//! sanitizer to check, and without a sanitizer the stable compiler is enough.

use std::{
    fs::{self, File},
    io::Write as _,
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, ensure};
use guest::{workspace, workspace::CargoTool};

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
    let built = cargo_fuzz(&program, "build").status().context("starting cargo-fuzz")?;
    ensure!(built.success(), "cargo fuzz build failed");

    println!("{}", Outcome::HEAD);
    let mut clean = true;
    for target in targets {
        let outcome = fuzz(&program, &target, args.seconds)?;
        clean &= outcome.fault.is_none();
        println!("{}", outcome.row(&target));
        std::io::stdout().flush()?;
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The targets of these names, all if there are none.
fn chosen(names: &[String]) -> Result<Vec<String>> {
    let directory = workspace::root().join("fuzz/src/bin");
    let mut all = Vec::new();
    for entry in fs::read_dir(&directory).with_context(|| format!("reading {}", directory.display()))? {
        all.extend(entry?.path().file_stem().map(|stem| stem.to_string_lossy().into_owned()));
    }
    all.sort();
    if let Some(unknown) = names.iter().find(|name| !all.contains(name)) {
        anyhow::bail!("no target {unknown}; there are {}", all.join(", "));
    }
    Ok(if names.is_empty() { all } else { names.to_vec() })
}

/// Fuzzes one target. libFuzzer's output goes to a file; inputs that reached new code are kept for the next
/// run.
fn fuzz(program: &PathBuf, target: &str, seconds: u32) -> Result<Outcome> {
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
    let said = fs::read(&log).with_context(|| format!("reading {}", log.display()))?;
    Ok(Outcome::read(&String::from_utf8_lossy(&said), status.success()))
}

fn cargo_fuzz(program: &PathBuf, command: &str) -> Command {
    let mut cargo_fuzz = Command::new(program);
    cargo_fuzz.current_dir(workspace::root());
    cargo_fuzz.args(["fuzz", command, "--sanitizer", "none", "--target-dir", "target/fuzz"]);
    cargo_fuzz
}

/// The result of one target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Outcome {
    executions: u64,
    seconds: u64,
    /// How many inputs there are that each reach something, and their bytes: `120/34Kb`.
    corpus: String,
    /// What was found: the file with the input, or the last line of output.
    fault: Option<String>,
}

impl Outcome {
    /// The table's head.
    const HEAD: &str = "\
| target         |  executions | seconds | corpus      | fault\n\
|----------------|------------:|--------:|-------------|------";

    /// Reads the whole output; `clean` is whether the program succeeded.
    fn read(said: &str, clean: bool) -> Self {
        let mut outcome = Self::default();
        let mut written = None;
        for line in said.lines() {
            if let Some(number) = line.strip_prefix("stat::number_of_executed_units:") {
                outcome.executions = number.trim().parse().unwrap_or_default();
            } else if let Some((_, seconds)) =
                line.strip_prefix("Done ").and_then(|line| line.split_once(" in "))
            {
                outcome.seconds = first_number(seconds);
            } else if let Some((_, file)) = line.split_once("Test unit written to ") {
                written = Some(file.to_owned());
            } else if let Some(corpus) = line.starts_with('#').then(|| corpus(line)).flatten() {
                corpus.clone_into(&mut outcome.corpus);
            }
        }
        if !clean {
            let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing was said");
            outcome.fault = Some(written.unwrap_or_else(|| last.to_owned()));
        }
        outcome
    }

    /// The table's row for this target.
    fn row(&self, target: &str) -> String {
        let Self { executions, seconds, corpus, fault } = self;
        let fault = fault.as_deref().unwrap_or("none");
        format!("| {target:<14} | {executions:>11} | {seconds:>7} | {corpus:<11} | {fault}")
    }
}

/// `second(s)` and the like may follow.
fn first_number(text: &str) -> u64 {
    text.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// The word after `corp:`.
fn corpus(line: &str) -> Option<&str> {
    line.split_once("corp: ")?.1.split_whitespace().next()
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
        let outcome = Outcome::read(&said, true);
        assert_eq!(outcome.row("ipvs"), "| ipvs           |       54321 |      61 | 21/4Kb      | none");
    }

    #[test]
    fn a_run_that_found_something_names_the_file() {
        let said = format!(
            "{SAID}==7== ERROR: libFuzzer: deadly signal\nstat::number_of_executed_units: 12345\n\
             artifact_prefix='fuzz/artifacts/ipvs/'; Test unit written to fuzz/artifacts/ipvs/crash-1\nBase64: eA==\n"
        );
        let outcome = Outcome::read(&said, false);
        assert_eq!((outcome.executions, outcome.corpus.as_str()), (12_345, "20/3Kb"));
        assert_eq!(outcome.fault.as_deref(), Some("fuzz/artifacts/ipvs/crash-1"));
    }

    #[test]
    fn a_program_that_did_not_run_is_a_fault_too() {
        assert_eq!(
            Outcome::read("error: no such target\n\n", false).fault.as_deref(),
            Some("error: no such target")
        );
    }
}
