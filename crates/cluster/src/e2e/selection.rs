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

/// What is run all the same and fails with every proxy, likewise.
const EXPECTED_FAILURES: &str = include_str!("expected-failures.txt");

/// Regular expressions and labels, as ginkgo has them.
pub(super) struct Selection {
    pub(super) focus: String,
    pub(super) skip: String,
    pub(super) labels: &'static str,
}

/// Tests that harm the others, such as by a restart of the API server; ginkgo knows only that those called Serial
/// cannot run beside others.
pub(super) const DISRUPTIVE: &str = "Disruptive";
pub(super) const NOT_DISRUPTIVE: &str = "!Disruptive";
pub(super) const PARALLEL: &str = "!Disruptive && !Serial";

impl Selection {
    /// What the user asked for, or all that the project answers for, if it has such labels.
    pub(super) fn new(focus: Option<&str>, labels: &'static str) -> Result<Self> {
        if let Some(focus) = focus {
            return Ok(Self { focus: focus.to_owned(), skip: String::new(), labels });
        }
        let focus = [r"\[sig-network\]"].iter().chain(MORE).copied().collect::<Vec<_>>().join("|");
        let skip: Vec<String> = left_out().map(|(part, _)| quoted(part)).collect();
        ensure!(!skip.is_empty(), "left-out.txt is empty");
        Ok(Self { focus, skip: skip.join("|"), labels })
    }

    /// One test alone.
    pub(super) fn only(name: &str) -> Self {
        Self { focus: quoted(name), skip: String::new(), labels: "" }
    }
}

/// Parts of names, and the reasons.
pub(super) fn left_out() -> impl Iterator<Item = (&'static str, &'static str)> {
    with_reasons(LEFT_OUT)
}

/// Why a test is expected to fail, if it is.
pub(super) fn expected_to_fail(name: &str) -> Option<&'static str> {
    with_reasons(EXPECTED_FAILURES).find_map(|(part, reason)| name.contains(part).then_some(reason))
}

fn with_reasons(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" | "))
}

/// A regular expression for this text itself.
fn quoted(text: &str) -> String {
    text.chars()
        .flat_map(|c| (!c.is_alphanumeric() && c != ' ').then_some('\\').into_iter().chain([c]))
        .collect()
}
