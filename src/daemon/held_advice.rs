//! All advice that holds now.

use super::reload::UnusableFile;
use crate::node::advice::{Advice, CurrentAdvice};

/// The advice that holds now, by who finds it. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldAdvice {
    pub(super) config_file: UnusableFile,
    pub(super) checks: CurrentAdvice,
}

impl HeldAdvice {
    /// All of it, that of the configuration file first.
    pub(super) fn all(&self) -> Vec<Advice> {
        self.config_file.advice().into_iter().chain(self.checks.advice()).collect()
    }
}
