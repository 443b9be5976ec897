//! The Services that own addresses, as the daemon knows.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use ipvs::VirtualServerId;
use reconciler::VirtualServerOwner;
use service::{ObjectName, one_line};

use super::{
    super::{list::Owners, output::Time},
    Sample,
};
use crate::serve::control::{AskError, Client, Control as _};

/// The shortest time between two requests. The daemon reads no kernel to answer, but its writer can do nothing else
/// meanwhile.
const MIN_INTERVAL: Duration = Duration::from_secs(10);
/// How often the daemon is asked although every address is known: an address may have moved to another Service.
const MAX_AGE: Duration = Duration::from_secs(60);

/// How long [`Names::wait`] waits: a little longer than the client does.
const PATIENCE: Duration = Duration::from_secs(3);

/// The known names. A thread asks the daemon, so that a hanging daemon blocks nothing.
#[derive(Default)]
pub(super) struct Names {
    daemon: Client,
    known: Owners,
    /// When the daemon answered last.
    learnt: Option<Instant>,
    /// When the last request ended.
    asked: Option<Instant>,
    /// Receives the answer, while a request runs.
    answer: Option<Receiver<Result<Vec<VirtualServerOwner>, AskError>>>,
    /// Why the last request had no answer.
    missing: Option<String>,
}

impl Names {
    /// Names from the daemon, which is not asked yet.
    pub(super) fn from(daemon: Client) -> Self {
        Self { daemon, ..Self::default() }
    }

    /// The Service that owns a virtual server, if known.
    pub(super) fn owner(&self, virtual_server: VirtualServerId) -> Option<&ObjectName> {
        self.known.owner(virtual_server)
    }

    /// The line with the age of the names, if the last request had no answer.
    pub(super) fn doubt(&self, now: Instant) -> Option<String> {
        let why = self.missing.as_ref()?;
        Some(match self.learnt {
            Some(learnt) => format!("names as of {} ago: {why}", Time(now.saturating_duration_since(learnt))),
            None => format!("showing addresses instead of Services: {why}"),
        })
    }

    /// Takes an answer that has arrived, and asks the daemon if the interval is over. Without an answer the names stay
    /// unchanged.
    pub(super) fn refresh(&mut self, sample: &Sample, now: Instant) {
        self.receive(Duration::ZERO, now);
        if self.answer.is_none() && self.is_due(sample, now) {
            self.ask(now);
        }
    }

    /// Waits for the answer, if the daemon was asked, but not for long.
    pub(super) fn wait(&mut self) {
        self.receive(PATIENCE, Instant::now());
    }

    fn is_due(&self, sample: &Sample, now: Instant) -> bool {
        let is_known = |id| matches!(id, VirtualServerId::Mark { .. }) || self.owner(id).is_some();
        let all_known = || sample.servers.iter().all(|(server, _)| is_known(server.config.id));
        self.asked.is_none_or(|asked| {
            let past = now.saturating_duration_since(asked);
            past >= MAX_AGE || (past >= MIN_INTERVAL && !all_known())
        })
    }

    fn ask(&mut self, now: Instant) {
        let (daemon, (answer, received)) = (self.daemon.clone(), channel());
        let question = move || drop(answer.send(daemon.owners()));
        match thread::Builder::new().name("names".to_owned()).spawn(question) {
            Ok(_) => self.answer = Some(received),
            Err(error) => {
                self.asked = Some(now);
                self.missing = Some(one_line(&error));
            }
        }
    }

    fn receive(&mut self, patience: Duration, now: Instant) {
        let Some(answer) = &self.answer else { return };
        match answer.recv_timeout(patience) {
            Err(RecvTimeoutError::Timeout) => return,
            Ok(Ok(owners)) => self.learn(owners, now),
            Ok(Err(error)) => self.missing = Some(one_line(&error)),
            Err(gone @ RecvTimeoutError::Disconnected) => self.missing = Some(one_line(&gone)),
        }
        (self.answer, self.asked) = (None, Some(now));
    }

    pub(super) fn learn(&mut self, owners: Vec<VirtualServerOwner>, now: Instant) {
        self.known = owners.into();
        self.learnt = Some(now);
        self.missing = None;
    }
}

#[cfg(test)]
mod tests;
