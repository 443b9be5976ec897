//! Which columns a terminal has room for.

use operator::top::{Column, WIDTHS};
use service::printable_line;

/// What each column of numbers is sorted by.
pub(super) const NUMBERS: [Column; 8] = [
    Column::Active,
    Column::SynRecv,
    Column::Inactive,
    Column::Connections,
    Column::Packets,
    Column::Packets,
    Column::Bytes,
    Column::Bytes,
];

/// The columns of numbers that make room for the names, in this order.
const GOING: [Column; 6] =
    [Column::Inactive, Column::Packets, Column::SynRecv, Column::Connections, Column::Active, Column::Bytes];

/// The longest address of a real server, indented: `  -> [` and 39 characters and `]:65535`. What is longer than that
/// takes no numbers' place.
const LONGEST_ADDRESS: usize = 52;

/// The columns that there is room for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Columns {
    /// How wide the column of names is.
    pub(super) name: usize,
    shown: Vec<Column>,
}

impl Columns {
    /// The columns that fit into this width beside names of at most `longest_name` characters. The one that
    /// is sorted by is there in any case.
    pub(super) fn fitting(width: usize, longest_name: usize, sort: Column) -> Self {
        let wanted = longest_name.min(LONGEST_ADDRESS);
        let mut shown = Vec::from(GOING);
        let room = |shown: &[Column]| {
            let numbers = NUMBERS.iter().zip(WIDTHS).filter(|(number, _)| shown.contains(number));
            width.saturating_sub(numbers.map(|(_, width)| 1 + usize::from(width)).sum())
        };
        for going in GOING {
            if room(&shown) >= wanted {
                break;
            }
            shown.retain(|column| *column != going || going == sort);
        }
        Self { name: room(&shown), shown }
    }

    /// The numbers among these that are shown, one of each column.
    pub(super) fn select<T>(&self, numbers: [T; 8]) -> impl Iterator<Item = (Column, T)> {
        NUMBERS.into_iter().zip(numbers).filter(|(number, _)| self.shown.contains(number))
    }
}

/// A text that may have so many characters, for the screen: what acts on a terminal is escaped. One with more loses its
/// middle: addresses and names mostly differ at their ends, and where the cut is there is `…`.
pub(super) fn shortened(text: &str, width: usize) -> String {
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn long_names_take_the_place_of_the_least_important_columns() {
        let shown = |longest, sort| Columns::fitting(80, longest, sort).shown;
        assert_eq!(shown(15, Column::Bytes), GOING);
        assert_eq!(shown(23, Column::Bytes), GOING[1..]);
        assert_eq!(shown(40, Column::Bytes), GOING[2..]);
        assert_eq!(shown(47, Column::Inactive), [Column::Inactive, Column::Active, Column::Bytes]);
        assert_eq!(shown(52, Column::Bytes), [Column::Active, Column::Bytes]);
        assert_eq!(shown(200, Column::Bytes), [Column::Active, Column::Bytes], "it is cut all the same");
    }

    #[test]
    fn the_longest_address_is_whole_on_eighty_characters() {
        let address = "  -> [fd00:1234:5678:9abc:def0:1234:5678:9abc]:65535";
        assert_eq!(address.len(), LONGEST_ADDRESS);
        assert!(Columns::fitting(80, address.len(), Column::Bytes).name >= LONGEST_ADDRESS);
    }

    #[test]
    fn what_is_cut_keeps_both_ends() {
        assert_eq!(shortened("  -> [fd00::a]:80", 17), "  -> [fd00::a]:80");
        assert_eq!(shortened("  -> [fd00:1234::a]:80", 17), "  -> [fd…4::a]:80");
        assert_eq!(["", "…", "a…", "a…e"], [0, 1, 2, 3].map(|width| shortened("abcde", width))[..]);
    }

    proptest! {
        #[test]
        fn nothing_is_longer_than_it_may_be_nor_cut_without_a_sign(text in "\\PC*", width in 0_usize..90) {
            let short = shortened(&text, width);
            prop_assert!(short.chars().count() <= width);
            prop_assert!(width == 0 || short == printable_line(&text) || short.contains('…'));
        }

        #[test]
        fn columns_take_no_more_than_there_is(width in 0_usize..300, longest in 0_usize..300) {
            let columns = Columns::fitting(width, longest, Column::Name);
            let numbers: usize = columns.select(WIDTHS).map(|(_, width)| 1 + usize::from(width)).sum();
            prop_assert!(columns.name + numbers == width || (columns.name == 0 && numbers > width));
        }
    }
}
