//! The level of the log, changed while the daemon runs: a fault that is there now may be gone after a restart.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tracing_subscriber::{EnvFilter, Registry, reload};

use super::{Format, Options};

/// Changes the level. Clones change the same.
#[derive(Clone, Debug)]
pub struct Dial {
    filter: reload::Handle<EnvFilter, Registry>,
    /// As it was at the start.
    at_start: String,
}

/// What to log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// What was logged at the start.
    Start,
    /// As `-v` with this number.
    Verbosity(i32),
    /// What `RUST_LOG` would have it be, `debug` or `info,reconciler=trace`.
    Directives(String),
}

/// The level is as before.
#[derive(Debug, thiserror::Error)]
pub enum NoLevel {
    /// The text is none of `RUST_LOG`'s.
    #[error("{directives:?} is no level")]
    Malformed {
        /// The text.
        directives: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// The log is another's.
    #[error("the log cannot be changed")]
    Fixed(#[from] reload::Error),
}

impl Dial {
    pub(super) fn new(filter: reload::Handle<EnvFilter, Registry>) -> Self {
        let at_start = filter.with_current(ToString::to_string).unwrap_or_default();
        Self { filter, at_start }
    }

    /// What is logged, in `RUST_LOG`'s notation.
    pub fn directives(&self) -> Result<String, NoLevel> {
        Ok(self.filter.with_current(ToString::to_string)?)
    }

    /// Logs this from now on, until the daemon ends.
    pub fn set(&self, level: &Level) -> Result<(), NoLevel> {
        let directives = match level {
            Level::Start => self.at_start.clone(),
            Level::Verbosity(verbosity) => {
                Options { format: Format::default(), verbosity: *verbosity }.directives()
            }
            Level::Directives(directives) => directives.clone(),
        };
        let filter = EnvFilter::try_new(&directives)
            .map_err(|source| NoLevel::Malformed { directives: directives.clone(), source })?;
        Ok(self.filter.reload(filter)?)
    }
}

impl FromStr for Level {
    type Err = NoLevel;

    fn from_str(text: &str) -> Result<Self, NoLevel> {
        if text == "start" {
            return Ok(Self::Start);
        }
        if let Ok(verbosity) = text.parse() {
            return Ok(Self::Verbosity(verbosity));
        }
        match EnvFilter::try_new(text) {
            Ok(_) => Ok(Self::Directives(text.to_owned())),
            Err(source) => Err(NoLevel::Malformed { directives: text.to_owned(), source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn a_level_is_a_verbosity_or_what_rust_log_has_or_that_of_the_start() {
        let level = |text: &str| text.parse::<Level>().unwrap();
        assert_eq!(level("4"), Level::Verbosity(4));
        assert_eq!(level("start"), Level::Start);
        assert_eq!(level("info,reconciler=trace"), Level::Directives("info,reconciler=trace".into()));
        let error = "reconciler=loud".parse::<Level>().unwrap_err();
        assert_eq!(error.to_string(), r#""reconciler=loud" is no level"#);
    }

    #[test]
    fn the_level_changes_what_is_logged_until_it_is_set_back() {
        let (filter, handle) = reload::Layer::new(EnvFilter::new("warn"));
        let dial = Dial::new(handle);
        let subscriber = tracing_subscriber::registry().with(filter);
        tracing::subscriber::with_default(subscriber, || {
            let logs = || (tracing::enabled!(tracing::Level::INFO), tracing::enabled!(tracing::Level::DEBUG));
            assert_eq!(logs(), (false, false));
            dial.set(&Level::Verbosity(4)).unwrap();
            assert!(dial.directives().unwrap().contains("kube_ipvs=debug"));
            assert_eq!(logs(), (true, true));
            assert!(dial.set(&Level::Directives("kube_ipvs=loud".into())).is_err());
            assert_eq!(logs(), (true, true), "as before");
            dial.set(&Level::Start).unwrap();
            assert_eq!(logs(), (false, false));
        });
    }
}
