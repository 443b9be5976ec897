//! One rule per option.

use std::{net::IpAddr, time::Duration};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use ipvs::{InvalidScheduler, Scheduler};
use netfilter::LocalTraffic;
use service::NodePortAddresses;

use super::{Error, LocalMode, Origin, file};

/// What is wrong with a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Another proxy mode than ours.
    #[error("mode {0:?} is not supported: kube-ipvs is the proxy for mode ipvs and no other")]
    Mode(String),
    /// No name of a scheduler.
    #[error(transparent)]
    Scheduler(#[from] InvalidScheduler),
    /// No address range.
    #[error("{0:?} is no CIDR such as 10.244.0.0/16 or fd00::/48")]
    Cidr(String),
    /// Two address ranges of one family.
    #[error("{0:?} has more than one CIDR of a family")]
    CidrsOfOneFamily(String),
    /// The word for the node's own addresses among ranges.
    #[error("nothing may stand beside {PRIMARY:?}")]
    PrimaryAndRanges,
    /// No address.
    #[error("{0:?} is no IP address")]
    Address(String),
    /// A period that is no time at all.
    #[error("the period must be more than 0")]
    NoPeriod,
    /// The two periods contradict each other.
    #[error("{minimum:?} is more than the sync period of {period:?}")]
    MinimumAbovePeriod {
        /// The least time between syncs.
        minimum: Duration,
        /// The most.
        period: Duration,
    },
    /// A packet mark has 32 bits.
    #[error("{0} is no bit of a packet mark: expected 0 to 31")]
    MasqueradeBit(i32),
    /// No way to recognise pods.
    #[error("{0:?} is unknown: expected ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix")]
    LocalMode(String),
    /// No name of an interface, or the beginning of one.
    #[error("{0:?} cannot name an interface: expected 1 to 15 letters without space or /")]
    Interface(String),
    /// Nothing is left of the node's name.
    #[error("{0:?} cannot be a node's name")]
    NodeName(String),
    /// No URL.
    #[error("{0:?} is no URL such as https://10.0.0.1:6443")]
    Url(String),
    /// No form of log.
    #[error("{0:?} is unknown: expected text or json")]
    LogFormat(String),
}

/// No mode means iptables to kube-proxy. Here it means ipvs: this program does nothing else, and
/// kubeadm writes no mode.
pub(super) fn mode(mode: &str) -> Result<(), Problem> {
    match mode {
        "" | "ipvs" => Ok(()),
        other => Err(Problem::Mode(other.to_owned())),
    }
}

pub(super) fn scheduler(name: &str) -> Result<Scheduler, Problem> {
    if name.is_empty() { Ok(Scheduler::RR) } else { Ok(name.parse()?) }
}

pub(super) fn periods(ipvs: &file::Ipvs, origin: &Origin) -> Result<(Duration, Duration), Error> {
    let period = match (ipvs.sync_period.0, origin) {
        (Duration::ZERO, Origin::Flags) => {
            return Err(origin.invalid("--ipvs-sync-period", "ipvs.syncPeriod", Problem::NoPeriod));
        }
        // A zero in a file stands for the default.
        (Duration::ZERO, Origin::File(_)) => Duration::from_secs(30),
        (period, _) => period,
    };
    let minimum = ipvs.min_sync_period.0;
    if minimum > period {
        let problem = Problem::MinimumAbovePeriod { minimum, period };
        return Err(origin.invalid("--ipvs-min-sync-period", "ipvs.minSyncPeriod", problem));
    }
    Ok((period, minimum))
}

/// Address ranges; bits beyond the prefix are cleared, as Go does it.
pub(super) fn cidrs(texts: &[String]) -> Result<Vec<IpNet>, Problem> {
    let texts = texts.iter().map(|text| text.trim()).filter(|text| !text.is_empty());
    texts
        .map(|text| text.parse().map(|net: IpNet| net.trunc()).map_err(|_| Problem::Cidr(text.to_owned())))
        .collect()
}

/// What stands for the primary addresses of this node in place of ranges.
const PRIMARY: &str = "primary";

