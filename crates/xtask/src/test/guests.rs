//! Runs tests in guests side by side. In each guest cargo-nextest runs its share of the tests,
//! one at a time: a kernel message then stands next to the test that caused it.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use guest::{EndedEarly, Guest, Kernel, TIMED_OUT, api_server, quoted, workspace};

use super::{
    nextest::{self, Built, Selection},
    summary::Report,
};

/// How long a tier may take: emulated, on a machine that has other work too.
const TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// Guests for each processor: tests wait more than they compute.
const PER_PROCESSOR: usize = 2;

/// A guest's memory in MiB. The files of its etcd are in it, too.
const MEMORY: u32 = 4096;

/// What the tests find in a guest beside their programs.
#[derive(Clone, Debug, Default)]
pub(super) struct Equipment {
    /// Files and directories, at the same paths.
    pub(super) files: Vec<PathBuf>,
    /// Environment variables that name them.
    pub(super) env: Vec<(OsString, OsString)>,
    /// The API servers that the tests use.
    pub(super) api_servers: ApiServers,
}

/// API servers for the tests in a guest. The program `lab` starts them.
#[derive(Clone, Debug, Default)]
pub(super) enum ApiServers {
    #[default]
    None,
    /// One in each guest for all its tests.
    Shared(PathBuf),
    /// Each test starts one, and may stop it; an emulated guest still has only one, outside.
    Own(PathBuf),
}

impl Equipment {
    /// Adds a program, and the variable that names it.
    pub(super) fn program(&mut self, variable: &str, program: PathBuf) {
        self.env.push((variable.into(), program.clone().into()));
        self.files.push(program);
    }
}

/// Tests that run in guests.
pub(super) struct Run<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) built: &'a Built,
    pub(super) selection: &'a Selection,
    pub(super) equipment: &'a Equipment,
}

impl Run<'_> {
    /// Runs the selected tests in several guests, [`PER_PROCESSOR`] for each processor and none without a test; in one
    /// if the guest is the host.
    pub(super) fn in_guests(&self) -> Result<Report> {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let most = if *self.kernel == Kernel::Host { 1 } else { PER_PROCESSOR * processors };
        let lanes = most.min(self.built.count(self.selection)?);
        Ok(thread::scope(|scope| {
            let share = |lane| scope.spawn(move || self.share_to_its_end(lane, lanes));
            let guests: Vec<_> = (0..lanes).map(share).collect();
            let mut report = Report::default();
            for guest in guests {
                let results = guest.join().map(Report::from_result);
                report.extend(
                    results.unwrap_or_else(|_| Report::failure("a thread that ran a guest panicked")),
                );
            }
            report
        }))
    }

    /// Runs one guest's share of the tests. A guest that ends by itself, as one User Mode Linux of hundreds has done,
    /// says nothing about the tests: they are begun anew, once, and the summary says so.
    fn share_to_its_end(&self, lane: usize, lanes: usize) -> Result<Report> {
        match self.share(lane, lanes) {
            Err(error) if error.is::<EndedEarly>() => {
                let mut report = self.share(lane, lanes)?;
                report.begun_anew.push(error.to_string());
                Ok(report)
            }
            done => done,
        }
    }

    /// Runs it once.
    fn share(&self, lane: usize, lanes: usize) -> Result<Report> {
        let Self { kernel, built, selection, equipment } = *self;
        let nextest = nextest::program()?;
        let job =
            tempfile::Builder::new().prefix("kube-ipvs-tests-").tempdir().context("making a directory")?;
        let root = workspace::root();
        let share = Some(job.path().to_owned());
        let mut guest = Guest { timeout: TIMEOUT, memory: MEMORY, lane, share, ..Guest::new(kernel.clone()) };
        guest.env.clone_from(&equipment.env);
        // The test programs, the runner, and what they may read: its configuration, test data, manifests, and the documents
        // whose commands are tried. Tests of a crate run in its directory.
        let read = [".config", "Cargo.toml", "README.md", "crates", "docs", "manifests", "tests"];
        guest.files = built.executables();
        guest.files.extend(read.map(|path| root.join(path)));
        guest.files.push(nextest.clone());
        guest.files.extend(equipment.files.iter().cloned());

        let mut command: Vec<OsString> = Vec::new();
        let api_server = match &equipment.api_servers {
            ApiServers::None => None,
            ApiServers::Own(lab) => api_server::equip(&mut guest, lab)?,
            ApiServers::Shared(lab) => {
                let outside = api_server::equip(&mut guest, lab)?;
                if outside.is_none() {
                    guest.files.push(lab.clone());
                    command.extend([lab.into(), "control-plane".into(), "--".into()]);
                }
                outside
            }
        };
        command.extend([nextest.into(), "nextest".into(), "run".into(), "--profile=guest".into()]);
        command.extend(built.written(job.path())?);
        command.extend(["--test-threads=1".into(), "--partition".into()]);
        command.push(format!("slice:{}/{lanes}", lane + 1).into());
        command.extend(selection.arguments());

        let code = guest.run(&["sh".into(), "-c".into(), script(&root, &command, job.path()).into()])?;
        drop(api_server);
        if code == TIMED_OUT {
            return Ok(Report::failure(format!("the tests took more than {} s", TIMEOUT.as_secs())));
        }
        let report = job.path().join("junit.xml");
        nextest::conclude(&report, code)
    }
}

/// Runs the command at the workspace's root, and brings its report to where it outlives the guest.
fn script(root: &Path, command: &[OsString], job: &Path) -> String {
    let (report, kept) = (quoted(nextest::report_path(root, "guest")), quoted(job.join("junit.xml")));
    let (root, command) = (quoted(root), command.iter().map(quoted).collect::<Vec<_>>().join(" "));
    format!(
        "cd {root} || exit\n\
         rm -f {report}\n\
         {command}\n\
         code=$?\n\
         [ -e {report} ] && cp {report} {kept}\n\
         exit $code\n"
    )
}
