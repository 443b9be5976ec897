//! A view, drawn: its columns as far as the terminal has room for them.

use operator::top::{Cells, Column, HEAD, WIDTHS};
use ratatui::{
    Frame,
    layout::{Constraint, Layout},
    style::{Modifier, Style},
    text::Line,
    widgets::{Cell, Paragraph, Row, Table},
};
use service::printable_line;

use super::view::View;

const HELP: &str = "\
The traffic of each Service since the last refresh.

  q, Ctrl-C      quit
  n              sort by name
  a, s, i        sort by connections: active, those of them in SYN_RECV, inactive
  c, p, b        sort by new connections, packets or bytes a second, both ways
  f              sort by answers: endpoints that fail first
  r              show or hide the real servers of each Service
  /              show only names that contain what you type; Enter ends, Esc shows all
  arrows, pages  scroll; Home and End too
  h, ?           show or hide this help

ACTIVE connections are established or being opened. SYN are those of them in
SYN_RECV, whose handshake is not over: many mean that a real server is dead, or
that its answers do not come back; - means that it is not known.

IN is from clients, OUT to them. The kernel counts every two seconds, a client's
packets at the virtual server and at the real server.

ANSWER is what the daemon knows of an endpoint within the last minute, and of a
Service the worst of them; - means that it is not known.";

pub(super) fn draw(view: &mut View, frame: &mut Frame<'_>) {
    let areas = Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)]);
    let [title, middle, foot] = frame.area().layout(&areas);
    let width = usize::from(frame.area().width);
    frame.render_widget(Line::from(shortened(&view.title(), width)), title);
    if view.help() {
        frame.render_widget(Paragraph::new(HELP), middle);
    } else {
        let columns = Columns::fitting(width, view.longest_name(), view.sort());
        let lines = view.lines(usize::from(middle.height.saturating_sub(1)));
        frame.render_widget(table(&columns, view.sort(), lines), middle);
    }
    frame.render_widget(Line::from(shortened(&view.foot(), width)).style(Modifier::DIM), foot);
}

fn table(columns: &Columns, sort: Column, lines: Vec<Cells<String>>) -> Table<'static> {
    let widths = columns.select(WIDTHS).map(|(_, width)| Constraint::Length(width));
    let widths = [Constraint::Fill(1)].into_iter().chain(widths);
    let head = cells(columns, HEAD).map(|(column, cell)| match column == sort {
        true => cell.style(Modifier::BOLD | Modifier::UNDERLINED),
        false => cell,
    });
    let rows = lines.into_iter().map(|line| Row::new(cells(columns, line).map(|(_, cell)| cell)));
    Table::new(rows, widths).header(Row::new(head).style(Style::new().add_modifier(Modifier::REVERSED)))
}

/// The cells of a line, each with what its column is sorted by.
fn cells<T: AsRef<str>>(
    columns: &Columns,
    Cells { name, values }: Cells<T>,
) -> impl Iterator<Item = (Column, Cell<'static>)> {
    let name = Cell::from(shortened(name.as_ref(), columns.name));
    let value =
        |(column, value): (_, T)| (column, Cell::from(Line::from(value.as_ref().to_owned()).right_aligned()));
    [(Column::Name, name)].into_iter().chain(columns.select(values).map(value))
}

/// What each column of values is sorted by.
const VALUES: [Column; 9] = [
    Column::Active,
    Column::SynRecv,
    Column::Inactive,
    Column::Connections,
    Column::Packets,
    Column::Packets,
    Column::Bytes,
    Column::Bytes,
    Column::Answer,
];

/// The columns of values that make room for the names, in this order.
const GOING: [Column; 7] = [
    Column::Inactive,
    Column::Packets,
    Column::SynRecv,
    Column::Connections,
    Column::Active,
    Column::Answer,
    Column::Bytes,
];

/// The longest address of a real server, indented: `  -> [` and 39 characters and `]:65535`. What is longer than that
/// takes no values' place.
const LONGEST_ADDRESS: usize = 52;

/// The columns that there is room for.
#[derive(Debug, PartialEq, Eq)]
struct Columns {
    /// How wide the column of names is.
    name: usize,
    shown: Vec<Column>,
}

impl Columns {
    /// The columns that fit into this width beside names of at most `longest_name` characters. The one that
    /// is sorted by is there in any case.
    fn fitting(width: usize, longest_name: usize, sort: Column) -> Self {
        let wanted = longest_name.min(LONGEST_ADDRESS);
        let mut shown = Vec::from(GOING);
        let room = |shown: &[Column]| {
            let values = VALUES.iter().zip(WIDTHS).filter(|(value, _)| shown.contains(value));
            width.saturating_sub(values.map(|(_, width)| 1 + usize::from(width)).sum())
        };
        for going in GOING {
            if room(&shown) >= wanted {
                break;
            }
            shown.retain(|column| *column != going || going == sort);
        }
        Self { name: room(&shown), shown }
    }

    /// The values among these that are shown, one of each column.
    fn select<T>(&self, values: [T; 9]) -> impl Iterator<Item = (Column, T)> {
        VALUES.into_iter().zip(values).filter(|(value, _)| self.shown.contains(value))
    }
}

/// A text that may have so many characters, for the screen: what acts on a terminal is escaped. One with more loses its
/// middle: addresses and names mostly differ at their ends, and where the cut is there is `…`.
fn shortened(text: &str, width: usize) -> String {
    let text = &*printable_line(text);
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(1);
    let (begin, end) = (kept - kept / 2, kept / 2);
    let cut = if width == 0 { "" } else { "…" };
    let text = text.chars();
    text.clone().take(begin).chain(cut.chars()).chain(text.skip(count - end)).collect()
}

#[cfg(test)]
mod tests;
