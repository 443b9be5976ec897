//! A view, drawn.

use ratatui::{
    Frame,
    layout::{Constraint, Layout},
    style::{Modifier, Style},
    text::Line,
    widgets::{Cell, Paragraph, Row, Table},
};

use super::{
    super::{
        column::Column,
        table::{Cells, HEAD, WIDTHS},
    },
    view::View,
};

const HELP: &str = "\
What goes through each Service, from one look to the next.

  q, Ctrl-C      quit
  n              sort by name
  a, i           sort by active or inactive connections
  c, p, b        sort by new connections, packets or bytes a second, both ways
  r              show the real servers of each Service, or not
  /              show only names with what is typed; Enter ends, Esc shows all
  arrows, pages  scroll; Home and End too
  h, ?           this, or not

IN is from clients, OUT to them. The kernel counts every two seconds, a client's
packets at the virtual server and at the real server.";

pub(super) fn draw(view: &mut View, frame: &mut Frame<'_>) {
    let areas = Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)]);
    let [title, middle, foot] = frame.area().layout(&areas);
    frame.render_widget(Line::from(view.title()), title);
    if view.help() {
        frame.render_widget(Paragraph::new(HELP), middle);
    } else {
        let lines = view.lines(usize::from(middle.height.saturating_sub(1)));
        frame.render_widget(table(view.sort(), lines), middle);
    }
    frame.render_widget(Line::from(view.foot()).style(Modifier::DIM), foot);
}

fn table(sort: Column, lines: Vec<Cells<String>>) -> Table<'static> {
    let widths = [Constraint::Fill(1)].into_iter().chain(WIDTHS.map(Constraint::Length));
    let head =
        cells(HEAD.name, HEAD.numbers).enumerate().map(|(number, cell)| match is_sorted(number, sort) {
            true => cell.style(Modifier::BOLD | Modifier::UNDERLINED),
            false => cell,
        });
    let rows = lines.into_iter().map(|Cells { name, numbers }| Row::new(cells(name, numbers)));
    Table::new(rows, widths).header(Row::new(head).style(Style::new().add_modifier(Modifier::REVERSED)))
}

fn cells<T: Into<String>>(name: T, numbers: [T; 7]) -> impl Iterator<Item = Cell<'static>> {
    let numbers = numbers.into_iter().map(|number| Cell::from(Line::from(number.into()).right_aligned()));
    [Cell::from(name.into())].into_iter().chain(numbers)
}

/// Whether it is the column, or one of the two, that is sorted by.
fn is_sorted(number: usize, by: Column) -> bool {
    match by {
        Column::Name => number == 0,
        Column::Active => number == 1,
        Column::Inactive => number == 2,
        Column::Connections => number == 3,
        Column::Packets => number == 4 || number == 5,
        Column::Bytes => number == 6 || number == 7,
    }
}

#[cfg(test)]
mod tests;
