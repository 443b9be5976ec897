//! The real binary on a lab's node.

use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    lab::{CLUSTER_CIDR, Host},
    patience::{is_emulated, patience},
    process::Process,
};

/// How long the kernel may take to look as expected.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running `kube-ipvs`. It is killed when dropped; what it programmed stays, as on a real node.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    binary: PathBuf,
    socket: PathBuf,
    _files: tempfile::TempDir,
}

impl Daemon {
    /// Starts it on `node` with these arguments, plus the cluster's range, a control socket and a usual log.
    pub fn start(node: &Host, arguments: &[&str]) -> Result<Self> {
        let files = tempfile::tempdir()?;
        let socket = files.path().join("control.sock");
        Self::start_at(node, binary()?, arguments, files, socket)
    }

    /// Starts it with the control socket at this path.
    pub fn with_socket(node: &Host, arguments: &[&str], socket: &Path) -> Result<Self> {
        Self::of_version(node, binary()?, arguments, socket)
    }

    /// Starts the program of some version, with the control socket at this path.
    pub fn of_version(node: &Host, binary: PathBuf, arguments: &[&str], socket: &Path) -> Result<Self> {
        Self::start_at(node, binary, arguments, tempfile::tempdir()?, socket.to_owned())
    }

    fn start_at(
        node: &Host,
        binary: PathBuf,
        arguments: &[&str],
        files: tempfile::TempDir,
        socket: PathBuf,
    ) -> Result<Self> {
        let mut command = node.command(&binary.to_string_lossy());
        command
            .args(["--proxy-mode=ipvs", "--cluster-cidr", CLUSTER_CIDR, "--hostname-override=node", "-v=2"])
            .arg("--control-socket")
            .arg(&socket)
            .args(arguments);
        let process = Process::start(command, files.path().join("log"))?;
        Ok(Self { process, binary, socket, _files: files })
    }

    /// Starts it on `node`, fed by the manifests in `directory`.
    pub fn with_manifests(node: &Host, directory: &Path, arguments: &[&str]) -> Result<Self> {
        Self::start(node, &[&["--manifests", &directory.to_string_lossy()], arguments].concat())
    }

    /// Starts it on `node`, fed by the API server of this kubeconfig.
    pub fn with_kubeconfig(node: &Host, kubeconfig: &Path, arguments: &[&str]) -> Result<Self> {
        Self::start(node, &[&["--kubeconfig", &kubeconfig.to_string_lossy()], arguments].concat())
    }

    /// Starts a second daemon with the control socket of this one.
    pub fn another(&self, node: &Host, arguments: &[&str]) -> Result<Self> {
        Self::with_socket(node, arguments, &self.socket)
    }

    /// Runs a subcommand that talks to it, and returns what it printed.
    pub fn ask(&self, node: &Host, command: &str) -> Result<String> {
        self.ask_by(node, &self.binary, command)
    }

    /// The same, with the program of another version.
    pub fn ask_by(&self, node: &Host, binary: &Path, command: &str) -> Result<String> {
        let socket = self.socket.to_string_lossy();
        node.run(&binary.to_string_lossy(), &[command, "--control-socket", &socket])
    }

    /// Where its control socket is.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its status, as `kube-ipvs status -o json` prints it.
    pub fn status(&self, node: &Host) -> Result<serde_json::Value> {
        let socket = self.socket.to_string_lossy();
        let arguments = ["status", "-o", "json", "--control-socket", &socket];
        Ok(serde_json::from_str(&node.run(&self.binary.to_string_lossy(), &arguments)?)?)
    }

    /// Runs `kube-ipvs list`, which needs no daemon.
    pub fn list(&self, node: &Host) -> Result<String> {
        node.run(&self.binary.to_string_lossy(), &["list"])
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// The file that it logs to, which exists as long as this value.
    pub fn log_file(&self) -> PathBuf {
        self.process.log_file().to_owned()
    }

    /// Kills it with SIGKILL and waits until it is gone.
    pub fn kill(mut self) -> Result<()> {
        self.process.kill()
    }

    /// Waits for it to end by itself, and returns its exit code with what it logged.
    pub fn ended(mut self) -> Result<(Option<i32>, String)> {
        let deadline = Instant::now() + patience(PATIENCE);
        while Instant::now() < deadline {
            if let Some(status) = self.process.ended()? {
                return Ok((status.code(), self.log()));
            }
            thread::sleep(Duration::from_millis(20));
        }
        bail!("kube-ipvs still runs:\n{}", self.log())
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        if thread::panicking() {
            eprintln!("--- kube-ipvs said:\n{}---", self.log());
        }
    }
}

/// The binary under test: `KUBE_IPVS_BIN`, or the one that cargo put beside the running test.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("KUBE_IPVS_BIN") {
        return Ok(path.into());
    }
    let test = std::env::current_exe()?;
    let found = test.ancestors().skip(1).map(|dir| dir.join("kube-ipvs")).find(|path| path.is_file());
    found.context("no kube-ipvs beside the test: set KUBE_IPVS_BIN")
}

/// Tries until `check` succeeds; then returns its result. Fails with its last error.
pub fn eventually<T>(what: &str, check: impl FnMut() -> Result<T>) -> Result<T> {
    eventually_within(PATIENCE, what, check)
}

/// Tries until `check` succeeds, for at most this time, or four times as long in software
/// emulation.
pub fn eventually_within<T>(limit: Duration, what: &str, mut check: impl FnMut() -> Result<T>) -> Result<T> {
    let limit = patience(limit);
    let deadline = Instant::now() + limit;
    loop {
        match check() {
            Ok(found) => return Ok(found),
            Err(error) if Instant::now() > deadline => {
                let place = if is_emulated() { " (software emulation)" } else { "" };
                return Err(error.context(format!("not within {limit:?}{place}: {what}")));
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Waits until `ipvsadm -Ln` on `node` satisfies `check`, and returns it.
pub fn ipvsadm_shows(node: &Host, what: &str, check: impl Fn(&str) -> bool) -> Result<String> {
    eventually(what, || {
        let table = node.run("ipvsadm", &["-Ln"])?;
        ensure!(check(&table), "ipvsadm -Ln shows:\n{table}");
        Ok(table)
    })
}
