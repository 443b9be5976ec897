//! The command line.

mod bugreport;
mod cleanup;
mod config;
mod diff;
#[cfg(test)]
mod documented_tests;
mod explain;
mod history;
mod list;
mod preflight;
mod probe;
mod question;
mod requests;
mod status;
mod syn_recv;
mod top;
mod trace;

use std::{ffi::OsString, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::aot::{Generator, Shell};
use operator::{
    output::{self, Format, USAGE, print_script, refuse, say},
    subject::{self, Namespace, ServiceName},
};
use service::one_line;
use tracing::warn;

pub use crate::config::Flags;

use crate::{
    config::{Error, Settings},
    daemon,
    logging::{self, Level},
    node::init,
    process,
};
use question::{AboutService, Ask, Question};

/// The IPVS-mode node proxy for Kubernetes.
///
/// Without a command it is the daemon, and accepts kube-proxy's command line unchanged: `run` and its
/// flags, which `kube-ipvs run --help` lists.
#[derive(Debug, Parser)]
#[command(name = "kube-ipvs", version, args_override_self = true, args_conflicts_with_subcommands = true)]
#[command(mut_args(|flag| flag.hide(true)))]
pub struct CommandLine {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    flags: Flags,
}

/// What to do.
#[derive(Debug, Subcommand)]
enum Command {
    /// Program the kernel as the API server, or a directory of manifests, describes it (the default)
    #[command(args_override_self = true)]
    #[command(after_help = "Every other flag of kube-proxy is accepted without effect, which is logged.")]
    Run(Box<Flags>),
    /// Print what would happen on this node if the daemon started, and change nothing; exits with 0, with 1 if there
    /// are warnings, with 2 if the daemon would not start or serve
    Preflight(preflight::Preflight),
    /// Print this node's virtual servers as `ipvsadm -Ln` does; needs no daemon
    List(list::List),
    /// Print the difference between the kernel and the desired state; exits with 0, 1 or 2 as diff does
    Diff(Question),
    /// Print where a Service is served, and why each endpoint is used or not; or whose an address or a NodePort is
    Explain(explain::Explain),
    /// Print the last changes of a Service on this node, even of a deleted one, with time and cause
    History(AboutService),
    /// Print the changes of a Service, or of all Services, on this node as they happen, until Ctrl-C
    Watch {
        /// The Service; without it, all
        #[arg(value_name = "NAMESPACE/NAME")]
        service: Option<ServiceName>,
        #[command(flatten)]
        namespace: Namespace,
        #[command(flatten)]
        ask: Ask,
    },
    /// Have the daemon compare and repair everything, and print what it did
    Resync(Ask),
    /// Print the status of the daemon, or check it
    Status(status::Status),
    /// Connect to each endpoint and frontend of a Service from this node, and print which answer
    Probe(AboutService),
    /// Follow real packets to a Service through the kernel, and print where they end
    Trace(trace::Trace),
    /// Show the traffic of each Service and real server, as top does
    Top(top::Top),
    /// Print a script that completes this program's command lines in a shell
    Completion {
        /// The shell. To load it: `source <(kube-ipvs completion bash)`, `source <(kube-ipvs completion zsh)` below
        /// `compinit`, `kube-ipvs completion fish | source`
        shell: Shell,
    },
    /// Print the log level of the daemon, or set it until the daemon ends
    LogLevel {
        /// A number as for `-v`, what RUST_LOG takes (`debug`, `info,reconciler=trace`), one part's level
        /// (`reconciler=debug`), or `start`: the level at its start
        #[arg(value_name = "LEVEL")]
        set: Option<Level>,
        #[command(flatten)]
        ask: Ask,
    },
    /// Write one archive with what a bug report needs, and without secrets
    Bugreport(bugreport::BugReport),
    /// Convert configuration files
    #[command(subcommand)]
    Config(config::Config),
    /// Remove from this node what kube-ipvs has programmed and kube-proxy has left behind
    Cleanup(cleanup::Cleanup),
    /// Print the version of this program, and of the daemon if one answers
    Version(Ask),
}

/// The program: parses, runs, prints the error if there is one, and returns the exit code. docs/commands.md has those
/// of each command.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter().peekable();
    // In the image, packages and releases the plugin of kubectl is this program by its other name.
    if arguments.peek().is_some_and(|program| kubectl_ipvs::is_called(program)) {
        return kubectl_ipvs::main(arguments);
    }
    let command_line = match parse(arguments) {
        Ok(command_line) => command_line,
        Err(error) => return refuse("kube-ipvs", &error),
    };
    // With 1 these two say what they have found.
    let of_command = match command_line.command {
        Some(Command::Diff(_) | Command::Preflight(_)) => 2,
        _ => 1,
    };
    let result = match command_line.command {
        None => run(&command_line.flags),
        Some(Command::Run(flags)) => run(&flags),
        Some(Command::Preflight(asked)) => preflight::preflight(&asked),
        Some(Command::List(asked)) => list::list(&asked),
        Some(Command::Diff(question)) => diff::diff(&question),
        Some(Command::Explain(asked)) => explain::explain(&asked),
        Some(Command::History(asked)) => history::history(&asked),
        Some(Command::Watch { service, namespace, ask }) => {
            let named = namespace.name_of(service.as_ref());
            named.map_err(Into::into).and_then(|it| history::watch(it.as_ref(), &ask))
        }
        Some(Command::Resync(ask)) => requests::resync(&ask),
        Some(Command::Status(asked)) => status::status(&asked),
        Some(Command::Probe(asked)) => probe::probe(&asked),
        Some(Command::Trace(asked)) => trace::trace(&asked),
        Some(Command::Top(asked)) => top::top(asked),
        Some(Command::Completion { shell }) => completion(shell),
        Some(Command::LogLevel { set, ask }) => requests::log_level(set, &ask),
        Some(Command::Bugreport(asked)) => bugreport::bugreport(&asked),
        Some(Command::Config(asked)) => config::config(&asked),
        Some(Command::Cleanup(asked)) => cleanup::cleanup(asked),
        Some(Command::Version(asked)) => requests::version(&asked),
    };
    result.unwrap_or_else(|error| {
        complain(&error);
        ExitCode::from(failure(&error, of_command))
    })
}

