//! The commands that are programs of their own, which are built first and then run: `lab` is `cargo xtask demo`,
//! `bench`, `scale`, `chaos`, `soak` and `pictures`, `cluster` is `cargo xtask cluster` and `e2e`.
//!
//! They need most of the workspace or a Kubernetes client. What starts the tests does not wait for them.

use std::{
    ffi::OsString,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result};
use clap::Parser;
use guest::{
    Kernel, KernelArgs,
    needs::{self, Task},
    platform::Platform,
    workspace,
};

/// What the program is given as it is, `--help` among it.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// Those of the program's options that decide what it takes.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Decisive {
    #[command(flatten)]
    kernel: KernelArgs,
    #[arg(long, value_enum, default_value_t = Platform::HERE)]
    arch: Platform,
}

impl Args {
    /// Becomes `lab`, under the name that its help shows.
    pub(crate) fn lab(&self, command: &str) -> Result<ExitCode> {
        let task = match command {
            "demo" if self.has("--api") => Task::DemoWithApi,
            "bench" if self.has("--small") => Task::Bench,
            "bench" if self.has("--check") => Task::Count,
            // It measures the kernel alone.
            "bench" if self.has("schedulers") => Task::Vm,
            "bench" => Task::Measure,
            "scale" => Task::Simulate,
            "chaos" | "soak" => Task::Chaos,
            "pictures" => Task::Pictures,
            _ => Task::Demo,
        };
        // It computes for minutes.
        let program = if task == Task::Simulate { workspace::release_lab } else { workspace::lab };
        self.become_program(program, task, &[command])
    }

    /// Becomes `cluster`.
    pub(crate) fn cluster(&self, command: &[&str]) -> Result<ExitCode> {
        let task = if self.has("up") { Task::ClusterUp } else { Task::Cluster };
        self.become_program(workspace::cluster, task, command)
    }

    fn has(&self, word: &str) -> bool {
        self.arguments.iter().any(|argument| argument == word)
    }

    fn become_program(
        &self,
        program: fn() -> Result<PathBuf>,
        task: Task,
        command: &[&str],
    ) -> Result<ExitCode> {
        if !self.has("--help") && !self.has("-h") {
            needs::ensure(&[task], || self.kernel(task))?;
        }
        let program = program()?;
        let mut process = Command::new(&program);
        process.arg0("cargo xtask").args(command).args(&self.arguments);
        Err(process.exec()).with_context(|| format!("starting {}", program.display()))
    }

    /// The kernel that the program will choose. Wrong words are the program's to refuse.
    fn kernel(&self, task: Task) -> Kernel {
        let mut words = self.arguments.iter();
        let mut decisive = Vec::new();
        while let Some(word) = words.next() {
            let name = word.to_string_lossy();
            let is_decisive = |option: &str| {
                name.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
            };
            if ["--kernel", "--arch"].iter().any(|option| is_decisive(option)) {
                decisive.push(word);
                if !name.contains('=') {
                    decisive.extend(words.next());
                }
            }
        }
        let Ok(Decisive { kernel, arch }) = Decisive::try_parse_from(decisive) else {
            return KernelArgs::default().choose();
        };
        if matches!(task, Task::Demo | Task::DemoWithApi) {
            kernel.choose_for(arch)
        } else {
            kernel.prefer_for_tests()
        }
    }
}
