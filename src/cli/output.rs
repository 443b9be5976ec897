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

/// Who reads what is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readers {
    /// Somebody, as far as is known.
    There,
    /// Nobody any more (`| head`).
    Gone,
}

/// Prints text. That nobody reads it to its end is no error.
pub(super) fn print(text: &str) -> io::Result<()> {
    print_to_readers(text).map(drop)
}

/// Prints a part of an output, and says whether anybody still reads.
pub(super) fn print_to_readers(text: &str) -> io::Result<Readers> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Readers::Gone),
        result => result.map(|()| Readers::There),
    }
}

/// Prints a value as JSON.
pub(super) fn print_json(value: &impl Serialize) -> io::Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}
