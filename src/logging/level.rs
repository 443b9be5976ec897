//! Changes the level of the log while the daemon runs: a fault may be gone after a restart.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tracing::{enabled, warn};
use tracing_subscriber::{
    EnvFilter, Registry,
    filter::{LevelFilter, ParseError},
    reload,
};

use super::{Format, LineLimit, Options};

/// Changes the level of the log, and knows what is not logged because there is too much. Clones change the
/// same log.
#[derive(Clone, Debug)]
pub struct LogLevelHandle {
    filter: reload::Handle<EnvFilter, Registry>,
    limit: LineLimit,
    /// The directives at the start.
    at_start: String,
}

/// A level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The level at the start.
    Start,
    /// As `-v` with this number.
    Verbosity(i32),
    /// In `RUST_LOG`'s notation. With a level for everything, `debug` or `info,reconciler=trace`, it is what
    /// `RUST_LOG` would have it be; without one, `reconciler=debug`, the rest is as at the start.
    Directives(String),
}

/// Why the level is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum LevelError {
    /// A part of the text has no level. `RUST_LOG` would take it for a name, and log nothing else.
    #[error(
        "invalid level {0:?}: expected a number as for -v, start, error, warn, info, debug, trace or off, or NAME=LEVEL"
    )]
    Unknown(String),
    /// The text is not in `RUST_LOG`'s notation.
    #[error("{directives:?} cannot be read")]
    Malformed {
        /// The text.
        directives: String,
        /// What is wrong with it.
        source: ParseError,
    },
    /// The log belongs to another subscriber.
    #[error("the log cannot be changed")]
    Fixed(#[from] reload::Error),
}

impl LogLevelHandle {
    pub(super) fn new(filter: reload::Handle<EnvFilter, Registry>, limit: LineLimit) -> Self {
        let at_start = filter.with_current(ToString::to_string).unwrap_or_default();
        Self { filter, limit, at_start }
    }

    /// What bounds the lines of a kind.
    pub fn limit(&self) -> &LineLimit {
        &self.limit
    }

    /// The directives in use, in `RUST_LOG`'s notation.
    pub fn directives(&self) -> Result<String, LevelError> {
        Ok(self.filter.with_current(ToString::to_string)?)
    }

    /// Sets the level until the daemon ends. Logs the change by the old level, or, where that logs no
    /// warnings, by the new one.
    pub fn set(&self, level: &Level) -> Result<(), LevelError> {
        let directives = level.directives(&self.at_start)?;
        let filter = read(&directives)?;
        let change = format!("an operator has set the log level to {directives}");
        let was_logged = enabled!(tracing::Level::WARN);
        warn!("{change}");
        self.filter.reload(filter)?;
        if !was_logged {
            warn!("{change}");
        }
        Ok(())
    }
}

impl Level {
    /// The level in `RUST_LOG`'s notation, where the log was `at_start` when it began.
    fn directives(&self, at_start: &str) -> Result<String, LevelError> {
        Ok(match self {
            Self::Start => at_start.to_owned(),
            Self::Verbosity(verbosity) => {
                Options { format: Format::default(), verbosity: *verbosity }.directives()
            }
            Self::Directives(directives) if are_about_everything(directives)? => directives.clone(),
            // Of two that name the same, the second one counts.
            Self::Directives(directives) => format!("{at_start},{directives}"),
        })
    }
}

/// The verbosity with these directives, which a daemon answered; of several the recommended one. `None`: they are no
/// verbosity's.
pub fn verbosity(directives: &str) -> Option<i32> {
    let same = |verbosity: &i32| {
        let known = Options { format: Format::default(), verbosity: *verbosity }.directives();
        read(&known).is_ok_and(|filter| filter.to_string() == directives)
    };
    [0, 2, 3, 4, 5, 6].into_iter().find(same)
}

impl FromStr for Level {
    type Err = LevelError;

    fn from_str(text: &str) -> Result<Self, LevelError> {
        if text == "start" {
            return Ok(Self::Start);
        }
        if let Ok(verbosity) = text.parse() {
            return Ok(Self::Verbosity(verbosity));
        }
        are_about_everything(text)?;
        read(text)?;
        Ok(Self::Directives(text.to_owned()))
    }
}

/// Whether these directives have a level for parts they do not name.
fn are_about_everything(directives: &str) -> Result<bool, LevelError> {
    let mut everything = false;
    for directive in directives.split(',') {
        let (name, level) =
            directive.rsplit_once('=').map_or((None, directive), |(name, level)| (Some(name), level));
        // An empty level would be read as `error`.
        if level.is_empty() || level.parse::<LevelFilter>().is_err() {
            return Err(LevelError::Unknown(directive.to_owned()));
        }
        everything |= name.is_none();
    }
    Ok(everything)
}

