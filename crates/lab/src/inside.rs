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
    kube_ipvs: PathBuf,
    kube_proxy: PathBuf,
}

impl Programs {
    /// This program, and kube-ipvs as it is in the container image.
    pub(crate) fn released(myself: PathBuf) -> Result<Self> {
        let kube_ipvs = platform::build_program(Platform::HERE)?;
        Ok(Self { myself, kube_ipvs, kube_proxy: control_plane::kube_proxy()? })
    }

    /// Debug builds.
    pub(crate) fn debug() -> Result<Self> {
        let kube_ipvs = workspace::daemon()?;
        Ok(Self { myself: workspace::myself()?, kube_ipvs, kube_proxy: control_plane::kube_proxy()? })
    }

    /// A guest that has them.
    pub(crate) fn guest(&self, kernel: &Kernel, timeout: Duration) -> Guest {
        let Self { myself, kube_ipvs, kube_proxy } = self;
        Guest {
            files: vec![myself.clone(), kube_ipvs.clone(), kube_proxy.clone()],
            env: vec![
                ("KUBE_IPVS_BIN".into(), kube_ipvs.into()),
                ("KUBE_PROXY_BIN".into(), kube_proxy.into()),
            ],
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
