//! Strict reverse path filtering that drops packets.
//!
//! With `rp_filter` 1 the kernel drops a packet if the route to its source uses another interface. That hurts where
//! answers, or the packets of a load balancer, come in by another way than they leave. Most nodes are strict without
//! any harm, so only a counter that grows is reported, and not for one stray packet: it must have grown in two checks.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use super::while_running::WhileRunning;
use crate::{
    finding::{Finding, first_few},
    node::routing_drops::{CONF, RoutingDrops, reverse_path_filter},
};

const STRICT: u8 = 1;
/// How many interfaces are named: each pod has one.
const NAMED: usize = 5;
/// How long a finding holds after the last dropped packet, and how long one dropped packet waits for another: those of
/// one client come with pauses.
const HOLDS: Duration = Duration::from_secs(600);
/// Not interfaces, or not those by which packets come in.
const OTHERS: [&str; 4] = ["all", "default", "lo", "kube-ipvs0"];

/// Remembers when `rp_filter` dropped packets.
#[derive(Debug, Default)]
pub(super) struct ReversePath {
    counted: Option<u64>,
    /// The last check in which the count had grown.
    grew: Option<Instant>,
    /// Whether it had grown in an earlier one too, and not long before.
    repeatedly: bool,
}

/// Whether strict reverse path filtering drops packets.
pub(super) fn check(node: &mut WhileRunning) -> Vec<Finding> {
    let drops = RoutingDrops::read().reverse_path;
    let strict = || strict_interfaces(Path::new(CONF));
    node.reverse_path.check(drops, strict, Instant::now()).into_iter().collect()
}

impl ReversePath {
    /// Takes the count of all dropped packets, and the interfaces that are strict.
    fn check(&mut self, drops: u64, strict: impl FnOnce() -> Vec<String>, now: Instant) -> Option<Finding> {
        if self.grew.is_some_and(|grew| now.duration_since(grew) >= HOLDS) {
            (self.grew, self.repeatedly) = (None, false);
        }
        if self.counted.replace(drops).is_some_and(|before| drops > before) {
            self.repeatedly = self.grew.replace(now).is_some();
        }
        if !self.repeatedly {
            return None;
        }
        let strict = strict();
        let what = format!(
            "rp_filter is strict (1) and drops packets (the counter IPReversePathFilter grows): the route to their \
             source uses another interface than the one at which they arrive; strict are {}",
            first_few(strict.iter().cloned(), NAMED)
        );
        let remedy = "`kube-ipvs trace` shows whether packets of a Service are among them. Give the node a route to their \
                      source by that interface, or make it loose: `sysctl -w net.ipv4.conf.INTERFACE.rp_filter=2`, and the \
                      same in /etc/sysctl.d";
        (!strict.is_empty()).then(|| Finding::warning("rp_filter", what).remedy(remedy))
    }
}

/// The interfaces whose filter is strict, sorted.
fn strict_interfaces(conf: &Path) -> Vec<String> {
    let value = |interface: &str| reverse_path_filter(conf, interface);
    let all = value("all").unwrap_or_default();
    let names = fs::read_dir(conf).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let is_strict = |name: &String| value(name).is_some_and(|own| own.max(all) == STRICT);
    let mut strict: Vec<_> =
        names.filter(|name| !OTHERS.contains(&name.as_str()) && is_strict(name)).collect();
    strict.sort_unstable();
    strict
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_grows_repeatedly_is_a_warning_where_an_interface_is_strict() {
        let (mut filter, begin) = (ReversePath::default(), Instant::now());
        let after = |seconds| begin + Duration::from_secs(seconds);
        let eth1 = || vec!["eth1".to_owned()];
        assert_eq!(filter.check(7, eth1, begin), None, "it may have grown long ago");
        assert_eq!(filter.check(7, eth1, after(30)), None);
        assert_eq!(filter.check(9, eth1, after(60)), None, "it has grown once");
        assert_eq!(filter.check(9, eth1, after(90)), None);
        let found = filter.check(10, eth1, after(120)).unwrap();
        assert!(found.what.ends_with("; strict are eth1"), "{}", found.what);
        assert_eq!(filter.check(10, eth1, after(150)), Some(found), "it is not over with the first pause");
        assert_eq!(filter.check(11, Vec::new, after(180)), None, "nothing is strict any more");
        assert_eq!(filter.check(11, eth1, after(180) + HOLDS), None);
    }

    #[test]
    fn stray_packets_far_apart_are_no_warning() {
        let (mut filter, begin) = (ReversePath::default(), Instant::now());
        for stray in 0..5 {
            let eth1 = || vec!["eth1".to_owned()];
            let at = begin + HOLDS.saturating_mul(u32::try_from(stray).unwrap());
            assert_eq!(filter.check(stray, eth1, at), None, "{stray}");
        }
    }

    #[test]
    fn the_larger_value_of_an_interface_and_of_all_applies() {
        let conf = tempfile::tempdir().unwrap();
        let write = |all: &str| {
            for (name, value) in
                [("all", all), ("default", "1"), ("lo", "1"), ("eth0", "1"), ("eth1", "0"), ("eth2", "2")]
            {
                fs::create_dir_all(conf.path().join(name)).unwrap();
                fs::write(conf.path().join(name).join("rp_filter"), format!("{value}\n")).unwrap();
            }
            strict_interfaces(conf.path())
        };
        assert_eq!(write("0"), ["eth0"]);
        assert_eq!(write("1"), ["eth0", "eth1"]);
        assert_eq!(write("2"), [""; 0]);
    }
}
