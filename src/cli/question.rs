//! Asks the daemon; with its flags after `--`, answers from the API server and the kernel instead.

use std::{ffi::OsString, iter, path::Path};

use anyhow::{Context, bail};

use super::{Ask, Command, Flags, output::say, parse};
use crate::{
    config::Settings,
    daemon::WithoutDaemon,
    serve::control::{self, AskError, Request, Response},
};

/// Whom to ask.
#[derive(clap::Args, Debug)]
pub(super) struct Question {
    #[command(flatten)]
    pub(super) ask: Ask,
    /// The daemon's own flags, all of them, as in `-- --config=FILE --hostname-override=NAME`: it is not asked then, but
    /// the API server and the kernel are, as root
    #[arg(last = true, value_name = "FLAGS")]
    daemon_flags: Vec<OsString>,
}

const WITHOUT: &str = "To do without it, give its own flags after --";

/// Asks the daemon, and tells the user if that takes long: a hanging daemon looks like a busy one.
pub(super) fn ask(socket: &Path, request: &Request) -> Result<Response, AskError> {
    control::ask_aloud(socket, request, |patience| {
        say(format_args!(
            "kube-ipvs: the daemon is busy, or hangs: waiting for it up to {} s",
            patience.as_secs()
        ));
    })
}

impl Question {
    /// Returns the daemon's answer, or that of `look` without a daemon.
    pub(super) fn answer<T>(
        &self,
        request: &Request,
        expected: impl FnOnce(Response) -> Option<T>,
        look: impl FnOnce(&mut WithoutDaemon<'_>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        if !self.daemon_flags.is_empty() {
            let settings = Settings::resolve(&daemon_flags(&self.daemon_flags)?)?;
            for warning in &settings.warnings {
                say(format_args!("kube-ipvs: {warning}"));
            }
            say(format_args!("kube-ipvs: no daemon is asked; this is the node {}", settings.node_name));
            return look(&mut WithoutDaemon::look(&settings)?);
        }
        match ask(&self.ask.control_socket, request) {
            Ok(response) => expected(response).context("the daemon answered another question"),
            // This error ends with a question mark.
            Err(error @ AskError::NoDaemon { .. }) => bail!("{error} {WITHOUT}"),
            Err(error @ AskError::TimedOut { .. }) => bail!("{error}. {WITHOUT}"),
            Err(error) => Err(error.into()),
        }
    }
}

/// What comes after `--` is another command, or asks a daemon for something else than to run.
#[derive(Debug, thiserror::Error)]
#[error("after -- there are only flags of a daemon that runs")]
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
