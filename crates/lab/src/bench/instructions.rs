//! How many instructions kube-ipvs's own computation takes, phase by phase, compared with earlier counts.
//!
//! Times on a loaded machine say little; a count under valgrind is the same on every run. It depends on the
//! compiler, and a little on the C library and the processor, so the baseline names its compiler, and only
//! growth by more than a tenth is a failure.

use std::{
    env::consts::ARCH,
    fmt, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use guest::{needs::VALGRIND, programs, workspace};
use serde::{Deserialize, Serialize};
use testkit::pure_path::Phase;

/// The accepted growth, in percent.
const TOLERANCE: u64 = 10;

/// What was counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Counts {
    /// The processor architecture.
    architecture: String,
    /// `rustc --version`.
    compiler: String,
    phases: Vec<Count>,
}

/// What one phase takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Count {
    phase: Phase,
    instructions: u64,
}

/// A phase compared with its earlier count, if that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Compared {
    now: Count,
    before: Option<u64>,
}

/// The result of a check.
#[derive(Debug)]
pub enum Check {
    /// Each phase was counted and compared. What is wrong with those that have become dearer.
    Compared(Vec<String>),
    /// Nothing can be counted here, for this reason.
    Unavailable(String),
}

/// Counts, shows and compares; or writes down what was counted.
pub(super) fn run(bless: bool) -> Result<ExitCode> {
    if bless {
        let counts = Counts::here()?;
        let path = baseline_path();
        fs::write(&path, serde_json::to_string_pretty(&counts)? + "\n")
            .with_context(|| path.display().to_string())?;
        println!("{}", path.display());
        return Ok(ExitCode::SUCCESS);
    }
    match check()? {
        Check::Compared(complaints) if complaints.is_empty() => Ok(ExitCode::SUCCESS),
        Check::Compared(complaints) => bail!(complaints.join("\n")),
        Check::Unavailable(reason) => bail!(reason),
    }
}

/// Counts, shows, and compares.
pub fn check() -> Result<Check> {
    let path = baseline_path();
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let baseline: Counts = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    if baseline.architecture != ARCH {
        return Ok(Check::Unavailable(format!(
            "instructions were counted for {} only",
            baseline.architecture
        )));
    }
    if let Err(error) = programs::ensure(&[VALGRIND]) {
        return Ok(Check::Unavailable(format!("{error:#}")));
    }
    let counts = Counts::here()?;
    let same_compiler = counts.compiler == baseline.compiler;
    if !same_compiler {
        println!("before: {}; now: {}: shown, and not judged", baseline.compiler, counts.compiler);
    }
    let compared = counts.beside(&baseline);
    println!("{:<13}{:>15}{:>15}{:>9}", "phase", "before", "now", "change");
    for compared in &compared {
        println!("{compared}");
    }
    let worse = compared.iter().filter(|compared| same_compiler && compared.is_worse());
    Ok(Check::Compared(worse.map(Compared::complaint).collect()))
}

impl Counts {
    /// Counts everything.
    fn here() -> Result<Self> {
        programs::ensure(&[VALGRIND])?;
        eprintln!("xtask: building crates/watcher/benches/pure_path.rs");
        let program = workspace::pure_path()?;
        let mut totals = Vec::new();
        for phase in Phase::ALL {
            eprintln!("xtask: counting instructions as far as {}", phase.name());
            totals.push((phase, total(&program, phase)?));
        }
        let phases = totals.windows(2).filter_map(|pair| match pair {
            [(_, before), (phase, after)] => {
                Some(Count { phase: *phase, instructions: after.saturating_sub(*before) })
            }
            _ => None,
        });
        let architecture = ARCH.to_owned();
        Ok(Self { architecture, compiler: workspace::compiler_version()?, phases: phases.collect() })
    }

    /// Each phase beside what it was in `baseline`.
    fn beside(&self, baseline: &Self) -> Vec<Compared> {
        let before = |now: &Count| {
            let same = baseline.phases.iter().find(|before| before.phase == now.phase);
            same.map(|before| before.instructions)
        };
        self.phases.iter().map(|now| Compared { now: *now, before: before(now) }).collect()
    }
}

