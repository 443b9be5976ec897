//! `kubectl ipvs`: asks the proxies of all nodes at once, and prints what differs between them.
//!
//! For `kubectl ipvs`, kubectl runs a program of the name `kubectl-ipvs`. It runs where kubectl does, on an operator's
//! machine, and has kubectl run `kube-ipvs` in each pod (`kubectl`): so every kind of login works, and the right to `exec`
//! is all that it takes. Where kube-ipvs is not installed yet, a Job on each node runs it (`preflight`). What the nodes
//! answer is put together by functions of plain values (`tables`, `explain`, `preflight::text`).
//!
//! It needs nothing of Linux. `kube-ipvs` is the same program by its other name; the daemon has no part in it.

mod explain;
mod fleet;
mod kubectl;
mod node_table;
mod pod;
mod preflight;
mod tables;

use std::{
    ffi::{OsStr, OsString},
    path::Path,
    process::ExitCode,
};

use clap::{CommandFactory, Parser, Subcommand};
use operator::{
    output::{self, USAGE, print_as, refuse, say},
    subject::{Namespace, Subject},
};
use serde::de::DeserializeOwned;
use service::one_line;

use fleet::{Answered, FleetJson};
use kubectl::{Cluster, Kubectl};
use preflight::{NoImage, Preflight};

/// The name by which kubectl finds the program.
const NAME: &str = "kubectl-ipvs";
/// How the program is called.
const CALLED: &str = "kubectl ipvs";

/// Asks kube-ipvs on all nodes at once.
///
/// Nodes with trouble and those that differ come first; the others are counted. The exit code is 0 if every node answers
/// and is in order, 1 otherwise.
#[derive(Debug, Parser)]
#[command(name = NAME, bin_name = CALLED, version)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

/// The question to ask.
#[derive(Debug, Subcommand)]
enum Command {
    /// Print which nodes have programmed the desired state, and the problems of the others
    Status(Nodes),
    /// Print the differences between each node's kernel and its desired state
    Diff(Nodes),
    /// Print where a Service is served, or whose an address or a NodePort is, and on which nodes that differs
    Explain {
        /// The Service; an address with or without its port; or the number of a NodePort
        #[arg(value_name = "NAMESPACE/NAME|IP[:PORT[/PROTOCOL]]|PORT")]
        subject: Subject,
        #[command(flatten)]
        namespace: Namespace,
        #[command(flatten)]
        nodes: Nodes,
    },
    /// Print the traffic of each Service on all nodes together, largest first
    Top(Nodes),
    /// Print what would happen on the nodes if kube-ipvs started, and where they differ; it does not have to be installed.
    /// A Job on each node runs kube-ipvs preflight, which changes nothing, and is removed afterwards
    Preflight(Preflight),
}

/// The nodes to ask, and the form in which the answers are printed.
#[derive(clap::Args, Debug)]
struct Nodes {
    #[command(flatten)]
    cluster: Cluster,
    /// Ask this node only; may be given several times
    #[arg(long = "node", value_name = "NAME")]
    only: Vec<String>,
    #[command(flatten)]
    output: output::Args,
}

/// Whether the plugin was called, judging by the name of the program.
pub fn is_called(program: &OsStr) -> bool {
    Path::new(program).file_name() == Some(OsStr::new(NAME))
}

/// The plugin: asks, prints, and returns the exit code.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let asked = match CommandLine::try_parse_from(arguments) {
        Ok(CommandLine { command }) => command,
        Err(error) => return refuse(CALLED, &error),
    };
    let all_in_order = match asked {
        Command::Status(nodes) => nodes.ask(&["status", "--check"], tables::status),
        Command::Diff(nodes) => nodes.ask(&["diff"], tables::diff),
        Command::Explain { subject, namespace, nodes } => match subject.to_argument(&namespace) {
            Err(error) => {
                say(format_args!("{CALLED}: {error}"));
                return ExitCode::from(USAGE);
            }
            Ok(argument) => match subject {
                Subject::Service(_) => nodes.ask(&["explain", &argument], explain::text),
                Subject::Address(_) => nodes.ask(&["explain", &argument], explain::address_text),
            },
        },
        Command::Top(nodes) => nodes.ask(&["top", "--iterations=1"], tables::top),
        Command::Preflight(preflight) => preflight.run(),
    };
    match all_in_order {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(format_args!("{CALLED}: {}", one_line(error.as_ref())));
            if error.is::<NoImage>() { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}

/// The definition of the command line, for manual pages and tests.
pub fn command() -> clap::Command {
    CommandLine::command()
}

impl Nodes {
    /// Asks the nodes, and prints their answers. Returns whether all have answered and are in order.
    fn ask<T: DeserializeOwned + Send>(
        &self,
        command: &[&str],
        text: impl FnOnce(&[Answered<T>]) -> String,
    ) -> anyhow::Result<bool> {
        let kubectl = Kubectl(&self.cluster);
        let answers = fleet::ask(kubectl.pods()?, &self.only, |pod| kubectl.exec(pod, command));
        anyhow::ensure!(!answers.is_empty(), "{}", kubectl.found_nothing());
        print_as(self.output.format, &FleetJson::new(&answers), || text(&answers))?;
        Ok(answers.iter().all(Answered::is_in_order))
    }
}

#[cfg(test)]
mod tests;
