//! Describes the fault of a YAML file in one line.

use std::path::Path;

/// `FILE:LINE:COLUMN: what is wrong`: the parser draws the lines around the fault, a log has one line.
pub(crate) fn fault(file: &Path, error: &serde_saphyr::Error) -> String {
    let message = error.without_snippet().to_string();
    let message = message.lines().next().unwrap_or_default();
    match error.location() {
        Some(at) => {
            // The parser ends its messages with the place.
            let place = format!(" at line {}, column {}", at.line(), at.column());
            let message = message.trim_end_matches(&place);
            format!("{}:{}:{}: {message}", file.display(), at.line(), at.column())
        }
        None => format!("{}: {message}", file.display()),
    }
}
