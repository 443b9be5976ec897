//! The host as guest: the command just runs. Tests make their own network namespaces.

use std::{ffi::OsString, process::Stdio};

use anyhow::Context as _;

use crate::{
    Guest,
    relay::{self, Tap},
    supervised,
};

/// Runs `command` on the host's kernel.
pub(crate) fn run(guest: &Guest, command: &[OsString], tap: Tap<'_>) -> anyhow::Result<u8> {
    let (program, args) = command.split_first().context("no command")?;
    let child = supervised(program, guest.timeout)
        .args(args)
        .envs(guest.environment())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {}", program.display()))?;
    relay::until_exit(child, tap)
}
