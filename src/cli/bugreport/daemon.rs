//! The daemon's part of a bug report.

use std::fs;

use super::{
    super::{diff, question, status},
    Item, as_json, both, known,
};
use crate::serve::control::{BugReport, Control as _, DaemonStatus, Difference};

/// The daemon's answers, or why there are none.
pub(super) struct Daemon {
    status: Result<DaemonStatus, String>,
    difference: Result<Difference, String>,
    level: Result<String, String>,
    inside: Result<BugReport, String>,
}

impl Daemon {
    /// Asks for everything. A daemon that does not tell its status is asked for nothing that takes longer.
    pub(super) fn ask(daemon: &question::Daemon) -> Self {
        let client = daemon.client();
        let inside = known(client.bug_report());
        let level = known(client.log_level(None));
        let status = known(client.status());
        let difference = status.as_ref().map_err(Clone::clone).and_then(|_| known(client.diff()));
        Self { status, difference, level, inside }
    }

    /// The node's name: the daemon's, or else the host's.
    pub(super) fn node(&self) -> String {
        let host = || fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = self.status.as_ref().map_or_else(|_| host(), |status| status.daemon.node.clone());
        name.trim().replace(|letter: char| !letter.is_ascii_alphanumeric() && !"-.".contains(letter), "_")
    }

    pub(super) fn items(&self) -> Vec<Item> {
        let inside = |part: fn(&BugReport) -> &String| {
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
