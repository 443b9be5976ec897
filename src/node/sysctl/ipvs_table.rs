//! Bounds IPVS' own table of connections. Conntrack's has a limit; this one takes memory until there is none.
//!
//! An entry is 320 bytes that are not paged out and no cgroup is charged for. A sender of forged addresses
//! makes one with each packet, and where a Service has session affinity a template too, which stays for three
//! hours by default.
//!
//! Two parameters bound it, of which each acts in need alone:
//!
//! - `conn_max` (Linux 7.2): no more entries than this. The default is 2^30, in effect unlimited.
//! - `drop_entry` 1 with `amemthresh`: while fewer pages than that are free, IPVS deletes each second, in
//!   1/32 of the table, entries that nothing was established with: half-open TCP and SCTP, templates without
//!   any, and of idle connections some of those with up to eight packets (`update_defense_level` in
//!   ip_vs_ctl.c, `ip_vs_random_dropentry` and `todrop_entry` in ip_vs_conn.c). What counts as free does not
//!   include the page cache, so on a node that is well little is free: above the zones' low watermarks, to
//!   which the kernel reclaims. Below their minimum (mm/page_alloc.c) memory is short in earnest. The
//!   default, 1024 pages, is less than any large machine's minimum, and is never reached.

use std::fs;

use service::one_line;
use tracing::warn;

use super::{Change, Sysctl};

const CONN_MAX: &str = "net.ipv4.vs.conn_max";
const DROP_ENTRY: &str = "net.ipv4.vs.drop_entry";
const AMEMTHRESH: &str = "net.ipv4.vs.amemthresh";

/// The kernel's defaults of the first (`IP_VS_CONN_MAX` in include/net/ip_vs.h, by the size of a word), and
/// of the others. Another value is an operator's.
const CONN_MAX_DEFAULTS: [&str; 2] = ["1073741824", "16777216"];
const DROP_ENTRY_DEFAULT: &str = "0";
const AMEMTHRESH_DEFAULT: &str = "1024";

/// What an entry takes: 312 bytes in Linux 7.2, and no less than 256 since 4.1, in objects of whole cache
/// lines.
const BYTES_PER_ENTRY: u64 = 320;
/// The part of the machine's memory that the table may take: one in so many.
const PART_OF_MEMORY: u64 = 8;

impl Sysctl {
    /// Bounds the table where all is as the kernel has it by default. The node serves without that too.
    pub(crate) fn bound_ipvs_table(&self) {
        for Change { key, wanted, .. } in self.ipvs_table_changes() {
            if let Err(error) = self.set_if_allowed(key, &wanted) {
                warn!("{}", one_line(&error));
            }
        }
    }

