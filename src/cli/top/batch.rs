//! A frame, printed.

use std::fmt::Write;

use super::{
    frame::Frame,
    table::{self, Cells, HEAD, WIDTHS},
};

/// The table as text: all Services with their real servers, below an empty line if `apart`.
pub(in crate::cli) fn text(frame: &Frame, apart: bool) -> String {
    let lines: Vec<_> = table::lines(frame, true, |_| true).collect();
    let longest = lines.iter().map(|line| line.name.len()).max().unwrap_or_default();
    let width = longest.max(HEAD.name.len());
    let mut text = String::new();
    if apart {
        text.push('\n');
    }
    line(&mut text, width, &HEAD);
    for cells in &lines {
        line(&mut text, width, cells);
    }
    text
}

fn line<T: AsRef<str>>(text: &mut String, width: usize, Cells { name, numbers }: &Cells<T>) {
    let _ = write!(text, "{:width$}", name.as_ref());
    for (number, width) in numbers.iter().zip(WIDTHS) {
        let _ = write!(text, " {:>width$}", number.as_ref(), width = usize::from(width));
    }
    text.push('\n');
}

#[cfg(test)]
mod tests;
