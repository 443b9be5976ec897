//! What values an option may have: one rule each.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use ipvs::{InvalidScheduler, Timeouts};
use netfilter::LocalTraffic;
use service::NodePortAddresses;

use super::{
    ConntrackSettings, Error, GoDuration, KubeProxyConfiguration, LocalMode, Origin,
    v1alpha1::{Conntrack, DetectLocal, Ipvs, Logging, VModule},
    values::ListenAddress,
};
use crate::logging;

/// What is wrong with a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Another proxy mode than ours.
    #[error("mode {0:?} is not supported: kube-ipvs supports only mode ipvs")]
    Mode(String),
    /// Not the name of a scheduler.
    #[error(transparent)]
    Scheduler(#[from] InvalidScheduler),
    /// Not an address range.
    #[error("{0:?} is not a CIDR such as 10.244.0.0/16 or fd00::/48")]
    Cidr(String),
    /// Two address ranges of one family.
    #[error("{0:?} has more than one CIDR of a family")]
    CidrsOfOneFamily(String),
    /// A keyword twice.
    #[error("{0:?} is given twice")]
    Twice(String),
    /// Not an address.
    #[error("{0:?} is not an IP address")]
    Address(String),
    /// A period of zero.
    #[error("the period must be more than 0")]
    NoPeriod,
    /// A duration below zero.
    #[error("{0} is negative")]
    NegativeDuration(GoDuration),
    /// A number below zero.
    #[error("{0} is negative")]
    Negative(i32),
    /// A time that does not fit into the kernel's number.
    #[error("{0} is longer than the kernel can count")]
    TimeoutTooLong(GoDuration),
    /// Not an address to listen at.
    #[error("{0:?} is not an address with a port from 1 to 65535, such as 0.0.0.0:10256 or [::]:10256")]
    Listen(String),
    /// Not a score that the kernel takes.
    #[error("{0} is not an OOM score adjustment: expected -1000 to 1000")]
    OomScoreAdj(i32),
    /// Not a version.
    #[error("{0:?} is not a version such as 1.35")]
    Version(String),
    /// Not a rate.
    #[error("{0} is not a rate")]
    Rate(String),
    /// More than an `int32`.
    #[error("{0} is too large: expected 0 to 2147483647")]
    Verbosity(u32),
    /// Not the name of a source file.
    #[error("{0:?} cannot be a file pattern: expected a name without = and ,")]
    FilePattern(String),
    /// The least period between syncs exceeds the longest.
    #[error("{minimum:?} is more than the sync period of {period:?}")]
    MinimumAbovePeriod {
        /// The least time between syncs.
        minimum: Duration,
        /// The most.
        period: Duration,
    },
    /// A packet mark has 32 bits.
    #[error("{0} is not a bit of a packet mark: expected 0 to 31")]
    MasqueradeBit(i32),
    /// Not a way to recognise pods.
    #[error("{0:?} is unknown: expected ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix")]
    LocalMode(String),
    /// Not the name of an interface, or its beginning.
    #[error("{0:?} cannot name an interface: expected 1 to 15 letters without space or /")]
    Interface(String),
    /// Not the name of a node.
    #[error("{0:?} cannot be a node's name")]
    NodeName(String),
    /// Not the address of a server.
    #[error("{0:?} is neither a URL such as https://10.0.0.1:6443 nor a host with or without a port")]
    Server(String),
    /// Not a log format.
    #[error("{0:?} is unknown: expected text or json")]
    LogFormat(String),
}

pub(super) fn mode(mode: &str) -> Result<(), Problem> {
    if mode == "ipvs" { Ok(()) } else { Err(Problem::Mode(mode.to_owned())) }
}

pub(super) fn duration(duration: GoDuration) -> Result<Duration, Problem> {
    duration.duration().ok_or(Problem::NegativeDuration(duration))
}

pub(super) fn period(period: GoDuration) -> Result<Duration, Problem> {
    Some(duration(period)?).filter(|period| !period.is_zero()).ok_or(Problem::NoPeriod)
}

/// How far apart syncs are, at most and at least.
pub(super) fn periods(ipvs: &Ipvs, origin: Origin) -> Result<(Duration, Duration), Error> {
    let period = origin.check("ipvs.syncPeriod", period(ipvs.sync_period))?;
    let minimum = origin.check("ipvs.minSyncPeriod", duration(ipvs.min_sync_period))?;
    if minimum > period {
        return Err(origin.invalid("ipvs.minSyncPeriod", Problem::MinimumAbovePeriod { minimum, period }));
    }
    Ok((period, minimum))
}

