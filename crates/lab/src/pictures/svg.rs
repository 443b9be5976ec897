//! A terminal's cells as an SVG, in which text stays text.

use std::fmt::Write as _;

use vt100::{Cell, Screen};

/// The size of a cell, and the frame around all of them, in pixels.
const CELL: (u32, u32) = (8, 18);
const FRAME: u32 = 14;

/// The colours: readable on light pages and on dark ones, because the terminal brings its own background, and an edge.
const BACKGROUND: &str = "#16181d";
const EDGE: &str = "#434c5e";
pub(super) const FOREGROUND: &str = "#d8dee9";

/// A picture of a screen.
pub(super) fn draw(screen: &Screen) -> String {
    let (rows, columns) = screen.size();
    let (rows, columns) = (rows.get(), columns.get());
    let mut svg = open(rows.into(), columns.into(), "");
    for row in 0..rows {
        let cells: Vec<&Cell> = (0..columns).filter_map(|column| screen.cell(row, column)).collect();
        let mut column = 0;
        for run in cells.chunk_by(|one, next| Look::from_cell(one) == Look::from_cell(next)) {
            write_run(&mut svg, u32::from(row), column, run);
            column += count(run.len());
        }
    }
    svg + CLOSE
}

/// The beginning of a picture with so many cells: an empty terminal. `style` is CSS.
pub(super) fn open(rows: u32, columns: u32, style: &str) -> String {
    let width = columns * CELL.0 + 2 * FRAME;
    let height = rows * CELL.1 + 2 * FRAME;
    let style = if style.is_empty() { String::new() } else { format!("<style>{style}</style>\n") };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace\" \
         font-size=\"13\">\n{style}<rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\" fill=\"{BACKGROUND}\" \
         stroke=\"{EDGE}\"/>\n",
        width - 1,
        height - 1
    )
}

/// Its end.
pub(super) const CLOSE: &str = "</svg>\n";

/// Text that begins at a cell, and keeps its width whatever font the reader has. `attributes` are those of the element.
pub(super) fn text(row: u32, column: u32, colour: &str, attributes: &str, shown: &str) -> String {
    let (left, bottom) = (FRAME + column * CELL.0, FRAME + row * CELL.1 + CELL.1 - 5);
    let length = count(shown.chars().count()) * CELL.0;
    let escaped = shown.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    format!(
        "<text x=\"{left}\" y=\"{bottom}\" textLength=\"{length}\" fill=\"{colour}\" \
         xml:space=\"preserve\"{attributes}>{escaped}</text>\n"
    )
}

/// So many cells.
pub(super) fn count(cells: usize) -> u32 {
    u32::try_from(cells).unwrap_or_default()
}

/// How a cell differs from others.
#[derive(PartialEq, Eq)]
struct Look {
    is_inverse: bool,
    attributes: String,
}

impl Look {
    fn from_cell(cell: &Cell) -> Self {
        let attributes = [
            (cell.bold(), " font-weight=\"bold\""),
            (cell.dim(), " opacity=\"0.6\""),
            (cell.underline(), " text-decoration=\"underline\""),
        ];
        let attributes = attributes.into_iter().filter_map(|(is_so, attribute)| is_so.then_some(attribute));
        Self { is_inverse: cell.inverse(), attributes: attributes.collect() }
    }
}

/// Writes cells that look alike.
fn write_run(svg: &mut String, row: u32, column: u32, cells: &[&Cell]) {
    let Some(look) = cells.first().map(|cell| Look::from_cell(cell)) else { return };
    let shown: String =
        cells.iter().map(|cell| if cell.has_contents() { cell.contents() } else { " " }).collect();
    let colour = if look.is_inverse {
        let (left, top) = (FRAME + column * CELL.0, FRAME + row * CELL.1);
        let width = count(cells.len()) * CELL.0;
        // Writing to a String cannot fail.
        let _ = writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{}\" fill=\"{FOREGROUND}\"/>",
            CELL.1
        );
        BACKGROUND
    } else {
        FOREGROUND
    };
    let shown = shown.trim_end();
    if !shown.is_empty() {
        svg.push_str(&text(row, column, colour, &look.attributes, shown));
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use vt100::Parser;

    const ROWS: NonZero<u16> = NonZero::new(2).unwrap();
    const COLUMNS: NonZero<u16> = NonZero::new(20).unwrap();

    #[test]
    fn text_stays_text_and_keeps_how_it_looks() {
        let mut parser = Parser::new(ROWS, COLUMNS, 0);
        parser.process(b"a <b>\r\n\x1b[7mhead\x1b[0m \x1b[1mbold\x1b[0m");
        let svg = super::draw(parser.screen());
        for part in
            [">a &lt;b&gt;<", "fill=\"#16181d\" xml:space=\"preserve\">head<", "font-weight=\"bold\">bold<"]
        {
            assert!(svg.contains(part), "{part}: {svg}");
        }
    }
}
