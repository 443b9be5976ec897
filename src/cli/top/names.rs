//! Which Service an address is of, as the daemon knows.

use std::{
    collections::HashMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use ipvs::{Id, ServiceAddress};
use reconciler::Holder;
use service::ObjectName;
use watcher::one_line;

use super::sample::Sample;
use crate::control::{Request, Response, ask};

/// How often the daemon is asked at most. It reads no kernel for the answer, but has to write no news meanwhile.
const SELDOM: Duration = Duration::from_secs(10);
/// How often it is asked although every address is known: one may have come to another Service.
const ANYHOW: Duration = Duration::from_secs(60);

/// The names that are known, and where to ask for more.
#[derive(Default)]
pub(super) struct Names {
    socket: PathBuf,
    known: HashMap<ServiceAddress, ObjectName>,
    asked: Option<Instant>,
    missing: Option<String>,
}

impl Names {
    /// From the daemon at this socket, which is not asked yet.
    pub(super) fn from(socket: PathBuf) -> Self {
        Self { socket, ..Self::default() }
    }

    /// The Service that has an address, if that is known.
    pub(super) fn of(&self, address: &ServiceAddress) -> Option<&ObjectName> {
        self.known.get(address)
    }

    /// Why the daemon has not answered when it was asked last.
    pub(super) fn missing(&self) -> Option<&str> {
        self.missing.as_deref()
    }

    /// Asks the daemon, if it is time to. What it does not answer stays as it was.
    pub(super) fn refresh(&mut self, sample: &Sample, now: Instant) {
        let all_known = || sample.servers.iter().all(|(server, _)| self.knows(&server.config.id));
        let is_due = self.asked.is_none_or(|asked| {
            let past = now.saturating_duration_since(asked);
            past >= ANYHOW || (past >= SELDOM && !all_known())
        });
        if !is_due {
            return;
        }
        self.asked = Some(now);
        match ask(&self.socket, &Request::Holders) {
            Ok(Response::Holders(holders)) => self.learn(holders),
            Ok(_) => self.missing = Some("the daemon answered another question".to_owned()),
            Err(error) => self.missing = Some(one_line(&error)),
        }
    }

    pub(super) fn learn(&mut self, holders: Vec<Holder>) {
        self.known = holders.into_iter().map(|holder| (holder.address, holder.service)).collect();
        self.missing = None;
    }

    fn knows(&self, id: &Id) -> bool {
        match id {
            Id::Address(address) => self.known.contains_key(address),
            Id::Mark { .. } => true,
        }
    }
}
