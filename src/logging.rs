//! The log: one line per event on standard error. docs/commands.md has what each verbosity adds.

mod level;
mod limit;
mod line;

use std::{
    env,
    ffi::OsString,
    io::{self, IsTerminal},
};

use reconciler::PLAN_LOG;
use service::one_line;
use tracing::{Subscriber, warn};
use tracing_subscriber::{
    EnvFilter, Layer,
    fmt::{self, MakeWriter, format::FmtSpan},
    layer::SubscriberExt as _,
    registry,
    registry::LookupSpan,
    reload,
    util::SubscriberInitExt as _,
};

pub use level::{Level, LevelError, LogLevelHandle, verbosity};
use limit::Limited;
pub use limit::{LineLimit, SAID_EVERY};
use line::{OfJson, Words};

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object.
    Json,
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

/// The parts whose lines at the level INFO every operator must see: the start and the end of the daemon,
/// syncs that were asked for, what ends a warning, and what was changed of others.
const ALWAYS: [&str; 8] = [
    "kube_ipvs::daemon",
    "kube_ipvs::direct_return",
    "kube_ipvs::finding",
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

/// Starts the log. Returns the handle that changes its level. A second log logs nothing, and its handle changes
/// nothing.
pub fn start(options: Options) -> LogLevelHandle {
    let (filter, unused) = filter(env::var_os(EnvFilter::DEFAULT_ENV), options);
    let (filter, handle) = reload::Layer::new(filter);
    let limit = LineLimit::default();
    let lines = lines(options.format, io::stderr().is_terminal(), io::stderr, &limit);
    // A logger that is already there stays: a test's, say.
    let _ = registry().with(lines.with_filter(filter)).try_init();
    if let Some(error) = unused {
        warn!("{} is ignored and -v sets the level: {}", EnvFilter::DEFAULT_ENV, one_line(&error));
    }
    LogLevelHandle::new(handle, limit)
}

/// What is logged, where `RUST_LOG` is this; and why it is not used, if it is malformed.
fn filter(rust_log: Option<OsString>, options: Options) -> (EnvFilter, Option<LevelError>) {
    let otherwise = || EnvFilter::new(options.directives());
    let rust_log = rust_log.filter(|directives| !directives.is_empty());
    match rust_log.map(|directives| level::read(&directives.to_string_lossy())) {
        None => (otherwise(), None),
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (otherwise(), Some(error)),
    }
}

/// Writes lines, in colour or not, as far as the limit lets them.
fn lines<S, W>(format: Format, colour: bool, writer: W, limit: &LineLimit) -> Limited<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let lines = fmt::layer().with_span_events(FmtSpan::CLOSE);
    let lines = match format {
        Format::Text => lines.fmt_fields(Words).with_ansi(colour).with_writer(writer).boxed(),
        Format::Json => lines.json().flatten_event(true).with_writer(OfJson(writer)).boxed(),
    };
    Limited { lines, limit: limit.clone() }
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
    fn a_malformed_rust_log_is_not_used_and_said() {
        let options = Options::default();
        let usual = options.directives();
        let used = |rust_log: Option<&str>| {
            let (filter, unused) = filter(rust_log.map(Into::into), options);
            (filter.to_string(), unused.map(|error| error.to_string()))
        };
        let usual = EnvFilter::new(usual).to_string();
        assert_eq!(used(None), (usual.clone(), None));
        assert_eq!(used(Some("")), (usual.clone(), None), "as if it were not there");
        assert_eq!(used(Some("debug")), ("debug".to_owned(), None));
        let malformed = "info,reconciler=loud";
        assert_eq!(used(Some(malformed)), (usual, Some(format!("{malformed:?} cannot be read"))));
    }

    /// What is written of a log in this form.
    fn logged(format: Format, limit: &LineLimit, log: impl FnOnce()) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        testkit::log::listen_on_every_thread();
        let lines = lines(format, false, file.reopen().unwrap(), limit);
        subscriber::with_default(registry().with(lines), log);
        std::fs::read_to_string(file.path()).unwrap()
    }

    const HOSTILE: &str = "a\u{1b}[2J\u{9b}b\r\nWARN forged\u{202e}\u{7f}";

    fn log_what_is_hostile(text: &str) {
        let error = io::Error::other(text.to_owned());
        let span = tracing::info_span!("sync", text).entered();
        warn!(namespace = "shop", object = "shop/web", operation = "bind", %error, text, cause = ?error, "refused: {text}");
        drop(span);
    }

    #[test]
    fn a_line_of_text_stays_one_line_and_has_nothing_that_acts_on_a_terminal() {
        let said = logged(Format::Text, &LineLimit::default(), || log_what_is_hostile(HOSTILE));
        assert_eq!(said.lines().count(), 2, "of the warning and of the span's end: {said}");
        assert!(!said.chars().any(|c| c != '\n' && (c.is_control() || c == '\u{202e}')), "{said:?}");
        assert!(said.contains(r"refused: a\u{1b}[2J\u{9b}b\r\nWARN forged\u{202e}\u{7f} error="), "{said}");
        assert!(!["namespace", "object=", "operation="].iter().any(|name| said.contains(name)), "{said}");
    }

    #[test]
    fn a_line_of_json_has_what_was_said_and_whose_it_is_in_characters_that_do_nothing() {
        let said = logged(Format::Json, &LineLimit::default(), || log_what_is_hostile(HOSTILE));
        assert!(!said.chars().any(|c| c != '\n' && (c.is_control() || c == '\u{202e}')), "{said:?}");
        let line: serde_json::Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
        assert_eq!(line["message"], format!("refused: {HOSTILE}"));
        assert_eq!([&line["namespace"], &line["object"], &line["operation"]], ["shop", "shop/web", "bind"]);
    }

    /// As one tenant does it with ever new Services.
    #[test]
    fn a_flood_of_one_namespace_is_cut_counted_and_said_and_another_one_is_heard() {
        let limit = LineLimit::default();
        let said = logged(Format::Text, &limit, || {
            let problem =
                |namespace: &str, name: usize| warn!(namespace, "Service {namespace}/{name}: skipped");
            (0..10_000).for_each(|name| problem("tenant", name));
            problem("innocent", 0);
            warn!("another kind of line");
            limit.say_dropped();
            limit.say_dropped();
        });
        let count = |words: &str| said.lines().filter(|line| line.contains(words)).count();
        assert!((40..=45).contains(&count("Service tenant/")), "{said}");
        assert_eq!([count("Service innocent/0"), count("another kind")], [1, 1], "{said}");
        let dropped = limit.dropped();
        assert!(dropped > 9_900, "{dropped}");
        let summary = format!(
            "dropped {dropped} log lines because there were too many like them, the first: Service tenant/4"
        );
        assert_eq!(count(&summary), 1, "{said}");
    }

    #[test]
    fn all_lines_that_a_verbosity_requests_are_logged() {
        let said = logged(Format::Text, &LineLimit::default(), || {
            (0..1_000).for_each(|number| tracing::debug!(namespace = "a", "step {number}"));
        });
        assert_eq!(said.lines().count(), 1_000);
    }

    #[test]
    fn what_every_operator_must_see_comes_from_parts_that_exist() {
        for part in ALWAYS {
            let place = match part.strip_prefix("kube_ipvs::") {
                Some(module) => format!("src/{}", module.replace("::", "/")),
                None => format!("crates/{part}"),
            };
            let place = Path::new(env!("CARGO_MANIFEST_DIR")).join(place);
            assert!(place.is_dir() || place.with_extension("rs").is_file(), "{}", place.display());
        }
    }
}