pub(super) fn at_least_zero(number: i32) -> Result<u32, Problem> {
    u32::try_from(number).map_err(|_| Problem::Negative(number))
}

/// The bounds of `/proc/PID/oom_score_adj`: `OOM_SCORE_ADJ_MIN` and `MAX` in include/uapi/linux/oom.h.
pub(super) fn oom_score_adj(score: i32) -> Result<i32, Problem> {
    if (-1_000..=1_000).contains(&score) { Ok(score) } else { Err(Problem::OomScoreAdj(score)) }
}

/// A rate of requests.
pub(super) fn rate(rate: f32) -> Result<(), Problem> {
    if rate.is_finite() { Ok(()) } else { Err(Problem::Rate(rate.to_string())) }
}

/// A version of Kubernetes, or none. kube-proxy takes only the version before its own, but this is not a
/// version of Kubernetes.
pub(super) fn version(version: &str) -> Result<(), Problem> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match version.split_once('.') {
        Some((major, minor)) if is_number(major) && is_number(minor) => Ok(()),
        None if version.is_empty() => Ok(()),
        _ => Err(Problem::Version(version.to_owned())),
    }
}

/// Verbosities of source files.
pub(super) fn vmodule(modules: &[VModule]) -> Result<(), Problem> {
    let mut patterns = modules.iter().map(|module| &module.file_pattern);
    if let Some(pattern) = patterns.find(|name| name.is_empty() || name.contains(['=', ','])) {
        return Err(Problem::FilePattern(pattern.clone()));
    }
    modules.iter().try_for_each(|module| verbosity(module.verbosity).map(drop))
}

pub(super) fn logging(logging: &Logging, origin: Origin) -> Result<logging::Options, Error> {
    let format = match logging.format.as_str() {
        "text" => Ok(logging::Format::Text),
        "json" => Ok(logging::Format::Json),
        other => Err(Problem::LogFormat(other.to_owned())),
    };
    Ok(logging::Options {
        format: origin.check("logging.format", format)?,
        verbosity: origin.check("logging.verbosity", verbosity(logging.verbosity))?,
    })
}

fn verbosity(verbosity: u32) -> Result<i32, Problem> {
    i32::try_from(verbosity).map_err(|_| Problem::Verbosity(verbosity))
}

/// Address ranges; bits beyond the prefix are cleared, as in Go.
pub(super) fn cidrs(texts: &[String]) -> Result<Vec<IpNet>, Problem> {
    let texts = texts.iter().map(|text| text.trim()).filter(|text| !text.is_empty());
    texts
        .map(|text| text.parse().map(|net: IpNet| net.trunc()).map_err(|_| Problem::Cidr(text.to_owned())))
        .collect()
}

/// Ranges and keywords, in any mixture. But for `primary`, whose addresses may change, keywords become ranges
/// as with upstream (`expandNodePortAddressKeywords` in cmd/kube-proxy/app/server.go).
pub(super) fn node_port_addresses(texts: &[String]) -> Result<NodePortAddresses, Problem> {
    let mut keywords = BTreeSet::new();
    let mut ranges = Vec::new();
    for text in texts.iter().map(|text| text.trim()) {
        let stands_for: &[&str] = match text {
            "primary" => &[],
            "localhost" => &["127.0.0.0/8", "::1/128"],
            "all" => &["0.0.0.0/0", "::/0"],
            range => {
                ranges.push(range.to_owned());
                continue;
            }
        };
        if !keywords.insert(text) {
            return Err(Problem::Twice(text.to_owned()));
        }
        ranges.extend(stands_for.iter().map(ToString::to_string));
    }
    Ok(NodePortAddresses { primary: keywords.contains("primary"), ranges: cidrs(&ranges)? })
}

/// The address at which health or metrics are served, if they are.
pub(super) fn listen_address(address: &ListenAddress) -> Result<Option<SocketAddr>, Problem> {
    if address.is_empty() {
        return Ok(None);
    }
    let parsed = address.0.parse().ok().filter(|address: &SocketAddr| address.port() > 0);
    parsed.map(Some).ok_or_else(|| Problem::Listen(address.0.clone()))
}

/// The address to bind to; `None` for all addresses and for no address.
pub(super) fn bind_address(text: &str) -> Result<Option<IpAddr>, Problem> {
    if text.is_empty() {
        return Ok(None);
    }
    let address: IpAddr = text.parse().map_err(|_| Problem::Address(text.to_owned()))?;
    Ok(Some(address).filter(|address| !address.is_unspecified()))
}

pub(super) fn mark(bit: i32) -> Result<u32, Problem> {
    u32::try_from(bit).ok().and_then(|bit| 1u32.checked_shl(bit)).ok_or(Problem::MasqueradeBit(bit))
}