pub(super) fn node_port_addresses(texts: &[String]) -> Result<NodePortAddresses, Problem> {
    let is_primary = |text: &String| text.trim() == PRIMARY;
    match texts {
        [only] if is_primary(only) => Ok(NodePortAddresses::Primary),
        texts if texts.iter().any(is_primary) => Err(Problem::PrimaryAndRanges),
        texts => Ok(match cidrs(texts)? {
            ranges if ranges.is_empty() => NodePortAddresses::All,
            ranges => NodePortAddresses::Ranges(ranges),
        }),
    }
}

/// All addresses, and no address, are none in particular.
pub(super) fn bind_address(text: &str) -> Result<Option<IpAddr>, Problem> {
    if text.is_empty() {
        return Ok(None);
    }
    let address: IpAddr = text.parse().map_err(|_| Problem::Address(text.to_owned()))?;
    Ok(Some(address).filter(|address| !address.is_unspecified()))
}

pub(super) fn mark(bit: Option<i32>) -> Result<u32, Problem> {
    let bit = bit.unwrap_or(14);
    u32::try_from(bit).ok().and_then(|bit| 1u32.checked_shl(bit)).ok_or(Problem::MasqueradeBit(bit))
}

pub(super) fn local_mode(
    configuration: &file::KubeProxyConfiguration,
    origin: &Origin,
) -> Result<LocalMode, Error> {
    let file::DetectLocal { bridge_interface, interface_name_prefix } = &configuration.detect_local;
    match configuration.detect_local_mode.as_str() {
        "" | "ClusterCIDR" => {
            let (ipv4, ipv6) = cidr_per_family(&configuration.cluster_cidr)
                .map_err(|p| origin.invalid("--cluster-cidr", "clusterCIDR", p))?;
            Ok(LocalMode::Fixed(LocalTraffic::Source { ipv4, ipv6 }))
        }
        "NodeCIDR" => Ok(LocalMode::NodeCidr),
        "BridgeInterface" => interface(bridge_interface)
            .map(|name| LocalMode::Fixed(LocalTraffic::Bridge(name)))
            .map_err(|p| origin.invalid("--pod-bridge-interface", "detectLocal.bridgeInterface", p)),
        "InterfaceNamePrefix" => interface(interface_name_prefix)
            .map(|prefix| LocalMode::Fixed(LocalTraffic::InterfacePrefix(prefix)))
            .map_err(|p| origin.invalid("--pod-interface-name-prefix", "detectLocal.interfaceNamePrefix", p)),
        other => Err(origin.invalid(
            "--detect-local-mode",
            "detectLocalMode",
            Problem::LocalMode(other.to_owned()),
        )),
    }
}

/// A list of at most one range of each family.
fn cidr_per_family(list: &str) -> Result<(Option<Ipv4Net>, Option<Ipv6Net>), Problem> {
    let mut families = (None, None);
    for cidr in cidrs(&list.split(',').map(str::to_owned).collect::<Vec<_>>())? {
        let earlier = match cidr {
            IpNet::V4(net) => families.0.replace(net).is_some(),
            IpNet::V6(net) => families.1.replace(net).is_some(),
        };
        if earlier {
            return Err(Problem::CidrsOfOneFamily(list.to_owned()));
        }
    }
    Ok(families)
}

/// What `dev_valid_name` in net/core/dev.c lets be an interface's name; `IFNAMSIZ` is 16 with the NUL.
fn interface(name: &str) -> Result<Box<str>, Problem> {
    let allowed = |c: char| !c.is_ascii_whitespace() && !matches!(c, '/' | ':' | '\0');
    if name.is_empty() || name.len() > 15 || !name.chars().all(allowed) {
        return Err(Problem::Interface(name.to_owned()));
    }
    Ok(name.into())
}

pub(super) fn node_name(name: &str) -> Result<String, Problem> {
    let trimmed = name.trim().to_lowercase();
    if trimmed.is_empty() { Err(Problem::NodeName(name.to_owned())) } else { Ok(trimmed) }
}

pub(super) fn url(text: &str) -> Result<(), Problem> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let is_url = rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(char::is_whitespace));
    if is_url { Ok(()) } else { Err(Problem::Url(text.to_owned())) }
}
