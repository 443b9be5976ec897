//! What a check has found.

use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::node::advice::{Advice, Severity};

/// What a check has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Whether it is as it should be.
    pub verdict: Verdict,
    /// The part of the node that it is about.
    pub subject: String,
    /// One sentence for a person, without a full stop.
    pub what: String,
    /// What to do, if anything.
    pub remedy: Option<String>,
}

/// Whether something is as it should be. What comes later is worse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is.
    #[default]
    Ok,
    /// Worth knowing; nothing fails.
    Note,
    /// Some traffic fails, or somebody loses something.
    Warning,
    /// The daemon does not start, or serves nothing.
    Problem,
}

impl Finding {
    pub(super) fn ok(subject: impl Display, what: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, subject, what)
    }

    pub(super) fn note(subject: impl Display, what: impl Into<String>) -> Self {
        Self::new(Verdict::Note, subject, what)
    }

    pub(super) fn warning(subject: impl Display, what: impl Into<String>) -> Self {
        Self::new(Verdict::Warning, subject, what)
    }

    pub(super) fn problem(subject: impl Display, what: impl Into<String>) -> Self {
        Self::new(Verdict::Problem, subject, what)
    }

    fn new(verdict: Verdict, subject: impl Display, what: impl Into<String>) -> Self {
        Self { verdict, subject: subject.to_string(), what: what.into(), remedy: None }
    }

    /// The finding with what to do.
    pub(super) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

impl Verdict {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

impl From<Advice> for Finding {
    fn from(Advice { severity, subject, what, remedy, .. }: Advice) -> Self {
        let verdict = match severity {
            Severity::Warning => Verdict::Warning,
            Severity::Note => Verdict::Note,
        };
        Self::new(verdict, subject, what).remedy(remedy)
    }
}
