//! A server process that ends with its owner.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, bail};

/// How much of a log is worth showing.
const LAST_LINES: usize = 15;

/// The minor version in a whole one.
pub(super) fn minor(version: &str) -> anyhow::Result<u32> {
    let minor = version.split('.').nth(1).and_then(|minor| minor.parse().ok());
    minor.with_context(|| format!("{version:?} is no version of Kubernetes"))
}

/// A running process, killed on drop.
#[derive(Debug)]
pub(super) struct Server {
    name: &'static str,
    command: Command,
    child: Child,
    log: PathBuf,
}

impl Server {
    /// Starts the executable `name` of `assets` in `directory`, with its output in `name.log` there.
    pub(super) fn start(
        assets: &Path,
        name: &'static str,
        directory: &Path,
        arguments: &[String],
    ) -> anyhow::Result<Self> {
        let log = directory.join(name).with_extension("log");
        let file = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let executable = assets.join(name);
        let mut command = Command::new(&executable);
        command
            .args(arguments)
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("sharing the log")?)
            .stderr(file);
        let child = command.spawn().with_context(|| format!("starting {}", executable.display()))?;
        Ok(Self { name, command, child, log })
    }

    /// Kills it, and restarts it with the same arguments.
    pub(super) fn restart(&mut self) -> anyhow::Result<()> {
        self.kill();
        self.child = self.command.spawn().with_context(|| format!("starting {} again", self.name))?;
        Ok(())
    }

    /// Its process id.
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Fails, with the end of its log, if it has ended.
    pub(super) fn check_it_runs(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait().with_context(|| format!("looking after {}", self.name))? {
            None => Ok(()),
            Some(status) => bail!("{} ended ({status}):\n{}", self.name, self.last_words()),
        }
    }

    /// The end of its log.
    pub(super) fn last_words(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines.get(lines.len().saturating_sub(LAST_LINES)..).unwrap_or_default().join("\n")
    }

    /// Nothing that it holds outlives the test, so it need not shut down in order. Both calls only fail if it
    /// has already ended.
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