pub(super) fn local_mode(configuration: &KubeProxyConfiguration, origin: Origin) -> Result<LocalMode, Error> {
    let DetectLocal { bridge_interface, interface_name_prefix } = &configuration.detect_local;
    let traffic = match configuration.detect_local_mode.as_str() {
        "ClusterCIDR" => {
            let (ipv4, ipv6) = origin.check("clusterCIDR", cidr_per_family(&configuration.cluster_cidr))?;
            LocalTraffic::Source { ipv4, ipv6 }
        }
        "NodeCIDR" => return Ok(LocalMode::NodeCidr),
        "BridgeInterface" => {
            LocalTraffic::Bridge(origin.check("detectLocal.bridgeInterface", interface(bridge_interface))?)
        }
        "InterfaceNamePrefix" => LocalTraffic::InterfacePrefix(
            origin.check("detectLocal.interfaceNamePrefix", interface(interface_name_prefix))?,
        ),
        other => return Err(origin.invalid("detectLocalMode", Problem::LocalMode(other.to_owned()))),
    };
    Ok(LocalMode::Fixed(traffic))
}

/// The ranges of the pods of all nodes. They are checked only where pods are recognised by them, as in
/// upstream: elsewhere what is not a range is left out.
pub(super) fn pod_ranges(
    configuration: &KubeProxyConfiguration,
    origin: Origin,
) -> Result<Vec<IpNet>, Error> {
    let list = &configuration.cluster_cidr;
    if configuration.detect_local_mode == "ClusterCIDR" {
        let (v4, v6) = origin.check("clusterCIDR", cidr_per_family(list))?;
        return Ok(v4.map(IpNet::V4).into_iter().chain(v6.map(IpNet::V6)).collect());
    }
    Ok(list.split(',').filter_map(|range| range.trim().parse().ok()).collect())
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

/// A URL, or a host with or without a port but no path, as in client-go (`DefaultServerURL` in
/// rest/url_utils.go).
pub(super) fn server(text: &str) -> Result<(), Problem> {
    let url = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let host = Some(text.strip_suffix('/').unwrap_or(text)).filter(|host| !host.contains('/'));
    let is_server = |rest: &str| !rest.is_empty() && !rest.contains(char::is_whitespace);
    if url.or(host).is_some_and(is_server) { Ok(()) } else { Err(Problem::Server(text.to_owned())) }
}

pub(super) fn conntrack(conntrack: &Conntrack, origin: Origin) -> Result<ConntrackSettings, Error> {
    // Every default has been filled in.
    let count = |field, value: Option<i32>| origin.check(field, at_least_zero(value.unwrap_or_default()));
    let timeout = |field, value| origin.check(field, seconds(value));
    Ok(ConntrackSettings {
        max_per_core: count("conntrack.maxPerCore", conntrack.max_per_core)?,
        min: count("conntrack.min", conntrack.min)?,
        tcp_established_timeout: timeout(
            "conntrack.tcpEstablishedTimeout",
            conntrack.tcp_established_timeout.unwrap_or_default(),
        )?,
        tcp_close_wait_timeout: timeout(
            "conntrack.tcpCloseWaitTimeout",
            conntrack.tcp_close_wait_timeout.unwrap_or_default(),
        )?,
        tcp_be_liberal: conntrack.tcp_be_liberal,
        udp_timeout: timeout("conntrack.udpTimeout", conntrack.udp_timeout)?,
        udp_stream_timeout: timeout("conntrack.udpStreamTimeout", conntrack.udp_stream_timeout)?,
    })
}

pub(super) fn ipvs_timeouts(ipvs: &Ipvs, origin: Origin) -> Result<Timeouts, Error> {
    let timeout = |field, value| origin.check(field, seconds(value));
    Ok(Timeouts::UNCHANGED
        .tcp(timeout("ipvs.tcpTimeout", ipvs.tcp_timeout)?)
        .tcp_fin(timeout("ipvs.tcpFinTimeout", ipvs.tcp_fin_timeout)?)
        .udp(timeout("ipvs.udpTimeout", ipvs.udp_timeout)?))
}

/// The timeout in whole seconds, which is what the kernel counts in. Half a second is one, for 0 would mean
/// something else.
fn seconds(timeout: GoDuration) -> Result<u32, Problem> {
    let duration = duration(timeout)?;
    let seconds = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    // Kept as an int everywhere, in ticks.
    i32::try_from(seconds).map(i32::unsigned_abs).map_err(|_| Problem::TimeoutTooLong(timeout))
}
