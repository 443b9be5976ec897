//! The log: one line per event on standard error. docs/commands.md has what each verbosity adds.

mod level;
#[cfg(feature = "otlp")]
mod otlp;

use std::io::{self, IsTerminal};

use reconciler::PLAN_LOG;
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
    /// Kubernetes' verbosity. `RUST_LOG` goes before it.
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

/// The parts whose lines at the level INFO every operator must see: the start and the end of the daemon, syncs that
/// were asked for, what ends a warning, and what was changed of others.
const ALWAYS: [&str; 8] = [
    "kube_ipvs::daemon",
    "kube_ipvs::direct_return",
    "kube_ipvs::node::advice",
    "kube_ipvs::node::host_firewall",
    "kube_ipvs::serve",
    "kube_ipvs::takeover",
    "kubernetes",
    "reconciler",
];

impl Options {
    /// The filter in `RUST_LOG`'s notation.
    fn directives(self) -> String {
        // The client complains of every attempt, without saying to what; the watcher says it once.
        let quiet = "warn,kube_client=off".to_owned();
        let with_plans = format!("{quiet},{PLAN_LOG}=debug");
        let (others, parts, level) = match self.verbosity {
            ..=0 => (quiet, &ALWAYS[..], "info"),
            1..=2 => (quiet, &OURS[..], "info"),
            3 => (quiet, &OURS[..], "debug"),
            4 => (with_plans, &OURS[..], "debug"),
            5 => (with_plans, &OURS[..], "trace"),
            6.. => ("debug".to_owned(), &OURS[..], "trace"),
        };
        parts.iter().fold(others, |directives, part| format!("{directives},{part}={level}"))
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
    use std::path::Path;

    use tracing::{Level, enabled, subscriber};

    use super::*;

    /// The verbosities from 0 to 7 at which a line is logged.
    fn verbosities(is_logged: impl Fn() -> bool) -> Vec<i32> {
        testkit::log::listen_on_every_thread();
        let logs = |verbosity: &i32| {
            let directives = Options { format: Format::Text, verbosity: *verbosity }.directives();
            subscriber::with_default(registry().with(EnvFilter::new(directives)), &is_logged)
        };
        (0..8).filter(logs).collect()
    }

    #[test]
    fn each_verbosity_adds_what_the_documents_say() {
        let from = |verbosity| (verbosity..8).collect::<Vec<_>>();
        let warning = || enabled!(target: "kube_ipvs::node::sysctl", Level::WARN);
        let of_others = || enabled!(target: "hyper", Level::WARN);
        let start = || enabled!(target: "kube_ipvs::daemon", Level::INFO);
        let end_of_a_warning = || enabled!(target: "kubernetes::api::retry", Level::INFO);
        let parameter = || enabled!(target: "kube_ipvs::node::sysctl", Level::INFO);
        let sync = || enabled!(target: "reconciler::report::sync_log", Level::DEBUG);
        let plan = || enabled!(target: PLAN_LOG, Level::DEBUG);
        let step = || enabled!(target: "netfilter::table::client", Level::TRACE);
        let library = || enabled!(target: "hyper", Level::DEBUG);
        let attempt = || enabled!(target: "kube_client", Level::ERROR);
        assert_eq!([verbosities(warning), verbosities(of_others)], [from(0), from(0)]);
        assert_eq!([verbosities(start), verbosities(end_of_a_warning)], [from(0), from(0)]);
        assert_eq!(verbosities(parameter), from(1));
        assert_eq!(verbosities(sync), from(3));
        assert_eq!(verbosities(plan), from(4));
        assert_eq!(verbosities(step), from(5));
        assert_eq!([verbosities(library), verbosities(attempt)], [from(6), from(6)]);
    }

    #[test]
    fn what_every_operator_must_see_comes_from_parts_that_exist() {
        for part in ALWAYS {
            let place = match part.strip_prefix("kube_ipvs::") {
                Some(module) => format!("src/{}.rs", module.replace("::", "/")),
                None => format!("crates/{part}/src/lib.rs"),
            };
            assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(&place).is_file(), "{place}");
        }
    }
}