pub(super) fn read(directives: &str) -> Result<EnvFilter, LevelError> {
    EnvFilter::try_new(directives)
        .map_err(|source| LevelError::Malformed { directives: directives.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use tracing::Level as Of;
    use tracing_subscriber::{fmt, layer::SubscriberExt as _};

    use super::*;

    /// What is logged, for a test to read.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Lines {
        fn take(&self) -> String {
            String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
        }
    }

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Runs with a log that is so at the start.
    fn with_log(at_start: &str, run: impl FnOnce(&LogLevelHandle, &Lines)) {
        let (filter, handle) = reload::Layer::new(EnvFilter::new(at_start));
        let (dial, lines) = (LogLevelHandle::new(handle, LineLimit::default()), Lines::default());
        let writer = lines.clone();
        let layer = fmt::layer().with_ansi(false).with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(filter).with(layer);
        testkit::log::listen_on_every_thread();
        tracing::subscriber::with_default(subscriber, || run(&dial, &lines));
    }

    fn set(dial: &LogLevelHandle, level: &str) {
        dial.set(&level.parse().unwrap()).unwrap();
    }

    #[test]
    fn a_level_is_a_verbosity_or_what_rust_log_has_or_that_of_the_start() {
        let level = |text: &str| text.parse::<Level>().unwrap();
        assert_eq!(level("4"), Level::Verbosity(4));
        assert_eq!(level("start"), Level::Start);
        for directives in ["debug", "off", "info,reconciler=trace", "watcher=warn", "[sync{full=true}]=debug"]
        {
            assert_eq!(level(directives), Level::Directives(directives.into()));
        }
    }

    #[test]
    fn an_invalid_level_is_refused_and_not_read_as_the_only_target_to_log() {
        for text in ["verbose", "debgu", "", "reconciler", "reconciler=", "reconciler=loud"] {
            let error = text.parse::<Level>().unwrap_err();
            assert!(error.to_string().starts_with(&format!("invalid level {text:?}: ")), "{error}");
        }
        let error = "reconciler=debug,verbose".parse::<Level>().unwrap_err();
        assert!(error.to_string().starts_with(r#"invalid level "verbose": "#), "{error}");
        with_log("warn", |dial, lines| {
            assert!(dial.set(&Level::Directives("verbose".into())).is_err(), "the dial refuses it too");
            assert!(enabled!(Of::WARN), "as before");
            assert_eq!(lines.take(), "");
        });
    }

    #[test]
    fn the_level_changes_what_is_logged_until_it_is_set_back() {
        with_log("warn", |dial, _| {
            let logs = || (enabled!(Of::INFO), enabled!(Of::DEBUG));
            assert_eq!(logs(), (false, false));
            set(dial, "3");
            assert!(dial.directives().unwrap().contains("kube_ipvs=debug"));
            assert_eq!(verbosity(&dial.directives().unwrap()), Some(3));
            assert_eq!(logs(), (true, true));
            set(dial, "start");
            assert_eq!(logs(), (false, false));
            for (level, known) in [("0", 0), ("1", 2), ("2", 2), ("4", 4), ("5", 5), ("9", 6)] {
                set(dial, level);
                assert_eq!(verbosity(&dial.directives().unwrap()), Some(known), "{level}");
            }
            set(dial, "debug");
            assert_eq!(verbosity(&dial.directives().unwrap()), None);
        });
    }

    #[test]
    fn the_level_of_a_part_leaves_the_rest_as_at_the_start() {
        with_log("warn,kube_ipvs=info,reconciler=info", |dial, _| {
            let reconciler = || enabled!(target: "reconciler", Of::DEBUG);
            set(dial, "trace");
            set(dial, "reconciler=debug");
            assert!(reconciler());
            assert!(enabled!(Of::INFO) && !enabled!(Of::DEBUG), "not as it was last");
            assert!(enabled!(target: "hyper", Of::WARN) && !enabled!(target: "hyper", Of::INFO));
            set(dial, "watcher=debug");
            assert!(!reconciler(), "as at the start");
            assert_eq!(dial.directives().unwrap().matches("reconciler").count(), 1, "said once");
        });
    }

    #[test]
    fn a_change_is_logged_once_by_the_old_level_or_by_the_new_one() {
        with_log("warn", |dial, lines| {
            set(dial, "off");
            let said = lines.take();
            assert!(said.contains("an operator has set the log level to off"), "{said}");
            set(dial, "start");
            let said = lines.take();
            assert!(said.contains("an operator has set the log level to warn"), "{said}");
            set(dial, "debug");
            let said = lines.take();
            assert_eq!(said.matches("an operator has set the log level to debug").count(), 1, "{said}");
        });
    }
}
