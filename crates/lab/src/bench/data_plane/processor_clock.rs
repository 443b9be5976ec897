//! How long the processor has worked for the whole guest.
//!
//! User Mode Linux accounts by its ticks, of which there are a hundred a second, and takes the time in which the host
//! runs something else for its own. So the host is asked: a file in a directory that both see is the question, another the
//! answer. The guest waits meanwhile, so that all it has done is in the answer. Other kernels are asked themselves.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

/// Names the directory.
pub(crate) const DIRECTORY: &str = "KUBE_IPVS_PROCESSOR_CLOCK";
/// The time between two looks for a question or an answer.
const PAUSE: Duration = Duration::from_millis(1);
/// How long the guest waits for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// A tick in /proc/stat, in seconds.
const TICK: f64 = 0.01;

/// The guest's half: where the host answers, if this kernel cannot.
#[derive(Clone, Debug)]
pub struct ProcessorClock {
    directory: Option<PathBuf>,
    asked: Arc<AtomicU64>,
}

impl ProcessorClock {
    /// The clock that this process can read.
    pub(super) fn here() -> Result<Self> {
        let directory = std::env::var_os(DIRECTORY).map(PathBuf::from);
        if let Some(directory) = &directory {
            ensure!(directory.is_dir(), "{} is not a directory", directory.display());
        }
        Ok(Self { directory, asked: Arc::default() })
    }

    /// The seconds that the processor has worked.
    pub(super) fn now(&self) -> Result<f64> {
        match &self.directory {
            Some(directory) => self.ask(directory),
            None => {
                busy(&fs::read_to_string("/proc/stat")?).context("/proc/stat has no line for all processors")
            }
        }
    }

    fn ask(&self, directory: &Path) -> Result<f64> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        File::create(question(directory, number))?;
        let (answer, deadline) = (answer(directory, number), Instant::now() + PATIENCE);
        loop {
            thread::sleep(PAUSE);
            if let Ok(text) = fs::read_to_string(&answer) {
                let nanoseconds: u64 = text.trim().parse().context("what the host answered")?;
                return Ok(Duration::from_nanos(nanoseconds).as_secs_f64());
            }
            ensure!(Instant::now() < deadline, "the host does not say how long the processor has worked");
        }
    }
}

fn question(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("question-{number}"))
}

fn answer(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("answer-{number}"))
}

/// Seconds in all states but idle, of all processors.
fn busy(stat: &str) -> Option<f64> {
    let mut ticks = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().map(str::parse::<f64>);
    // User, nice, system, idle, waiting for input and output, interrupts, soft interrupts.
    let mut next = || ticks.next()?.ok();
    let busy = next()? + next()? + next()?;
    let (_, _) = (next()?, next()?);
    Some((busy + next()? + next()?) * TICK)
}

/// The host's half: answers in a directory, which both see, until it is dropped.
pub(crate) struct Answering {
    directory: TempDir,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Answering {
    /// Answers for what this process has started.
    pub(crate) fn start() -> Result<Self> {
        let directory = tempfile::tempdir().context("a directory for the processor's time")?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, shared) = (Arc::clone(&stop), directory.path().to_owned());
        let thread = thread::spawn(move || {
            let mut number = 0;
            while !stopped.load(Ordering::Relaxed) {
                if question(&shared, number).exists() {
                    // The guest says that it got none.
                    drop(reply(&shared, number));
                    number += 1;
                } else {
                    thread::sleep(PAUSE);
                }
            }
        });
        Ok(Self { directory, stop, thread: Some(thread) })
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn reply(directory: &Path, number: u64) -> Result<()> {
    let written = directory.join("written");
    fs::write(&written, spent_by_descendants().to_string())?;
    // The question stays: the guest's file system may not have looked at what it has made yet.
    Ok(fs::rename(written, answer(directory, number))?)
}

/// The nanoseconds that all processes below this one have run. Each program of the guest is one of them, and its kernel.
fn spent_by_descendants() -> u64 {
    let processes: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let process = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // Behind the name, which may have spaces: the state, then the parent.
            let parent = stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()?;
            Some((process, parent))
        })
        .collect();
    let mut descendants = BTreeSet::from([std::process::id()]);
    loop {
        let before = descendants.len();
        let children = processes.iter().filter(|(_, parent)| descendants.contains(parent));
        let children: Vec<u32> = children.map(|(process, _)| *process).collect();
        descendants.extend(children);
        if descendants.len() == before {
            break;
        }
    }
    descendants.remove(&std::process::id());
    descendants.into_iter().map(spent).sum()
}

/// The nanoseconds that the threads of a process have run.
fn spent(process: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let of_thread = |thread: fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    threads.filter_map(of_thread).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_idle_is_work() {
        assert_eq!(busy("cpu  100 20 3 5000 70 4 1 0 0 0\ncpu0 1 1 1"), Some(1.28));
        assert_eq!(busy("intr 1"), None);
    }

    #[test]
    fn the_host_answers_each_question_and_no_time_is_lost() {
        let answering = Answering::start().unwrap();
        let directory = Some(answering.directory().to_owned());
        let clock = ProcessorClock { directory, asked: Arc::default() };
        let first = clock.now().unwrap();
        assert!(clock.now().unwrap() >= first);
    }
}