impl Compared {
    /// Whether it has grown by more than the tolerance, or cannot be compared.
    fn is_worse(&self) -> bool {
        self.before.is_none_or(|before| self.now.instructions * 100 > before * (100 + TOLERANCE))
    }

    fn complaint(&self) -> String {
        let name = self.now.phase.name();
        match self.before {
            Some(_) => format!(
                "{name}: {} instructions; if that is as it should be: cargo xtask bench --check --bless",
                self.change()
            ),
            None => format!("{name}: not counted yet: cargo xtask bench --check --bless"),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
    fn change(&self) -> String {
        let change = |before: u64| (self.now.instructions as f64 / before as f64 - 1.0) * 100.0;
        self.before.map_or("–".to_owned(), |before| format!("{:+.1}%", change(before)))
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Count { phase, instructions } = self.now;
        let before = self.before.map_or("–".to_owned(), |before| before.to_string());
        write!(f, "{:<13}{before:>15}{instructions:>15}{:>9}", phase.name(), self.change())
    }
}

fn baseline_path() -> PathBuf {
    workspace::root().join("crates/watcher/benches/instructions.json")
}

/// The instructions of a run as far as this phase.
fn total(program: &Path, phase: Phase) -> Result<u64> {
    let mut valgrind = Command::new(programs::find(VALGRIND.name).context("valgrind is missing")?);
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    valgrind.arg(program).arg(phase.name()).stdin(Stdio::null()).stdout(Stdio::null());
    let output = valgrind.output().context("starting valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} {} under valgrind:\n{said}", program.display(), phase.name());
    collected(&said).with_context(|| format!("valgrind does not say what it has counted:\n{said}"))
}

/// The sum that callgrind ends with: `==1234== Collected : 5678`.
fn collected(said: &str) -> Option<u64> {
    let (_, sum) = said.lines().find_map(|line| line.split_once("Collected :"))?;
    sum.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(phases: &[(Phase, u64)]) -> Counts {
        let phases = phases.iter().map(|&(phase, instructions)| Count { phase, instructions });
        Counts { architecture: "x86_64".to_owned(), compiler: "rustc".to_owned(), phases: phases.collect() }
    }

    #[test]
    fn a_phase_may_grow_by_a_tenth_and_become_cheaper_but_not_grow_by_more() {
        let before = counts(&[(Phase::Decode, 1000), (Phase::Plan, 1000), (Phase::Change, 1000)]);
        let now = counts(&[(Phase::Decode, 1100), (Phase::Plan, 1101), (Phase::Change, 10)]);
        let compared = now.beside(&before);
        assert_eq!(compared.iter().map(Compared::is_worse).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(
            compared[1].complaint(),
            "plan: +10.1% instructions; if that is as it should be: cargo xtask bench --check --bless"
        );
    }

    #[test]
    fn a_phase_that_was_never_counted_is_a_failure() {
        let compared = counts(&[(Phase::Desire, 1)]).beside(&counts(&[(Phase::Decode, 1)]));
        assert!(compared.iter().all(Compared::is_worse));
    }

    #[test]
    fn the_sum_is_found_in_what_valgrind_says() {
        let said = "==7== Callgrind\n==7== Events    : Ir\n==7== Collected : 52411906\n==7== \n";
        assert_eq!(collected(said), Some(52_411_906));
        assert_eq!(collected("valgrind: no such file\n"), None);
    }

    /// The committed baseline has every phase, so that --check compares all that it counts.
    #[test]
    fn the_committed_counts_have_every_phase() {
        let committed: Counts = serde_json::from_str(&fs::read_to_string(baseline_path()).unwrap()).unwrap();
        let phases: Vec<_> = committed.phases.iter().map(|count| count.phase).collect();
        assert_eq!(phases, Phase::ALL[1..]);
        assert!(committed.phases.iter().all(|count| count.instructions > 0));
    }
}
