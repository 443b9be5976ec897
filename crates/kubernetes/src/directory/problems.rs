//! What is wrong with the files, for `kube-ipvs status`.

use tokio::sync::watch;

/// What is wrong with the files of a directory, one line each, as long as it is. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Problems(watch::Sender<Vec<String>>);

impl Problems {
    /// How many are listed.
    pub(super) const MOST: usize = 20;

    /// Lists them.
    pub fn all(&self) -> Vec<String> {
        self.0.borrow().clone()
    }

    pub(super) fn set(&self, problems: Vec<String>) {
        self.0.send_replace(problems);
    }
}
