//! What a piece of code writes to the log.

use std::{fs, sync::Once};

use tracing::subscriber::{set_global_default, with_default};

/// The lines from `INFO` on that `run` logs on this thread, each as level and text.
pub fn logged(run: impl FnOnce()) -> anyhow::Result<Vec<String>> {
    listen_on_every_thread();
    let file = tempfile::NamedTempFile::new()?;
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .with_writer(file.reopen()?);
    with_default(subscriber.finish(), run);
    Ok(fs::read_to_string(file.path())?.lines().map(|line| line.trim().to_owned()).collect())
}

/// For whoever needs a subscriber of his own on one thread: without this it may miss lines.
///
/// A line of code that logs asks once whether anybody listens, and keeps the answer. If a thread without a
/// subscriber comes by first, the answer is no for all threads, so somebody listens, and does nothing, everywhere.
pub fn listen_on_every_thread() {
    static ONCE: Once = Once::new();
    // If there is a subscriber for all threads already, that one does.
    ONCE.call_once(|| _ = set_global_default(tracing_subscriber::registry()));
}
