//! A program that runs beside the tests, with all that it prints in a file.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use anyhow::{Context as _, Result};

/// A running program. It is killed when dropped: nothing that it holds outlives the test, so it need not end in order.
#[derive(Debug)]
pub(crate) struct Process {
    command: Command,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts it, with its output in the file `log`.
    pub(crate) fn start(mut command: Command, log: PathBuf) -> Result<Self> {
        let file = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone().context("sharing the log")?).stderr(file);
        let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        Ok(Self { command, child, log })
    }

    /// Kills it, and starts it again with the same arguments.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.child = self.command.spawn().with_context(|| format!("starting {:?} again", self.command))?;
        Ok(())
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Where its output is.
    pub(crate) fn log_file(&self) -> &Path {
        &self.log
    }

    /// What it has printed so far.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// How it has ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("looking after {:?}", self.command))
    }

    /// Kills it with SIGKILL and waits until it is gone.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// The last lines of a log.
pub fn last_lines(log: &str, lines: usize) -> String {
    let all: Vec<&str> = log.lines().collect();
    all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n")
}
