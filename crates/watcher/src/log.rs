//! What the code under test logs.

use std::fs;

use tempfile::NamedTempFile;
use testkit::log::listen_on_every_thread;
use tracing::subscriber::{DefaultGuard, set_default};

/// What is logged in this thread, as long as this lives.
pub(crate) struct Log {
    file: NamedTempFile,
    _guard: DefaultGuard,
}

impl Log {
    pub(crate) fn start() -> Self {
        listen_on_every_thread();
        let file = NamedTempFile::new().unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_writer(file.reopen().unwrap());
        Self { _guard: set_default(subscriber.finish()), file }
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(self.file.path()).unwrap();
        text.lines().map(|line| line.trim().to_owned()).collect()
    }
}
