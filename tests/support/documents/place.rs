//! The place where a command of the documents is tried.

use super::Command;

/// Where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On the node of the examples: `tests/kernel/operator/documents.rs`.
    Node,
    /// Not there, for this reason; what is looked at instead is in it.
    Elsewhere(&'static str),
}

/// The programs that are not run on the node of the examples, and why. What no line is for is run there.
pub(crate) const ELSEWHERE: [(&str, &str); 18] = [
    (
        "cargo",
        "builds, or takes a kernel of its own; crates/xtask/src/main.rs has a test that xtask takes it",
    ),
    ("git", "fetches this repository"),
    ("kubectl", "asks an API server: tests/api/documents.rs"),
    ("until", "asks an API server again and again: crates/cluster has one"),
    ("helm", "asks an API server: tests/api/documents.rs"),
    ("skopeo", "writes to a registry"),
    ("oras", "asks a registry"),
    ("sha256sum", "checks a release: crates/xtask/src/test/release"),
    ("minisign", "checks a release: crates/xtask/src/test/release"),
    ("cosign", "checks a release: crates/xtask/src/test/release"),
    ("tar", "reads a release"),
    ("podman", "pulls images from a registry"),
    ("sed", "changes files of this repository"),
    ("crictl", "asks a container runtime"),
    ("kind", "runs nodes in a container engine, which no test has; docs/try.md says so"),
    (
        "ssh",
        "asks another machine: crates/cluster/src/scenario/install/as_service.rs does. tests/unit/config_convert.rs \
         converts a distribution's files",
    ),
    ("scp", "writes to another machine, as ssh"),
    ("nsenter", "enters the container of the daemon, which has none on the node of the examples"),
];

/// What is run in the test kernel is run on the node: that is one.
const IN_THE_TEST_KERNEL: &str = "cargo xtask vm ";

impl Place {
    /// Where this command is tried.
    pub(crate) fn for_command(command: &Command) -> Self {
        if command.in_the_test_kernel().is_some() {
            return Self::Node;
        }
        let program = command.program();
        let elsewhere = ELSEWHERE.iter().find(|(name, _)| *name == program);
        elsewhere.map_or(Self::Node, |(_, why)| Self::Elsewhere(why))
    }
}

impl Command {
    /// What `cargo xtask vm` is given to run.
    pub(crate) fn in_the_test_kernel(&self) -> Option<&str> {
        self.text.strip_prefix(IN_THE_TEST_KERNEL)?.split_once("-- ").map(|(_, command)| command)
    }
}
