//! A frame as lines of cells, on the terminal and printed.

use std::fmt::Write;

use service::liveness::Liveness;

use super::{Frame, Load};

/// The head of the table.
pub const HEAD: Cells = Cells {
    name: "SERVICE",
    values: ["ACTIVE", "SYN", "INACT", "CONN/S", "PKT/S IN", "OUT", "B/S IN", "OUT", "ANSWER"],
};

/// How wide the columns of values are.
pub const WIDTHS: [u16; 9] = [7, 6, 7, 7, 8, 7, 8, 7, 7];

/// One line; the first one of texts.
pub struct Cells<T = &'static str> {
    /// Real servers are indented.
    pub name: T,
    /// One for each of [`WIDTHS`].
    pub values: [T; 9],
}

/// The lines of a frame: each Service whose name is wanted, and below it its real servers if they are shown.
pub fn lines(
    frame: &Frame,
    real_servers: bool,
    is_wanted: impl Fn(&str) -> bool,
) -> impl Iterator<Item = Cells<String>> {
    frame.services.iter().filter(move |row| is_wanted(&row.name())).flat_map(move |row| {
        let below = row.real_servers.iter().filter(move |_| real_servers);
        let below =
            below.map(|server| cells(format!("  -> {}", server.name()), &server.load, server.liveness()));
        std::iter::once(cells(row.name(), &row.load, row.liveness)).chain(below)
    })
}

/// The table as text: all Services with their real servers, below an empty line if `apart`.
pub fn text(frame: &Frame, apart: bool) -> String {
    let rows: Vec<_> = lines(frame, true, |_| true).collect();
    let longest = rows.iter().map(|line| line.name.len()).max().unwrap_or_default();
    let width = longest.max(HEAD.name.len());
    let mut text = String::new();
    if apart {
        text.push('\n');
    }
    line(&mut text, width, &HEAD);
    for cells in &rows {
        line(&mut text, width, cells);
    }
    text
}

fn line<T: AsRef<str>>(text: &mut String, width: usize, Cells { name, values }: &Cells<T>) {
    let _ = write!(text, "{:width$}", name.as_ref());
    for (value, width) in values.iter().zip(WIDTHS) {
        let _ = write!(text, " {:>width$}", value.as_ref(), width = usize::from(width));
    }
    text.push('\n');
}

fn cells(name: String, load: &Load, liveness: Option<Liveness>) -> Cells<String> {
    let Load { active_connections, syn_recv_connections, inactive_connections, rates, .. } = load;
    let [connections, packets_in, packets_out, bytes_in, bytes_out] = [
        rates.connections_per_second,
        rates.packets_in_per_second,
        rates.packets_out_per_second,
        rates.bytes_in_per_second,
        rates.bytes_out_per_second,
    ]
    .map(short);
    let [active, inactive] = [active_connections, inactive_connections].map(ToString::to_string);
    let syn_recv = syn_recv_connections.map_or_else(|| "-".to_owned(), |count| count.to_string());
    let answer = answer(liveness).to_owned();
    let values =
        [active, syn_recv, inactive, connections, packets_in, packets_out, bytes_in, bytes_out, answer];
    Cells { name, values }
}

/// A word for whether an endpoint answers; failures are in capitals.
fn answer(liveness: Option<Liveness>) -> &'static str {
    match liveness {
        None => "-",
        Some(Liveness::Idle) => "idle",
        Some(Liveness::Answers) => "answers",
        Some(Liveness::OneWay) => "one-way",
        Some(Liveness::Refuses) => "REFUSES",
        Some(Liveness::Silent) => "SILENT",
    }
}

/// A number in at most six characters, up to the thousand trillions: `0`, `0.5`, `9999`, `12.3k`, `999.9M`.
fn short(number: f64) -> String {
    const UNITS: [&str; 4] = ["k", "M", "G", "T"];
    if number == 0.0 {
        return "0".to_owned();
    }
    if number < 9.95 {
        return format!("{number:.1}");
    }
    if number < 9_999.5 {
        return format!("{number:.0}");
    }
    let (mut number, mut unit) = (number, "");
    for larger in UNITS {
        if number < 999.95 {
            break;
        }
        (number, unit) = (number / 1000.0, larger);
    }
    format!("{number:.1}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_as_short_as_a_column_is_wide() {
        let numbers = [0.0, 0.46, 9.96, 123.4, 9_999.0, 9_999.7, 999_940.0, 999_960.0, 3.2e9, 1e14];
        assert_eq!(
            numbers.map(short),
            ["0", "0.5", "10", "123", "9999", "10.0k", "999.9k", "1.0M", "3.2G", "100.0T"]
        );
    }
}
