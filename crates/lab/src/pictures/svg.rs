//! A terminal's cells as an SVG, in which text stays text.

use std::fmt::Write as _;

use vt100::{Cell, Screen};

/// The size of a cell, and the frame around all of them, in pixels.
const CELL: (u32, u32) = (8, 18);
const FRAME: u32 = 14;

/// The colours: readable on light pages and on dark ones, because the terminal brings its own background.
const BACKGROUND: &str = "#16181d";
const FOREGROUND: &str = "#d8dee9";

/// A picture of a screen.
pub(super) fn draw(screen: &Screen) -> String {
    let (rows, columns) = screen.size();
    let (rows, columns) = (rows.get(), columns.get());
    let width = u32::from(columns) * CELL.0 + 2 * FRAME;
    let height = u32::from(rows) * CELL.1 + 2 * FRAME;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace\" \
         font-size=\"13\">\n<rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n"
    );
    for row in 0..rows {
        let cells: Vec<&Cell> = (0..columns).filter_map(|column| screen.cell(row, column)).collect();
        let mut column = 0;
        for run in cells.chunk_by(|one, next| Look::from_cell(one) == Look::from_cell(next)) {
            write_run(&mut svg, u32::from(row), column, run);
            column += u32::try_from(run.len()).unwrap_or_default();
        }
    }
    svg + "</svg>\n"
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

/// Writes cells that look alike. They keep their places whatever font the reader has.
fn write_run(svg: &mut String, row: u32, column: u32, cells: &[&Cell]) {
    let Some(look) = cells.first().map(|cell| Look::from_cell(cell)) else { return };
    let text: String =
        cells.iter().map(|cell| if cell.has_contents() { cell.contents() } else { " " }).collect();
    let (left, top) = (FRAME + column * CELL.0, FRAME + row * CELL.1);
    let colour = if look.is_inverse {
        let width = u32::try_from(cells.len()).unwrap_or_default() * CELL.0;
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
    let shown = text.trim_end();
    if shown.is_empty() {
        return;
    }
    let length = u32::try_from(shown.chars().count()).unwrap_or_default() * CELL.0;
    let escaped = shown.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        svg,
        "<text x=\"{left}\" y=\"{}\" textLength=\"{length}\" fill=\"{colour}\" xml:space=\"preserve\"{}>{escaped}</text>",
        top + CELL.1 - 5,
        look.attributes
    );
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
