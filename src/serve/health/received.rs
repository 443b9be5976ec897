//! How many packets have come out of this node's tunnels, for other nodes that ask.

use std::fs;

use ipvs::Family;
use netfilter::tunnel;

/// The packets that have come out of the tunnel of a family; `None` if there is none. The file is read without the lock
/// of rtnetlink, so that an answer about the health never waits for it.
pub(super) fn received(family: Family) -> Option<u64> {
    let devices = fs::read_to_string("/proc/thread-self/net/dev").ok()?;
    packets(&devices, tunnel::device(family))
}

/// The second number of the device's line.
fn packets(devices: &str, device: &str) -> Option<u64> {
    let mut lines = devices.lines().filter_map(|line| line.split_once(':'));
    let (_, numbers) = lines.find(|(name, _)| name.trim() == device)?;
    numbers.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_packets_are_those_of_the_device_itself() {
        let devices = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:  125000    1250    0    0    0     0          0         0   125000    1250    0    0    0     0       0          0
kube-ipvs-tun4: 6000 71    0    0    0     0          0         0        0       0    0    0    0     0       0          0
kube-ipvs-tun6:    0  0    0    0    0     0          0         0        0       0    0    0    0     0       0          0
";
        assert_eq!(packets(devices, "kube-ipvs-tun4"), Some(71));
        assert_eq!(packets(devices, "kube-ipvs-tun6"), Some(0));
        assert_eq!(packets(devices, "kube-ipvs-tun"), None);
        assert_eq!(packets("kube-ipvs-tun4: 1", "kube-ipvs-tun4"), None);
    }
}
