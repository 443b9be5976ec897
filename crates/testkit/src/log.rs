//! What a piece of code writes to the log.

use std::{fs, sync::Once};

use tempfile::NamedTempFile;
use tracing::subscriber::{DefaultGuard, set_default, set_global_default};
use tracing_subscriber::{
    field::MakeExt as _,
    fmt::{FormatFields, format::debug_fn},
};

/// The lines that `run` logs on this thread.
pub fn logged(run: impl FnOnce()) -> anyhow::Result<Vec<String>> {
    let log = Log::start()?;
    run();
    log.lines()
}

/// Keeps the lines from `INFO` on that are logged on this thread as long as this lives.
#[derive(Debug)]
pub struct Log {
    file: NamedTempFile,
    _guard: DefaultGuard,
}

impl Log {
    /// Begins with no line.
    pub fn start() -> anyhow::Result<Self> {
        listen_on_every_thread();
        let file = NamedTempFile::new()?;
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .fmt_fields(without_names())
            .with_writer(file.reopen()?);
        Ok(Self { _guard: set_default(subscriber.finish()), file })
    }

    /// The lines so far, each as level and text.
    pub fn lines(&self) -> anyhow::Result<Vec<String>> {
        Ok(fs::read_to_string(self.file.path())?.lines().map(|line| line.trim().to_owned()).collect())
    }
}

/// Fields as the program writes them: what a line says names the object and the operation too.
fn without_names() -> impl for<'writer> FormatFields<'writer> + 'static {
    debug_fn(|writer, field, value| match field.name() {
        "namespace" | "object" | "operation" => Ok(()),
        "message" => write!(writer, "{value:?}"),
        name => write!(writer, "{name}={value:?}"),
    })
    .delimited(" ")
}

/// Needed by tests with a subscriber of their own on one thread: without this it may miss lines.
///
/// Each place that logs asks once whether any subscriber is interested, and keeps the answer (`Interest` in tracing-core).
/// If a thread without a subscriber gets there first, that place stays off for all threads; so every thread gets a
/// subscriber that does nothing.
pub fn listen_on_every_thread() {
    static ONCE: Once = Once::new();
    // If there is a subscriber for all threads already, that one does.
    ONCE.call_once(|| _ = set_global_default(tracing_subscriber::registry()));
}
