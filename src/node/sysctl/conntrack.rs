//! The size of conntrack's table, by the number of processors, and its timeouts.

use std::{fs, num::NonZero, thread};

use super::{Change, Error, Sysctl};
use crate::config::ConntrackSettings;

/// The number of conntrack's entries in this network namespace.
pub(crate) const COUNT: &str = "net.netfilter.nf_conntrack_count";
/// Their limit; 0 is none.
pub(crate) const MAX: &str = "net.netfilter.nf_conntrack_max";
/// What /sys/module/nf_conntrack/parameters/hashsize shows as well, which a container seldom sees.
const BUCKETS: &str = "net.netfilter.nf_conntrack_buckets";
/// When it forgets an idle TCP connection, in seconds.
pub(crate) const TCP_ESTABLISHED: &str = "net.netfilter.nf_conntrack_tcp_timeout_established";
const BE_LIBERAL: &str = "net.netfilter.nf_conntrack_tcp_be_liberal";

/// No table becomes larger by the number of processors alone, as with kube-proxy (`getConntrackMax` in
/// cmd/kube-proxy/app).
const MAX_BY_PROCESSORS: u32 = 1 << 20;

/// The most entries that a bucket has on average, as kube-proxy has it.
const ENTRIES_PER_BUCKET: u32 = 4;

/// How many entries conntrack's table is to hold at least after a start, and what decides that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableSize {
    /// Not set by us: `maxPerCore` is 0, and `min` is ignored.
    Host,
    /// `maxPerCore` times the processors is more than a million, which it is then; `min` does not count.
    Capped,
    /// This many; `min` is the least.
    Entries(u32),
}

impl TableSize {
    /// The size for a machine with so many processors, computed as kube-proxy does.
    pub fn new(settings: &ConntrackSettings, processors: u32) -> Self {
        match settings.max_per_core.saturating_mul(processors) {
            0 => Self::Host,
            scaled if scaled > MAX_BY_PROCESSORS => Self::Capped,
            scaled => Self::Entries(scaled.max(settings.min)),
        }
    }

    /// The number; `None` leaves it to the kernel.
    fn entries(self) -> Option<u32> {
        match self {
            Self::Host => None,
            Self::Capped => Some(MAX_BY_PROCESSORS),
            Self::Entries(entries) => Some(entries),
        }
    }

    /// The fields of the configuration, or the flags, with which the table has at least so many entries after a
    /// start. `None` where no setting counts.
    pub fn settings_for(self, entries: u32) -> Option<[String; 2]> {
        let (field, flag) = (format!("conntrack.min: {entries}"), format!("--conntrack-min={entries}"));
        match self {
            Self::Host => None,
            // Where the processors ask for next to nothing `min` counts.
            Self::Capped => Some([
                format!("conntrack.maxPerCore: 1 and {field}"),
                format!("--conntrack-max-per-core=1 {flag}"),
            ]),
            Self::Entries(_) => Some([field, flag]),
        }
    }
}

impl Sysctl {
    /// The size of conntrack's table on this machine.
    pub fn table_size(&self, settings: &ConntrackSettings) -> TableSize {
        TableSize::new(settings, self.processors())
    }

    /// Sets conntrack's parameters. Logs those that may not be written, since traffic goes on without them.
    /// Stops at the first that cannot be read. Conntrack has to be loaded.
    ///
    /// A parameter that has its value is not written. The size of the table belongs to the machine: the
    /// kernel refuses to write it in another network namespace than the first
    /// (`nf_conntrack_standalone_init_sysctl`).
    pub fn set_conntrack(&self, settings: &ConntrackSettings) -> Result<(), Error> {
        for change in self.conntrack_changes(settings)? {
            self.set_if_allowed(change.key, &change.wanted)?;
        }
        Ok(())
    }

    /// What of conntrack's parameters would be changed. Conntrack has to be loaded.
    pub(crate) fn conntrack_changes(&self, settings: &ConntrackSettings) -> Result<Vec<Change>, Error> {
        let timeouts = [
            (TCP_ESTABLISHED, settings.tcp_established_timeout),
            ("net.netfilter.nf_conntrack_tcp_timeout_close_wait", settings.tcp_close_wait_timeout),
            ("net.netfilter.nf_conntrack_udp_timeout", settings.udp_timeout),
            ("net.netfilter.nf_conntrack_udp_timeout_stream", settings.udp_stream_timeout),
        ];
        let mut changes = Vec::new();
        if let Some(entries) = self.table_size(settings).entries() {
            changes.extend(self.raise(MAX, entries)?);
            changes.extend(self.raise(BUCKETS, entries / ENTRIES_PER_BUCKET)?);
        }
        for (key, seconds) in timeouts.into_iter().filter(|(_, seconds)| *seconds > 0) {
            changes.extend(self.change(key, seconds.to_string())?);
        }
        if settings.tcp_be_liberal {
            changes.extend(self.change(BE_LIBERAL, "1".to_owned())?);
        }
        Ok(changes)
    }

