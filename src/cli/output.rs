//! How a command prints.

use std::io::{self, Write};

use serde::Serialize;

/// The flag that chooses the form.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(super) struct Args {
    /// The form of the output
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "text")]
    pub(super) format: Format,
}

/// The form.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
}

/// Prints text. That nobody reads it to its end (`| head`) is no error.
pub(super) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Prints a value as JSON.
pub(super) fn print_json(value: &impl Serialize) -> io::Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}
