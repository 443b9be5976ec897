//! This program again, in a guest: the half of a command that needs its kernel.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use guest::{
    Guest, Kernel, TIMED_OUT, api_server,
    go::control_plane,
    platform::{self, Platform},
    workspace,
};
use serde::Serialize;

/// Guest memory in MiB: the stand-in for an API server keeps all its answers, 150 MB for the largest cluster; of a real
/// one etcd's files are in it.
const MEMORY: u32 = 4096;

/// The programs that are run in the guest.
pub(crate) struct Programs {
    pub(crate) myself: PathBuf,
    /// The programs that are measured or disturbed, each with the variable that names it in the guest.
    others: Vec<(&'static str, PathBuf)>,
}

impl Programs {
    /// This program, and kube-ipvs as it is in the container image.
    pub(crate) fn released(myself: PathBuf) -> Result<Self> {
        Self::with(myself, platform::build_program(Platform::HERE)?)
    }

    /// Debug builds.
    pub(crate) fn debug() -> Result<Self> {
        Self::with(workspace::myself()?, workspace::daemon()?)
    }

    /// This program alone.
    pub(crate) fn alone(myself: PathBuf) -> Self {
        Self { myself, others: Vec::new() }
    }

    fn with(myself: PathBuf, kube_ipvs: PathBuf) -> Result<Self> {
        let kube_proxy = control_plane::kube_proxy()?;
        Ok(Self { myself, others: vec![("KUBE_IPVS_BIN", kube_ipvs), ("KUBE_PROXY_BIN", kube_proxy)] })
    }

    /// A guest that has them.
    pub(crate) fn guest(&self, kernel: &Kernel, timeout: Duration) -> Guest {
        let others = self.others.iter();
        Guest {
            files: [&self.myself].into_iter().chain(others.clone().map(|(_, path)| path)).cloned().collect(),
            env: others.map(|(name, path)| ((*name).into(), path.into())).collect(),
            timeout,
            memory: MEMORY,
            ..Guest::new(kernel.clone())
        }
    }

    /// What runs there: a command of this program, which does what the plan says.
    pub(crate) fn command(&self, command: &str, plan: &impl Serialize) -> Result<[OsString; 4]> {
        let plan = serde_json::to_string(plan)?;
        Ok([self.myself.clone().into(), command.into(), "--inside".into(), plan.into()])
    }

    /// Runs a command in a guest where it may write to `directory` and reaches an API server. Fails if the command does.
    pub(crate) fn run_with_api_server(
        &self,
        kernel: &Kernel,
        command: &str,
        plan: &impl Serialize,
        directory: &Path,
        timeout: Duration,
    ) -> Result<()> {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        let mut guest = self.guest(kernel, timeout);
        guest.share = Some(directory.to_owned());
        let _api_server = api_server::equip(&mut guest, &self.myself)?;
        ended(guest.run(&self.command(command, plan)?)?, timeout)
    }
}

/// Fails unless the command has succeeded.
pub(crate) fn ended(code: u8, timeout: Duration) -> Result<()> {
    ensure!(code != TIMED_OUT, "it took more than {} s", timeout.as_secs());
    ensure!(code == 0, "it ended with code {code}");
    Ok(())
}
