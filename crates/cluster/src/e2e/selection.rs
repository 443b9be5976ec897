//! Which of Kubernetes' tests are run.

use anyhow::{Result, ensure};

/// Tests outside of `[sig-network]` that go through a Service, a port of a node or a proxy of the API server.
const MORE: &[&str] = &[
    r"AdmissionWebhook .*\[Conformance\]",
    r"CustomResourceConversionWebhook .*\[Conformance\]",
    r"\[sig-auth\] ServiceAccounts ServiceAccountIssuerDiscovery",
    r"\[sig-cli\] Kubectl client Kubectl expose",
    r"\[sig-cli\] Kubectl client Proxy server",
    r"\[sig-cli\] Kubectl Port forwarding",
    r"\[sig-node\] Container Lifecycle Hook .*http hook .*\[Conformance\]",
    r"\[sig-node\] Pods should contain environment variables for services",
    r"\[sig-node\] Pods should support .* over websockets",
    r"\[sig-node\] Probing container .*http.*\[Conformance\]",
    r"\[sig-node\] KubeletManagedEtcHosts",
    r"\[sig-scheduling\] SchedulerPredicates .*hostPort",
    r"services are removed when a namespace is deleted",
];

/// What of them cannot pass in a cluster like this one: a part of its name, and why, a line each.
pub(super) const LEFT_OUT: &str = include_str!("left-out.txt");

/// Regular expressions, as ginkgo has them.
pub(super) struct Selection {
    pub(super) focus: String,
    pub(super) skip: String,
}

impl Selection {
    /// What the user asked for, or all that the project answers for.
    pub(super) fn new(focus: Option<&str>) -> Result<Self> {
        if let Some(focus) = focus {
            return Ok(Self { focus: focus.to_owned(), skip: String::new() });
        }
        let focus = [r"\[sig-network\]"].iter().chain(MORE).copied().collect::<Vec<_>>().join("|");
        let skip: Vec<String> = left_out().map(|(part, _)| quoted(part)).collect();
        ensure!(!skip.is_empty(), "left-out.txt is empty");
        Ok(Self { focus, skip: skip.join("|") })
    }

    /// Without those that may not run beside others.
    pub(super) fn without_serial(mut self) -> Self {
        if !self.skip.is_empty() {
            self.skip.push('|');
        }
        self.skip.push_str(r"\[Serial\]");
        self
    }

    /// One test alone.
    pub(super) fn only(name: &str) -> Self {
        Self { focus: quoted(name), skip: String::new() }
    }
}

/// Parts of names, and the reasons.
pub(super) fn left_out() -> impl Iterator<Item = (&'static str, &'static str)> {
    LEFT_OUT.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" | "))
}

/// A regular expression for this text itself.
fn quoted(text: &str) -> String {
    text.chars()
        .flat_map(|c| (!c.is_alphanumeric() && c != ' ').then_some('\\').into_iter().chain([c]))
        .collect()
}