    /// What of these parameters would be changed: none that has an operator's value, or that this kernel
    /// lacks.
    pub(crate) fn ipvs_table_changes(&self) -> Vec<Change> {
        let is = |key: &'static str, defaults: &[&str]| {
            let found = self.read(key).ok().filter(|found| defaults.contains(&found.as_str()))?;
            Some((key, found))
        };
        let mut changes = Vec::new();
        let mut change = |(key, found): (&'static str, String), wanted: String| {
            changes.push(Change { key, found, wanted });
        };
        if let (Some(conn_max), Some(entries)) = (is(CONN_MAX, &CONN_MAX_DEFAULTS), self.most_entries())
            && conn_max.1.parse().is_ok_and(|found: u64| entries < found)
        {
            change(conn_max, entries.to_string());
        }
        if let (Some(drop_entry), Some(amemthresh), Some(pages)) = (
            is(DROP_ENTRY, &[DROP_ENTRY_DEFAULT]),
            is(AMEMTHRESH, &[AMEMTHRESH_DEFAULT]),
            self.min_free_pages(),
        ) {
            // First the threshold: with the other one it acts at once.
            if amemthresh.1 != pages.to_string() {
                change(amemthresh, pages.to_string());
            }
            change(drop_entry, "1".to_owned());
        }
        changes
    }

    /// The number of entries with which the table takes its part of the machine's memory; `None` if it is unknown.
    pub(crate) fn most_entries(&self) -> Option<u64> {
        let text = fs::read_to_string(self.proc.join("meminfo")).ok()?;
        let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kibibytes: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kibibytes * 1024 / PART_OF_MEMORY / BYTES_PER_ENTRY)
    }

    /// The pages that the kernel keeps for itself: the minimum watermarks of all zones.
    fn min_free_pages(&self) -> Option<u64> {
        let text = fs::read_to_string(self.proc.join("zoneinfo")).ok()?;
        let of_zone = |line: &str| line.trim().strip_prefix("min ")?.trim().parse::<u64>().ok();
        let pages = text.lines().filter_map(of_zone).sum();
        (pages > 0).then_some(pages)
    }

    /// How many entries the table may have, where the kernel has a limit.
    pub(crate) fn conn_max(&self) -> Option<u64> {
        self.read(CONN_MAX).ok()?.parse().ok()
    }

    /// How many entries the table has. Linux 7.2 says it (`ip_vs_status`); elsewhere it is about the number
    /// of objects in use of their slab cache, which all network namespaces share, and other caches of this
    /// size may.
    pub(crate) fn ipvs_entries(&self) -> Option<u64> {
        let status = fs::read_to_string(self.proc.join("net/ip_vs_status"));
        let conns =
            |text: String| text.lines().find_map(|line| line.strip_prefix("Conns:")?.trim().parse().ok());
        status.ok().and_then(conns).or_else(|| {
            let objects = fs::read_to_string(self.slab.join("ip_vs_conn/objects")).ok()?;
            objects.split_whitespace().next()?.parse().ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const ZONES: &str = "Node 0, zone      DMA\n  pages free     3840\n        boost    0\n        min      67\n        \
                         low      83\n      nr_free_pages 3840\nNode 0, zone   Normal\n        min      16830\n              \
                         high_min: 621\n";

    fn tree(conn_max: Option<&str>, drop_entry: &str, amemthresh: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let vs = root.path().join("proc/sys/net/ipv4/vs");
        fs::create_dir_all(&vs).unwrap();
        fs::write(root.path().join("proc/meminfo"), "MemTotal:        8388608 kB\nMemFree: 1 kB\n").unwrap();
        fs::write(root.path().join("proc/zoneinfo"), ZONES).unwrap();
        fs::write(vs.join("drop_entry"), format!("{drop_entry}\n")).unwrap();
        fs::write(vs.join("amemthresh"), format!("{amemthresh}\n")).unwrap();
        if let Some(conn_max) = conn_max {
            fs::write(vs.join("conn_max"), format!("{conn_max}\n")).unwrap();
        }
        root
    }

    fn changes(root: &Path) -> Vec<(&'static str, String)> {
        Sysctl::at(root).ipvs_table_changes().into_iter().map(|change| (change.key, change.wanted)).collect()
    }

    #[test]
    fn a_table_gets_an_eighth_of_memory_and_drops_below_the_minimum_of_its_zones() {
        let root = tree(Some("1073741824"), "0", "1024");
        let bounds = [(CONN_MAX, "3355443"), (AMEMTHRESH, "16897"), (DROP_ENTRY, "1")];
        assert_eq!(changes(root.path()), bounds.map(|(key, value)| (key, value.to_owned())));
        Sysctl::at(root.path()).bound_ipvs_table();
        assert_eq!(changes(root.path()), [], "the second time nothing");
    }

    #[test]
    fn an_operators_own_values_stay_and_what_a_kernel_lacks_is_left_out() {
        assert_eq!(changes(tree(Some("500000"), "3", "1024").path()), []);
        assert_eq!(changes(tree(None, "0", "1").path()), []);
        assert_eq!(changes(tree(None, "2", "1024").path()), []);
        let keys: Vec<_> = changes(tree(None, "0", "1024").path()).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, [AMEMTHRESH, DROP_ENTRY]);
        assert_eq!(changes(Path::new("/nonexistent")), []);
    }

    #[test]
    fn entries_are_what_the_kernel_says_or_about_what_their_slab_has() {
        let root = tree(None, "0", "1024");
        let entries = || Sysctl::at(root.path()).ipvs_entries();
        assert_eq!(entries(), None);
        let slab = root.path().join("sys/kernel/slab/ip_vs_conn");
        fs::create_dir_all(&slab).unwrap();
        fs::write(slab.join("objects"), "124124 N0=124124\n").unwrap();
        assert_eq!(entries(), Some(124_124));
        fs::create_dir_all(root.path().join("proc/net")).unwrap();
        fs::write(root.path().join("proc/net/ip_vs_status"), "Conns:\t134955\nConn buckets:\t256 (8 bits)\n")
            .unwrap();
        assert_eq!(entries(), Some(134_955));
    }
}
