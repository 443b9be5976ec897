//! What values an option may have: one rule each.

use std::{
    collections::BTreeSet,
    fmt::Display,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use ipvs::InvalidScheduler;
use netfilter::LocalTraffic;
use service::NodePortAddresses;

use super::{
    Error, GoDuration, KubeProxyConfiguration, LocalMode, Origin,
    options::{DetectLocal, Logging, VModule},
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
    /// Not of the option's kind, or outside of its bounds.
    #[error("invalid value {value}: expected {expected}")]
    Invalid {
        /// The value; a text is quoted.
        value: String,
        /// What values the option has.
        expected: &'static str,
    },
    /// Two address ranges of one family.
    #[error("{0:?} has more than one CIDR of a family")]
    CidrsOfOneFamily(String),
    /// A keyword twice.
    #[error("{0:?} is given twice")]
    Twice(String),
    /// The least period between syncs exceeds the longest.
    #[error("{minimum:?} is more than the sync period of {period:?}")]
    MinimumAbovePeriod {
        /// The least time between syncs.
        minimum: Duration,
        /// The most.
        period: Duration,
    },
}

impl Problem {
    fn text(value: &str, expected: &'static str) -> Self {
        Self::number(format_args!("{value:?}"), expected)
    }

    pub(super) fn number(value: impl Display, expected: &'static str) -> Self {
        Self::Invalid { value: value.to_string(), expected }
    }
}

/// What a number or duration that may not be negative is.
const AT_LEAST_ZERO: &str = "0 or more";

pub(super) fn mode(mode: &str) -> Result<(), Problem> {
    if mode == "ipvs" { Ok(()) } else { Err(Problem::Mode(mode.to_owned())) }
}

pub(super) fn duration(duration: GoDuration) -> Result<Duration, Problem> {
    duration.duration().ok_or_else(|| Problem::number(duration, AT_LEAST_ZERO))
}

pub(super) fn period(period: GoDuration) -> Result<Duration, Problem> {
    let not_zero = Some(duration(period)?).filter(|period| !period.is_zero());
    not_zero.ok_or_else(|| Problem::number(period, "a period of more than 0s"))
}

pub(super) fn at_least_zero(number: i32) -> Result<u32, Problem> {
    u32::try_from(number).map_err(|_| Problem::number(number, AT_LEAST_ZERO))
}

/// The bounds of `/proc/PID/oom_score_adj`: `OOM_SCORE_ADJ_MIN` and `MAX` in include/uapi/linux/oom.h.
pub(super) fn oom_score_adj(score: i32) -> Result<i32, Problem> {
    let expected = "an OOM score adjustment from -1000 to 1000";
    if (-1_000..=1_000).contains(&score) { Ok(score) } else { Err(Problem::number(score, expected)) }
}

/// A rate of requests.
pub(super) fn rate(rate: f32) -> Result<(), Problem> {
    if rate.is_finite() { Ok(()) } else { Err(Problem::number(rate, "a rate")) }
}

/// A version of Kubernetes, or none. kube-proxy takes only the version before its own, but this is not a
/// version of Kubernetes.
pub(super) fn version(version: &str) -> Result<(), Problem> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match version.split_once('.') {
        Some((major, minor)) if is_number(major) && is_number(minor) => Ok(()),
        None if version.is_empty() => Ok(()),
        _ => Err(Problem::text(version, "a version such as 1.35")),
    }
}

/// Verbosities of source files.
pub(super) fn vmodule(modules: &[VModule]) -> Result<(), Problem> {
    let mut patterns = modules.iter().map(|module| &module.file_pattern);
    if let Some(pattern) = patterns.find(|name| name.is_empty() || name.contains(['=', ','])) {
        return Err(Problem::text(pattern, "a file pattern without = and ,"));
    }
    modules.iter().try_for_each(|module| verbosity(module.verbosity).map(drop))
}

pub(super) fn logging(logging: &Logging, origin: Origin) -> Result<logging::Options, Error> {
    let format = match logging.format.as_str() {
        "text" => Ok(logging::Format::Text),
        "json" => Ok(logging::Format::Json),
        other => Err(Problem::text(other, "text or json")),
    };
    Ok(logging::Options {
        format: origin.check("logging.format", format)?,
        verbosity: origin.check("logging.verbosity", verbosity(logging.verbosity))?,
    })
}

fn verbosity(verbosity: u32) -> Result<i32, Problem> {
    i32::try_from(verbosity).map_err(|_| Problem::number(verbosity, "0 to 2147483647"))
}

/// Address ranges; bits beyond the prefix are cleared, as in Go.
pub(super) fn cidrs(texts: &[String]) -> Result<Vec<IpNet>, Problem> {
    let cidr = |text: &str| match text.parse::<IpNet>() {
        Ok(net) => Ok(net.trunc()),
        Err(_) => Err(Problem::text(text, "a CIDR such as 10.244.0.0/16 or fd00::/48")),
    };
    texts.iter().map(|text| text.trim()).filter(|text| !text.is_empty()).map(cidr).collect()
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
    let expected = "an address with a port from 1 to 65535, such as 0.0.0.0:10256 or [::]:10256";
    parsed.map(Some).ok_or_else(|| Problem::text(&address.0, expected))
}

/// The address to bind to; `None` for all addresses and for no address.
pub(super) fn bind_address(text: &str) -> Result<Option<IpAddr>, Problem> {
    if text.is_empty() {
        return Ok(None);
    }
    let address: IpAddr = text.parse().map_err(|_| Problem::text(text, "an IP address"))?;
    Ok(Some(address).filter(|address| !address.is_unspecified()))
}

pub(super) fn mark(bit: i32) -> Result<u32, Problem> {
    let mark = u32::try_from(bit).ok().and_then(|bit| 1u32.checked_shl(bit));
    mark.ok_or_else(|| Problem::number(bit, "a bit of a packet mark, 0 to 31"))
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
        other => {
            let expected = "ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix";
            return Err(origin.invalid("detectLocalMode", Problem::text(other, expected)));
        }
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
        return Err(Problem::text(name, "an interface name of 1 to 15 letters without space or /"));
    }
    Ok(name.into())
}

pub(super) fn node_name(name: &str) -> Result<String, Problem> {
    let trimmed = name.trim().to_lowercase();
    if trimmed.is_empty() { Err(Problem::text(name, "a node's name")) } else { Ok(trimmed) }
}

/// A URL, or a host with or without a port but no path, as in client-go (`DefaultServerURL` in
/// rest/url_utils.go).
pub(super) fn server(text: &str) -> Result<(), Problem> {
    let url = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let host = Some(text.strip_suffix('/').unwrap_or(text)).filter(|host| !host.contains('/'));
    let is_server = |rest: &str| !rest.is_empty() && !rest.contains(char::is_whitespace);
    let expected = "a URL such as https://10.0.0.1:6443, or a host with or without a port";
    if url.or(host).is_some_and(is_server) { Ok(()) } else { Err(Problem::text(text, expected)) }
}
