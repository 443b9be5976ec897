//! Tables of the old iptables, before nf_tables.

use std::{fs, io};

use ipvs::Family;

use super::Error;

/// The families in which the old iptables (`iptables-legacy`) has a filter table.
///
/// Such tables are not part of nf_tables. Their rules and policies can only be read by `getsockopt`, which
/// this crate does not do: whether they accept what IPVS forwards is unknown.
pub fn legacy_tables() -> Result<Vec<Family>, Error> {
    let mut found = Vec::new();
    for family in Family::BOTH {
        found.extend(has_filter(&tables_in_use(family)?).then_some(family));
    }
    Ok(found)
}

/// The names of the old iptables' tables of a family, one per line; empty if the kernel has none.
pub(crate) fn tables_in_use(family: Family) -> Result<String, Error> {
    // Of the calling thread's network namespace. `/proc/net` would be that of the process.
    let path = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read.map_err(|source| Error::LegacyTables { path, source }),
    }
}

/// `names` has one name per line, of the tables in use.
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
