//! `cargo xtask fuzz`: searches for bytes that some decoder does not handle correctly.
//!
//! What is fuzzed, and what must hold, is in crates/fuzz-targets. cargo-fuzz builds the programs of fuzz/
//! around it, and libFuzzer mutates the inputs of the corpus to reach new code. There is no `unsafe` for a
//! sanitizer to check, and without a sanitizer the stable compiler is enough.

mod outcome;

use std::{
    fs::{self, File},
    io::Write as _,
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, ensure};
use guest::{workspace, workspace::CargoTool};
use outcome::Outcome;

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
