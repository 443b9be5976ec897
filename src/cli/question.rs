//! Asks the daemon; with its flags after `--`, answers from the API server and the kernel instead.

use std::{ffi::OsString, io, iter, path::PathBuf};

use anyhow::{anyhow, bail};
use service::{Explanation, ObjectName, printable_line};

use super::{
    Command, Flags, Format,
    output::{self, say},
    parse,
    subject::{Namespace, ServiceName},
};
use crate::{
    config::Settings,
    daemon::WithoutDaemon,
    finding::Severity,
    serve::control::{AskError, Client, Control as _, SOCKET},
};

/// The daemon of this node.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct Daemon {
    /// Path of the daemon's control socket
    #[arg(long, value_name = "PATH", default_value = SOCKET, hide = true)]
    pub(super) control_socket: PathBuf,
}

impl Daemon {
    /// A client that reports if the answer takes long: a hanging daemon looks like a busy one.
    pub(super) fn client(&self) -> Client {
        self.silent_client().on_wait(|patience| {
            say(format_args!(
                "kube-ipvs: the daemon is busy or hangs: waiting for it for up to {} s",
                patience.as_secs()
            ));
        })
    }

    /// Asks where a Service is served. A Service that is not is an error.
    pub(super) fn explain_served(&self, service: &ObjectName) -> anyhow::Result<Explanation> {
        let explanation = self.client().explain(service, None)?;
        match explanation.not_served {
            Some(why) => {
                let why = [why.to_string()].into_iter().chain(explanation.hints).collect::<Vec<_>>();
                bail!("{service} is not served: {}", why.join("; "))
            }
            None => Ok(explanation),
        }
    }

    /// A client that reports nothing if the answer takes long.
    pub(super) fn silent_client(&self) -> Client {
        Client::new(&self.control_socket)
    }
}

/// A question to the daemon, and the form of the answer.
#[derive(clap::Args, Debug)]
pub(super) struct Ask {
    #[command(flatten)]
    pub(super) output: output::Args,
    #[command(flatten)]
    pub(super) daemon: Daemon,
}

/// A question about a Service.
#[derive(clap::Args, Debug)]
pub(super) struct AboutService {
    /// The Service
    #[arg(value_name = "NAMESPACE/NAME")]
    service: ServiceName,
    #[command(flatten)]
    namespace: Namespace,
    #[command(flatten)]
    pub(super) ask: Ask,
}

impl AboutService {
    /// Its name, with the namespace.
    pub(super) fn name(&self) -> anyhow::Result<ObjectName> {
        Ok(self.service.in_namespace(&self.namespace)?)
    }
}

/// A question that can be answered without a daemon, and the form of the answer.
#[derive(clap::Args, Debug)]
pub(super) struct Question {
    #[command(flatten)]
    pub(super) ask: Ask,
    /// All flags of the daemon, as in `-- --config=FILE --hostname-override=NAME`: then the answer comes from the API
    /// server and the kernel, without a daemon; needs root
    #[arg(last = true, value_name = "FLAGS")]
    daemon_flags: Vec<OsString>,
}

const WITHOUT: &str = "To answer without it, give the daemon's flags after --";

impl Question {
    /// Prints the notes on this node, which hold for all Services, after a text from the daemon.
    pub(super) fn print_notes(&self) -> io::Result<()> {
        if self.ask.output.format != Format::Text || !self.daemon_flags.is_empty() {
            return Ok(());
        }
        let advice = self.ask.daemon.silent_client().status().map(|status| status.advice).unwrap_or_default();
        let mut notes = advice.iter().filter(|finding| finding.severity == Severity::Note);
        notes.try_for_each(|note| output::print(&format!("note: {}\n", printable_line(&note.to_string()))))
    }

    /// Returns the daemon's answer, or that of `without_daemon` if the daemon's flags are given.
    pub(super) fn answer<T>(
        &self,
        ask: impl FnOnce(&Client) -> Result<T, AskError>,
        without_daemon: impl FnOnce(&mut WithoutDaemon<'_>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        if !self.daemon_flags.is_empty() {
            let settings = Settings::resolve(&daemon_flags(&self.daemon_flags)?)?;
            for warning in &settings.warnings {
                say(format_args!("kube-ipvs: {warning}"));
            }
            say(format_args!(
                "kube-ipvs: answering without the daemon, for the node {}",
                settings.services.node_name
            ));
            return without_daemon(&mut WithoutDaemon::read(&settings)?);
        }
        ask(&self.ask.daemon.client()).map_err(|error| match error {
            // This error ends with a question mark.
            AskError::NoDaemon { .. } => anyhow!("{error} {WITHOUT}"),
            AskError::TimedOut { .. } => anyhow!("{error}. {WITHOUT}"),
            error => error.into(),
        })
    }
}

/// The words after `--` are another command, or flags with which no daemon runs.
#[derive(Debug, thiserror::Error)]
#[error("after -- only flags of a running daemon are allowed")]
pub(super) struct NotOfDaemon;

/// The flags of a daemon that runs.
pub(super) fn daemon_flags(flags: &[OsString]) -> anyhow::Result<Flags> {
    let command_line = parse(iter::once("kube-ipvs".into()).chain(flags.iter().cloned()))?;
    let flags = match command_line.command {
        None => Some(command_line.flags),
        Some(Command::Run(flags)) => Some(*flags),
        Some(_) => None,
    };
    flags
        .filter(|flags| !(flags.cleanup || flags.init_only || !flags.write_config_to.is_empty()))
        .ok_or_else(|| NotOfDaemon.into())
}
