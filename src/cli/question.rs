//! A question that the daemon answers, and the node itself where no daemon runs.

use std::{ffi::OsString, iter};

use anyhow::{Context, bail};

use super::{Ask, parse};
use crate::{
    config::Settings,
    control::{AskError, Request, Response, ask},
    daemon::Absent,
};

/// Whom to ask.
#[derive(clap::Args, Debug)]
pub(super) struct Question {
    #[command(flatten)]
    pub(super) ask: Ask,
    /// The daemon's command line, for when it does not run: the API server and the kernel are asked then
    #[arg(last = true, value_name = "FLAGS")]
    daemon: Vec<OsString>,
}

impl Question {
    /// The daemon's answer, or what `look` finds without one.
    pub(super) fn answer<T>(
        &self,
        request: &Request,
        expected: impl FnOnce(Response) -> Option<T>,
        look: impl FnOnce(Absent) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        match ask(&self.ask.control_socket, request) {
            Ok(response) => expected(response).context("the daemon answered another question"),
            Err(error @ AskError::NoDaemon { .. }) if self.daemon.is_empty() => {
                bail!("{error} Without it, give its flags after --")
            }
            Err(AskError::NoDaemon { .. }) => look(Absent::look(&self.settings()?)?),
            Err(error) => Err(error.into()),
        }
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        let command_line = parse(iter::once("kube-ipvs".into()).chain(self.daemon.iter().cloned()))?;
        match command_line.flags() {
            Some(flags) => Ok(Settings::resolve(flags)?),
            None => bail!("after -- there are only flags of the daemon"),
        }
    }
}
