//! Text on a terminal: lines are wrapped by words, and a verdict has a colour.

use std::{
    env,
    fmt::Write as _,
    io::{self, IsTerminal as _},
};

use clap::builder::styling::{AnsiColor, Style};
use service::printable;

use super::output::{self, Readers};

/// How good a verdict is: its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// All is well: green.
    Good,
    /// Something needs a look: yellow.
    Doubtful,
    /// Something fails: red.
    Bad,
}

impl Grade {
    fn style(self) -> Style {
        let colour = match self {
            Self::Good => AnsiColor::Green,
            Self::Doubtful => AnsiColor::Yellow,
            Self::Bad => AnsiColor::Red,
        };
        colour.on_default().bold()
    }
}

/// Prints text whose first line is a verdict. On a terminal of `width` columns, if that is known, lines are wrapped with
/// `indent` blanks before each continuation, and the verdict has a colour unless `NO_COLOR` (<https://no-color.org>) is
/// set. It is not an error if the reader goes away.
pub fn print_verdict(
    text: &str,
    grade: Grade,
    indent: usize,
    width: impl FnOnce() -> Option<usize>,
) -> io::Result<Readers> {
    let text = printable(text);
    if !io::stdout().is_terminal() {
        return output::write_to_readers(&text);
    }
    let text = width().map_or_else(|| text.to_string(), |width| wrapped(&text, width, indent));
    let plain = env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty());
    output::write_to_readers(&if plain { text } else { coloured(&text, grade) })
}

/// The text with its first line in the colour of the verdict.
fn coloured(text: &str, grade: Grade) -> String {
    let style = grade.style();
    let (verdict, rest) = text.split_once('\n').unwrap_or((text, ""));
    format!("{style}{verdict}{style:#}\n{rest}")
}

/// Wraps lines at blanks so that they fit into `width` columns, each continuation after `indent` blanks. A word that does
/// not fit into a line of its own stays whole, as do all lines where little more than the indent fits.
fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let mut all = String::with_capacity(text.len());
    for line in text.lines() {
        if width < 2 * indent || line.chars().count() <= width {
            let _ = writeln!(all, "{line}");
            continue;
        }
        // What stands before the indent stays there, whatever its blanks.
        let begin = line.char_indices().nth(indent).map_or(line.len(), |(at, _)| at);
        let (label, rest) = line.split_at(begin);
        let (mut column, mut is_first) = (label.chars().count(), true);
        all.push_str(label);
        for word in rest.split(' ') {
            let length = word.chars().count();
            if is_first {
                is_first = false;
            } else if column + 1 + length > width {
                let _ = write!(all, "\n{:indent$}", "");
                column = indent;
            } else {
                all.push(' ');
                column += 1;
            }
            all.push_str(word);
            column += length;
        }
        all.push('\n');
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn long_lines_continue_below_their_words() {
        let text = "synced:   yes\nlast:     14 s ago, at the start: two words\n";
        let expected = "\
synced:   yes
last:     14 s ago,
          at the
          start: two
          words
";
        assert_eq!(wrapped(text, 20, 10), expected);
        assert_eq!(wrapped(text, 19, 10), text, "too narrow");
        assert_eq!(wrapped(text, 80, 10), text);
    }

    #[test]
    fn only_the_verdict_has_a_colour() {
        assert_eq!(
            coloured("serving: 4\nrest\n", Grade::Good),
            "\u{1b}[1m\u{1b}[32mserving: 4\u{1b}[0m\nrest\n"
        );
        assert!(coloured("NOT\n", Grade::Bad).contains("[31m"));
    }

    proptest! {
        #[test]
        fn wrapping_changes_only_blanks_and_breaks_no_word(text in "([a-zé:]{1,12} {1,3}){0,30}", width in 0usize..90) {
            let text = format!("{text}\n");
            let after = wrapped(&text, width, 17);
            prop_assert!(after.split_whitespace().eq(text.split_whitespace()), "{after:?}");
            let fits = after.lines().all(|line| line.chars().count() <= width.max(34));
            prop_assert!(width < 34 || fits, "{after:?}");
        }
    }
}
