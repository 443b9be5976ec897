//! Errors in one line, for the log and for operators.

use std::error::Error;

use crate::printable_line;

/// Prints an error with its causes as one line, whatever line breaks and control characters others put into them. Some
/// crates' errors say their cause themselves: it isn't said twice.
pub fn one_line(error: &(dyn Error + 'static)) -> String {
    let (mut line, mut cause) = (String::new(), Some(error));
    while let Some(error) = cause {
        let words = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        let words = printable_line(&words);
        if !line.contains(&*words) {
            line.push_str(if line.is_empty() { "" } else { ": " });
            line.push_str(&words);
        }
        cause = error.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Caused {
        text: &'static str,
        source: Option<Box<Self>>,
    }

    fn chain(texts: &[&'static str]) -> Option<Box<Caused>> {
        let (text, causes) = texts.split_first()?;
        Some(Box::new(Caused { text, source: chain(causes) }))
    }

    #[test]
    fn an_error_is_one_line_with_its_causes_and_none_is_said_twice() {
        let error =
            chain(&["cannot read\n  the file: gone", "gone", "no such file", "no such file"]).unwrap();
        assert_eq!(one_line(&*error), "cannot read the file: gone: no such file");
        let error = chain(&["refused:\u{1b}[2J\r\nall is well"]).unwrap();
        assert_eq!(one_line(&*error), r"refused:\u{1b}[2J all is well");
    }
}
