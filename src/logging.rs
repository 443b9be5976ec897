//! The log: one line per event on standard error.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object.
    Json,
}

impl Format {
    /// What the flag and the configuration file call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// What is logged, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The form of a line.
    pub format: Format,
    /// Kubernetes' verbosity: up to 2 what an operator wants to know, 3 and 4 what helps to find a
    /// fault, from 5 on every step. `RUST_LOG` goes before it.
    pub verbosity: i32,
}

/// The crates that are this program.
const OURS: [&str; 8] =
    ["dummy_interface", "ipvs", "kube_ipvs", "netfilter", "netlink", "reconciler", "service", "watcher"];

impl Options {
    /// The filter in `RUST_LOG`'s notation: ours by verbosity, everybody else's only warnings until
    /// every step is asked for.
    fn directives(self) -> String {
        // The client complains of every attempt, without saying to what; the watcher says it once.
        let (ours, others) = match self.verbosity {
            ..=2 => ("info", "warn,kube_client=off"),
            3..=4 => ("debug", "warn,kube_client=off"),
            5.. => ("trace", "debug"),
        };
        OURS.iter().fold(others.to_owned(), |directives, name| format!("{directives},{name}={ours}"))
    }
}

/// Starts logging. A second call changes nothing.
pub fn start(options: Options) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(options.directives()));
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // A logger that is already there stays: a test's, say.
    let _ = match options.format {
        Format::Text => subscriber.with_ansi(io::stderr().is_terminal()).try_init(),
        Format::Json => subscriber.json().flatten_event(true).try_init(),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verbosity_chooses_the_level_of_our_crates() {
        let directives = |verbosity| Options { format: Format::Text, verbosity }.directives();
        assert_eq!(directives(0), directives(2));
        assert!(directives(2).starts_with("warn,") && directives(2).contains(",kube_ipvs=info"));
        assert!(directives(4).contains(",ipvs=debug"));
        assert!(directives(10).starts_with("debug,") && directives(10).contains(",reconciler=trace"));
        assert!(directives(-1).contains(",watcher=info"));
    }
}