/// Runs the daemon until a signal ends it, or carries out the flag that asks for something else.
fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    if flags.cleanup && flags.write_config_to.is_empty() {
        return cleanup::by_flag(flags);
    }
    let settings = Settings::resolve(flags)?;
    let log_level = logging::start(settings.log);
    for warning in &settings.warnings {
        warn!("{warning}");
    }
    if !flags.write_config_to.is_empty() {
        settings.effective.write_to(flags.write_config_to.as_ref())?;
    } else if flags.init_only {
        init::kernel_parameters(&settings)?;
    } else {
        process::raise_open_files();
        daemon::run(&settings, log_level, || Settings::resolve(flags))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the script of a shell.
fn completion(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut command = command();
    command.set_bin_name("kube-ipvs");
    command.build();
    let mut script = Vec::new();
    shell.try_generate(&command, &mut script)?;
    // clap_complete up to 4.6.11 spells the hyphen in bash's script in two ways, and no command is completed then:
    // https://github.com/clap-rs/clap/issues/6421. The other scripts have neither.
    print_script(&String::from_utf8(script)?.replace("kube__subcmd__ipvs", "kube__ipvs"))?;
    Ok(ExitCode::SUCCESS)
}

/// The exit code of a command that has failed. Where the command line or a configuration file cannot be used nothing
/// was tried, whatever the command.
fn failure(error: &anyhow::Error, of_command: u8) -> u8 {
    let of_configuration = error.downcast_ref::<Error>().is_some_and(Error::is_usage);
    let is_usage = of_configuration
        || error.is::<clap::Error>()
        || error.is::<question::NotOfDaemon>()
        || error.is::<subject::InvalidSubject>();
    if is_usage { USAGE } else { of_command }
}

/// Prints an error: one line, but for what is wrong with a command line.
fn complain(error: &anyhow::Error) {
    match error.downcast_ref::<clap::Error>() {
        Some(error) => {
            let _ = refuse("kube-ipvs", error);
        }
        None => say(format_args!("kube-ipvs: {}", one_line(error.as_ref()))),
    }
}

/// Parses a command line, the program's name first.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<CommandLine, clap::Error> {
    CommandLine::try_parse_from(arguments.into_iter().map(hyphenated))
}

/// The definition of the command line, for manual pages and tests.
pub fn command() -> clap::Command {
    CommandLine::command()
}

impl CommandLine {
    /// The daemon's flags, if the daemon is what is asked for.
    pub fn flags(&self) -> Option<&Flags> {
        match &self.command {
            None => Some(&self.flags),
            Some(Command::Run(flags)) => Some(flags),
            Some(_) => None,
        }
    }
}

/// Kubernetes takes `--cluster_cidr` for `--cluster-cidr`.
fn hyphenated(argument: OsString) -> OsString {
    match argument.to_str() {
        Some(text) if text.starts_with("--") => match text.split_once('=') {
            Some((flag, value)) => format!("{}={value}", flag.replace('_', "-")).into(),
            None => text.replace('_', "-").into(),
        },
        _ => argument,
    }
}
