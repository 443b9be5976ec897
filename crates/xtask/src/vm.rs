//! `cargo xtask vm -- CMD`: any command in the test kernel.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use guest::{
    Guest, KernelArgs,
    needs::{self, Task},
    platform::Platform,
    programs,
};

/// The command line of `cargo xtask vm`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    kernel: KernelArgs,
    /// The processor; another than this machine's is emulated by QEMU
    #[arg(long, value_enum, default_value_t = Platform::HERE)]
    arch: Platform,
    /// A file or directory the command needs; found at the same path in the guest
    #[arg(long = "file", value_name = "PATH")]
    files: Vec<PathBuf>,
    /// A directory the command can write to
    #[arg(long, value_name = "DIR")]
    share: Option<PathBuf>,
    /// How long the command may take, in seconds, before it is killed with exit code 124
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
    /// The guest's memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    memory: u32,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the command; its exit code is ours.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let absolute = |path: &PathBuf| {
        // Links stay as they are: the guest gets them too.
        path.metadata().and_then(|_| std::path::absolute(path)).with_context(|| path.display().to_string())
    };
    let mut files: Vec<PathBuf> = args.files.iter().map(absolute).collect::<anyhow::Result<_>>()?;
    files.extend(args.command.first().and_then(|program| location(program)));
    let share = args.share.as_ref().map(absolute).transpose()?;
    let kernel = args.kernel.choose_for(args.arch);
    needs::ensure(&[Task::Vm], || kernel.clone())?;
    let code = Guest {
        files,
        share,
        timeout: Duration::from_secs(args.timeout),
        memory: args.memory,
        ..Guest::new(kernel)
    }
    .run(&args.command)?;
    Ok(ExitCode::from(code))
}

/// The file a command line's first word stands for, if the host has it. Not resolved further: a
/// program may look at the name it was called by.
fn location(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        std::path::absolute(Path::new(program)).ok().filter(|path| path.is_file())
    } else {
        programs::find(program)
    }
}
