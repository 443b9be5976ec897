//! The log: one line per event on standard error, and at `-v 4` one for each sync and its phases, with how long they
//! took.

mod level;
#[cfg(feature = "otlp")]
mod otlp;

use std::io::{self, IsTerminal};

use tracing_subscriber::{
    EnvFilter, Layer as _, fmt, fmt::format::FmtSpan, layer::SubscriberExt as _, registry, reload,
    util::SubscriberInitExt as _,
};

pub use level::{Level, LevelError, LogLevelHandle};

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

/// The level and the form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The form of a line.
    pub format: Format,
    /// Kubernetes' verbosity: up to 2 what an operator wants to know, 3 and 4 what helps to find a
    /// fault, from 5 on every step. `RUST_LOG` goes before it.
    pub verbosity: i32,
}

/// The crates that are this program.
const OURS: [&str; 10] = [
    "dummy_interface",
    "host_rules",
    "ipvs",
    "kube_ipvs",
    "kubernetes",
    "netfilter",
    "netlink",
    "reconciler",
    "service",
    "watcher",
];

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

/// Logging, until it is dropped.
#[derive(Debug)]
pub struct Log {
    level: LogLevelHandle,
    #[cfg(feature = "otlp")]
    _spans: Option<otlp::Exporter>,
}

impl Log {
    /// Starts the log, on the node of this name. A second one logs nothing, and its handle changes nothing.
    pub fn start(
        options: Options,
        #[cfg_attr(not(feature = "otlp"), expect(unused_variables, reason = "lines do not name the node"))]
        node_name: &str,
    ) -> Self {
        let filter =
            EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(options.directives()));
        let (filter, handle) = reload::Layer::new(filter);
        let lines = fmt::layer().with_writer(io::stderr).with_span_events(FmtSpan::CLOSE);
        let lines = match options.format {
            Format::Text => lines.with_ansi(io::stderr().is_terminal()).boxed(),
            Format::Json => lines.json().flatten_event(true).boxed(),
        };
        let subscriber = registry().with(lines.with_filter(filter));
        #[cfg(feature = "otlp")]
        let (subscriber, spans) = {
            let (layer, exporter) = otlp::Exporter::from_env(node_name).unzip();
            (subscriber.with(layer), exporter)
        };
        // A logger that is already there stays: a test's, say.
        let _ = subscriber.try_init();
        Self {
            level: LogLevelHandle::new(handle),
            #[cfg(feature = "otlp")]
            _spans: spans,
        }
    }

    /// What changes the level while the daemon runs.
    pub fn level_handle(&self) -> LogLevelHandle {
        self.level.clone()
    }
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
