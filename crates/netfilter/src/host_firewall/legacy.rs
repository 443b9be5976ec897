//! Tables of the old iptables, before nf_tables.

use std::{fs, io};

use ipvs::Family;

use super::Error;

/// Of the calling thread's network namespace. `/proc/net` would be that of the process.
const LISTS: [(Family, &str); 2] = [
    (Family::V4, "/proc/thread-self/net/ip_tables_names"),
    (Family::V6, "/proc/thread-self/net/ip6_tables_names"),
];

/// The families in which the old iptables (`iptables-legacy`) has a filter table.
///
/// Such tables are no part of nf_tables. Their rules and policies can be read by `getsockopt` only, which
/// this crate does not do: whether they let pass what IPVS forwards is not known.
pub fn legacy_tables() -> Result<Vec<Family>, Error> {
    let mut found = Vec::new();
    for (family, path) in LISTS {
        match fs::read_to_string(path) {
            Ok(names) => found.extend(has_filter(&names).then_some(family)),
            // No table yet, or a kernel without them.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(Error::LegacyTables { path, source }),
        }
    }
    Ok(found)
}

/// One name a line, of those that are in use.
fn has_filter(names: &str) -> bool {
    names.lines().any(|name| name == "filter")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_table_filter_counts() {
        assert!(has_filter("nat\nfilter\nmangle\n"));
        for names in ["", "nat\nmangle\n", "filter2\n"] {
            assert!(!has_filter(names), "{names:?}");
        }
    }
}
