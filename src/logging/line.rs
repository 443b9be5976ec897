//! The form of lines. Here, and nowhere else, characters that act on a terminal or forge a line are escaped.

use std::{
    fmt::{self, Debug, Write as _},
    io::{self, Write},
    str,
};

use service::{printable_json, printable_line};
use tracing::field::{Field, Visit};
use tracing_subscriber::{
    field::RecordFields,
    fmt::{FormatFields, MakeWriter, format::Writer},
};

use super::limit::NAMESPACE;

/// The name of the field that has the object: `NAMESPACE/NAME`, or what else a line is about.
const OBJECT: &str = "object";
/// The name of the field that has the operation.
const OPERATION: &str = "operation";

/// Formats the fields of a line of text: what is said, then the others as `name=value`. The namespace, the object and the
/// operation are left out: what is said names them.
#[derive(Debug, Default)]
pub(super) struct Words;

impl<'writer> FormatFields<'writer> for Words {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut text = Text::default();
        fields.record(&mut text);
        writer.write_str(&printable_line(&text.0))
    }
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.record_debug(field, &format_args!("{value}")),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let before = if self.0.is_empty() { "" } else { " " };
        // Writing to a string cannot fail.
        let _ = match field.name() {
            NAMESPACE | OBJECT | OPERATION => Ok(()),
            // What the crate `log` says of its own lines.
            name if name.starts_with("log.") => Ok(()),
            "message" => write!(self.0, "{before}{value:?}"),
            name => write!(self.0, "{before}{name}={value:?}", name = name.trim_start_matches("r#")),
        };
    }
}

/// Makes writers of lines of JSON.
#[derive(Debug)]
pub(super) struct OfJson<M>(pub(super) M);

impl<'writer, M: MakeWriter<'writer>> MakeWriter<'writer> for OfJson<M> {
    type Writer = JsonLine<M::Writer>;

    fn make_writer(&'writer self) -> Self::Writer {
        JsonLine(self.0.make_writer())
    }
}

/// Takes one line of JSON at a time, as the formatter writes it.
#[derive(Debug)]
pub(super) struct JsonLine<W>(W);

impl<W: Write> Write for JsonLine<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match str::from_utf8(line) {
            Ok(text) => self.0.write_all(printable_json(text).as_bytes())?,
            Err(_) => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
