//! Prints the output of commands.

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

/// The readers of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readers {
    /// There is a reader, as far as is known.
    There,
    /// There is no reader any more (`| head`).
    Gone,
}

/// Prints text. A reader that goes away is no error.
pub(super) fn print(text: &str) -> io::Result<()> {
    print_to_readers(text).map(drop)
}

/// Prints a part of the output. Returns whether there is still a reader.
pub(super) fn print_to_readers(text: &str) -> io::Result<Readers> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Readers::Gone),
        result => result.map(|()| Readers::There),
    }
}

/// Prints why the desired state may be out of date or wrong.
pub(super) fn doubt(troubles: &[String]) {
    for trouble in troubles {
        eprintln!("kube-ipvs: what is wanted may be out of date: {trouble}");
    }
}

/// Prints a value as JSON.
pub(super) fn print_json(value: &impl Serialize) -> io::Result<()> {
    print(&json_text(value)?)
}

/// A value as JSON for people too.
pub(super) fn json_text(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(format!("{}\n", serde_json::to_string_pretty(value)?))
}