    /// The change of a parameter that is to be so much at least. A larger one stays: an administrator wants
    /// that room (kubernetes#141943).
    fn raise(&self, key: &'static str, least: u32) -> Result<Option<Change>, Error> {
        let is_less = |change: &Change| !change.found.parse().is_ok_and(|found: u32| found >= least);
        Ok(self.change(key, least.to_string())?.filter(is_less))
    }

    /// How many processors are online, whichever of them this process may use: conntrack's table serves all
    /// of them.
    fn processors(&self) -> u32 {
        let list = fs::read_to_string(self.processors.join("online")).ok();
        let online = list.and_then(|list| count(list.trim())).filter(|count| *count > 0);
        online.unwrap_or_else(|| {
            let usable = thread::available_parallelism().map_or(1, NonZero::get);
            u32::try_from(usable).unwrap_or(u32::MAX)
        })
    }
}

/// `0-3,8` is five.
fn count(list: &str) -> Option<u32> {
    list.split(',').try_fold(0u32, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const AS_IT_COMES: [(&str, &str); 7] = [
        ("nf_conntrack_max", "262144\n"),
        ("nf_conntrack_buckets", "65536\n"),
        ("nf_conntrack_tcp_timeout_established", "432000\n"),
        ("nf_conntrack_tcp_timeout_close_wait", "60\n"),
        ("nf_conntrack_tcp_be_liberal", "0\n"),
        ("nf_conntrack_udp_timeout", "30\n"),
        ("nf_conntrack_udp_timeout_stream", "120\n"),
    ];

    /// Settings that change nothing.
    const NOTHING: ConntrackSettings = ConntrackSettings {
        max_per_core: 0,
        min: 500_000,
        tcp_established_timeout: 0,
        tcp_close_wait_timeout: 0,
        tcp_be_liberal: false,
        udp_timeout: 0,
        udp_stream_timeout: 0,
    };

    fn tree(processors: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/sys/net/netfilter")).unwrap();
        for (name, value) in AS_IT_COMES {
            fs::write(root.path().join("proc/sys/net/netfilter").join(name), value).unwrap();
        }
        fs::create_dir_all(root.path().join("sys/devices/system/cpu")).unwrap();
        fs::write(root.path().join("sys/devices/system/cpu/online"), processors).unwrap();
        root
    }

    fn values(root: &Path) -> Vec<String> {
        let file = |(name, _): &(&str, &str)| root.join("proc/sys/net/netfilter").join(name);
        AS_IT_COMES.iter().map(|entry| fs::read_to_string(file(entry)).unwrap()).collect()
    }

    #[test]
    fn the_table_grows_with_the_processors_between_a_minimum_and_a_million() {
        let size = |max_per_core, min, processors| {
            TableSize::new(&ConntrackSettings { max_per_core, min, ..NOTHING }, processors).entries()
        };
        assert_eq!(size(32_768, 131_072, 1), Some(131_072));
        assert_eq!(size(32_768, 131_072, 8), Some(262_144));
        assert_eq!(size(32_768, 131_072, 32), Some(1_048_576));
        assert_eq!(size(32_768, 131_072, 33), Some(1_048_576), "as upstream caps it");
        assert_eq!(size(32_768, 2_000_000, 32), Some(2_000_000), "which the minimum exceeds");
        assert_eq!(size(32_768, 2_000_000, 33), Some(1_048_576), "but not where the cap counts, as upstream");
        assert_eq!(size(i32::MAX.unsigned_abs(), 0, 4_096), Some(1_048_576));
        assert_eq!(size(0, 500_000, 8), None);
    }

    #[test]
    fn the_settings_that_are_named_for_a_size_lead_to_it_on_however_many_processors() {
        for (max_per_core, processors, expected) in [
            (32_768, 8, Some("conntrack.min: 2097152")),
            (32_768, 32, Some("conntrack.min: 2097152")),
            (32_768, 33, Some("conntrack.maxPerCore: 1 and conntrack.min: 2097152")),
            (32_768, 4_096, Some("conntrack.maxPerCore: 1 and conntrack.min: 2097152")),
            (0, 4_096, None),
        ] {
            let settings = ConntrackSettings { max_per_core, ..NOTHING };
            let named = TableSize::new(&settings, processors).settings_for(2_097_152);
            let [fields, flags] = named.map_or([None, None], |named| named.map(Some));
            assert_eq!(fields.as_deref(), expected, "{max_per_core} per core, {processors} processors");
            let Some(flags) = flags else { continue };
            let max_per_core = if flags.contains("--conntrack-max-per-core=1 ") { 1 } else { max_per_core };
            let then = ConntrackSettings { max_per_core, min: 2_097_152, ..NOTHING };
            assert_eq!(TableSize::new(&then, processors).entries(), Some(2_097_152), "{flags}");
        }
    }

    #[test]
    fn what_is_asked_for_is_written_and_buckets_follow_the_maximum() {
        let root = tree("0-7,16-23\n");
        let settings = ConntrackSettings {
            max_per_core: 32_768,
            min: 131_072,
            tcp_established_timeout: 86_400,
            tcp_close_wait_timeout: 3_600,
            tcp_be_liberal: true,
            udp_timeout: 31,
            udp_stream_timeout: 121,
        };
        Sysctl::at(root.path()).set_conntrack(&settings).unwrap();
        assert_eq!(values(root.path()), ["524288", "131072", "86400", "3600", "1", "31", "121"]);
    }

    #[test]
    fn a_table_that_is_larger_than_asked_for_stays() {
        for (processors, found) in [("0-3\n", ["262144\n", "65536\n"]), ("0-63\n", ["2097152\n", "524288\n"])]
        {
            let root = tree(processors);
            let settings = ConntrackSettings { max_per_core: 32_768, min: 131_072, ..NOTHING };
            let directory = root.path().join("proc/sys/net/netfilter");
            fs::write(directory.join("nf_conntrack_max"), found[0]).unwrap();
            fs::write(directory.join("nf_conntrack_buckets"), found[1]).unwrap();
            let sysctl = Sysctl::at(root.path());
            assert_eq!(sysctl.conntrack_changes(&settings).unwrap(), [], "{processors}");
            sysctl.set_conntrack(&settings).unwrap();
            assert_eq!(values(root.path())[..2], found, "{processors}");
        }
    }

    #[test]
    fn buckets_follow_what_is_asked_for_though_the_table_is_larger() {
        let root = tree("0-15\n");
        fs::write(root.path().join("proc/sys/net/netfilter/nf_conntrack_max"), "2097152\n").unwrap();
        let settings = ConntrackSettings { max_per_core: 32_768, ..NOTHING };
        Sysctl::at(root.path()).set_conntrack(&settings).unwrap();
        assert_eq!(values(root.path())[..2], ["2097152\n", "131072"], "as upstream has it");
    }

    #[test]
    fn a_size_that_cannot_be_read_as_a_number_is_set() {
        let root = tree("0-7\n");
        fs::write(root.path().join("proc/sys/net/netfilter/nf_conntrack_max"), "-1\n").unwrap();
        let settings = ConntrackSettings { max_per_core: 32_768, ..NOTHING };
        Sysctl::at(root.path()).set_conntrack(&settings).unwrap();
        assert_eq!(values(root.path())[0], "500000");
    }

    #[test]
    fn zeros_leave_everything_and_need_no_file() {
        let root = tree("0\n");
        Sysctl::at(root.path()).set_conntrack(&NOTHING).unwrap();
        assert_eq!(values(root.path()), AS_IT_COMES.map(|(_, value)| value));
        Sysctl::at(Path::new("/nonexistent")).set_conntrack(&NOTHING).unwrap();
    }

    #[test]
    fn right_values_are_not_written() {
        let root = tree("0-7\n");
        let settings = ConntrackSettings { max_per_core: 32_768, min: 131_072, udp_timeout: 30, ..NOTHING };
        Sysctl::at(root.path()).set_conntrack(&settings).unwrap();
        assert_eq!(values(root.path()), AS_IT_COMES.map(|(_, value)| value), "not even the line's end");
    }

    #[test]
    fn without_conntrack_the_parameter_is_named() {
        let root = tree("0\n");
        fs::remove_file(root.path().join("proc/sys/net/netfilter/nf_conntrack_max")).unwrap();
        let settings = ConntrackSettings { max_per_core: 1, ..NOTHING };
        let error = Sysctl::at(root.path()).set_conntrack(&settings).unwrap_err();
        assert_eq!(error.to_string(), "sysctl net.netfilter.nf_conntrack_max cannot be read");
    }

    /// What is found where the kernel says this.
    fn found(online: &str) -> u32 {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("sys/devices/system/cpu");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("online"), online).unwrap();
        Sysctl::at(root.path()).processors()
    }

    #[test]
    fn processors_are_counted_from_the_kernel_s_list() {
        for (list, processors) in [
            ("0", Some(1)),
            ("0-3", Some(4)),
            ("0-3,8,10-11", Some(7)),
            ("", None),
            ("3-0", None),
            ("x", None),
        ] {
            assert_eq!(count(list), processors, "{list}");
        }
    }

    #[test]
    fn without_a_usable_list_the_processors_of_this_process_count() {
        assert_eq!(found("0-90,95\n"), 92);
        let usable = u32::try_from(thread::available_parallelism().unwrap().get()).unwrap();
        for list in ["", "x\n", "5-4\n"] {
            assert_eq!(found(list), usable, "{list}");
        }
        assert_eq!(Sysctl::at(Path::new("/nonexistent")).processors(), usable);
    }
}
