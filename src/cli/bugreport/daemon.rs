//! What the daemon tells.

use std::{fs, path::Path};

use anyhow::bail;

use super::{
    super::{diff, question::ask, status},
    Item, as_json, both, known,
};
use crate::serve::control::{self, DaemonStatus, Difference, Request, Response};

/// The daemon's answers, or why there are none.
pub(super) struct Daemon {
    status: Result<DaemonStatus, String>,
    difference: Result<Difference, String>,
    level: Result<String, String>,
    inside: Result<control::BugReport, String>,
}

impl Daemon {
    /// Asks for everything. A daemon that does not tell its status is asked for nothing that takes longer.
    pub(super) fn ask(socket: &Path) -> Self {
        let inside = answer(socket, &Request::BugReport, |response| match response {
            Response::BugReport(inside) => Some(*inside),
            _ => None,
        });
        let level = answer(socket, &Request::LogLevel { set: None }, |response| match response {
            Response::LogLevel(level) => Some(level),
            _ => None,
        });
        let status = answer(socket, &Request::Status, |response| match response {
            Response::Status(status) => Some(*status),
            _ => None,
        });
        let difference = status.as_ref().map_err(Clone::clone).and_then(|_| {
            answer(socket, &Request::Diff, |response| match response {
                Response::Difference(difference) => Some(difference),
                _ => None,
            })
        });
        Self { status, difference, level, inside }
    }

    /// The node's name: the daemon's, or else the host's.
    pub(super) fn node(&self) -> String {
        let host = || fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = self.status.as_ref().map_or_else(|_| host(), |status| status.daemon.node.clone());
        name.trim().replace(|letter: char| !letter.is_ascii_alphanumeric() && !"-.".contains(letter), "_")
    }

    pub(super) fn items(&self) -> Vec<Item> {
        let inside = |part: fn(&control::BugReport) -> &String| {
            self.inside.as_ref().map(|inside| part(inside).clone()).map_err(Clone::clone)
        };
        let mut items = vec![
            Item { name: "log-level.txt", content: self.level.clone().map(|level| format!("{level}\n")) },
            Item { name: "configuration.json", content: inside(|inside| &inside.configuration) },
            Item { name: "metrics.txt", content: inside(|inside| &inside.metrics) },
            Item { name: "limits.txt", content: inside(|inside| &inside.limits) },
        ];
        items.extend(both(["status.txt", "status.json"], &self.status, status::text, as_json));
        let text = |difference: &Difference| difference.plan.to_string();
        items.extend(both(["diff.txt", "diff.json"], &self.difference, text, diff::json));
        items
    }
}

fn answer<T>(
    socket: &Path,
    request: &Request,
    expected: impl FnOnce(Response) -> Option<T>,
) -> Result<T, String> {
    known((|| match expected(ask(socket, request)?) {
        Some(answer) => Ok(answer),
        None => bail!("the daemon answered another question"),
    })())
}
