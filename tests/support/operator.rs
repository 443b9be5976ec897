//! kubectl, kubeadm and Helm, as an operator has them.

use std::{
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

/// The programs.
pub(crate) struct Clients {
    programs: PathBuf,
    /// What they may write to, instead of the home directory.
    pub(crate) home: TempDir,
}

impl Clients {
    /// `None`, said as a skip, where there are none.
    pub(crate) fn from_env_or_skip() -> Option<Self> {
        let Some(programs) = std::env::var_os("KUBE_IPVS_TEST_CLIENTS") else {
            println!("SKIP: no kubectl, kubeadm and helm: KUBE_IPVS_TEST_CLIENTS is not set");
            return None;
        };
        Some(Self { programs: programs.into(), home: tempfile::tempdir().unwrap() })
    }

    /// Runs one of them, or a shell that finds them, and returns what it printed. It knows of a cluster only what
    /// `command` says.
    pub(crate) fn run(&self, command: &mut Command, input: &str) -> Result<String> {
        let path = std::env::var("PATH").unwrap_or_default();
        if command.get_envs().all(|(name, _)| name != "KUBECONFIG") {
            command.env_remove("KUBECONFIG");
        }
        let mut child = command
            .env("PATH", format!("{}:{path}", self.programs.display()))
            .env("HOME", self.home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("{command:?}"))?;
        child.stdin.take().context("no stdin")?.write_all(input.as_bytes())?;
        let output = child.wait_with_output()?;
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&said));
        Ok(String::from_utf8(output.stdout)?)
    }
}
