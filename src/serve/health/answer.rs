//! The response, in the fields and the order of `ProxyHealth` in kube-proxy's pkg/proxy/healthcheck.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use ipvs::Family;
use k8s_openapi::jiff::Timestamp;
use netfilter::tunnel;
use serde::{Deserialize, Serialize, Serializer};

/// The requested page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HealthPage {
    /// Should load balancers send traffic here?
    Healthz,
    /// Does the proxy work?
    Livez,
    /// Does it work, and has it programmed enough to replace another proxy?
    Readyz,
}

/// The response.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HealthAnswer {
    pub(super) last_updated: GoTime,
    pub(super) current_time: GoTime,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node_eligible: Option<bool>,
    pub(super) healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) status: BTreeMap<Family, FamilyStatus>,
    #[serde(flatten)]
    pub(super) direct_return: DirectReturnAnswer,
}

/// What other nodes ask for, which decide by it how they reach pods of this one. kube-proxy's answers have nothing of
/// it. Versions of this program that differ understand each other by these fields.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct DirectReturnAnswer {
    /// The families in which this node unpacks what others send to its pods; `None`, while that is not decided.
    #[serde(skip_serializing_if = "is_nothing")]
    pub(crate) unpacks: Option<BTreeSet<Family>>,
    /// Whether by generic UDP encapsulation too.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) gue: bool,
    /// How many packets it has received so, in these families.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) received: BTreeMap<Family, u64>,
}

/// The answer of a node that unpacks nothing.
impl Default for DirectReturnAnswer {
    fn default() -> Self {
        Self { unpacks: Some(BTreeSet::new()), gue: false, received: BTreeMap::new() }
    }
}

impl DirectReturnAnswer {
    /// Reads the part of an answer at `/healthz` that is this one; of a program that has nothing of it, nothing.
    pub(crate) fn read(body: &[u8]) -> Self {
        serde_json::from_slice(body).unwrap_or_default()
    }
}

#[expect(clippy::ref_option, reason = "serde passes a reference")]
fn is_nothing(unpacks: &Option<BTreeSet<Family>>) -> bool {
    unpacks.as_ref().is_some_and(BTreeSet::is_empty)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// The status of a family. One sync serves all families, so they do not differ.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FamilyStatus {
    pub(super) last_updated: GoTime,
    pub(super) healthy: bool,
}

/// A time as programs in Go write it: RFC 3339, in nanoseconds without the zeros at the end.
#[derive(Clone, Copy, Debug)]
pub(super) struct GoTime(pub(super) Option<Timestamp>);

impl Serialize for GoTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(time) => serializer.collect_str(&time),
            // What Go has for no time.
            None => serializer.serialize_str("0001-01-01T00:00:00Z"),
        }
    }
}

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
