//! `kube-ipvs explain`.

use std::{
    collections::BTreeSet,
    fmt::{self, Write},
    net::IpAddr,
    process::ExitCode,
};

use ipvs::{Ipvs, ObservedRealServer, RealServerAddress, Scheduler, ServiceAddress};
use serde::Serialize;
use service::{
    AddressKind, Choice, ExplainedAddress, ExplainedBalancing, Explanation, NotServed, ObjectName, Part,
    Reach, Traffic, TrafficPolicy, Verdict,
};
use watcher::one_line;

use super::{
    Format,
    output::{print, print_json},
    question::Question,
};
use crate::{
    control::{Request, Response},
    preflight,
};

/// What is to be, and what is.
#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    explanation: Explanation,
    /// The virtual servers at the addresses of the Service, as the kernel has them; `None` if it cannot be asked.
    kernel: Option<Vec<VirtualServer>>,
}

/// A virtual server in the kernel.
#[derive(Serialize)]
struct VirtualServer {
    address: ServiceAddress,
    /// `None`: there is no virtual server.
    scheduler: Option<Scheduler>,
    /// `None`: there is no virtual server.
    real_servers: Option<Vec<ObservedRealServer>>,
}

/// Prints where a Service is served, and of each endpoint why it is used or not. One that is not known is a failure.
pub(super) fn explain(service: &ObjectName, question: &Question) -> anyhow::Result<ExitCode> {
    let request = Request::Explain { service: service.clone() };
    let expected = |response| if let Response::Explanation(it) = response { Some(*it) } else { None };
    let explanation = question.answer(&request, expected, |node| Ok(node.explain(service)))?;
    let kernel = in_the_kernel(&explanation).inspect_err(|error| {
        eprintln!(
            "kube-ipvs: the kernel cannot be read, and nothing is said of what it has: {}",
            one_line(error.as_ref())
        );
    });
    let answer = Answer { kernel: kernel.ok(), explanation };
    match question.ask.output.format {
        Format::Text => print(&answer.to_string())?,
        Format::Json => print_json(&answer)?,
    }
    let unknown = answer.explanation.not_served == Some(NotServed::Unknown);
    Ok(if unknown { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn in_the_kernel(explanation: &Explanation) -> anyhow::Result<Vec<VirtualServer>> {
    let mut found = Vec::new();
    let addresses = explanation.parts.iter().flat_map(|part| &part.addresses).map(|at| at.address);
    let mut addresses = addresses.peekable();
    if addresses.peek().is_none() {
        return Ok(found);
    }
    let mut kernel = preflight::open_ipvs()?;
    for address in addresses {
        let server = kernel.virtual_server(address.into())?;
        let real_servers = match &server {
            Some(_) => Some(kernel.real_servers(address.into())?),
            None => None,
        };
        let scheduler = server.map(|server| server.config.scheduler);
        found.push(VirtualServer { address, scheduler, real_servers });
    }
    Ok(found)
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explanation {
            service,
            not_served,
            balancing,
            parts,
            unused_slices,
            refused,
            health_check,
            problems,
        } = &self.explanation;
        match not_served {
            Some(why) => writeln!(f, "{service} is not served: {why}")?,
            None if parts.is_empty() => writeln!(f, "{service}: no port of it is served on this node")?,
            None => writeln!(f, "{service}")?,
        }
        if let Some(balancing) = balancing {
            writeln!(f, "{}", Balancing(balancing))?;
        }
        for part in parts {
            writeln!(f, "\n{}", Heading(part))?;
            let mut rows: Vec<_> = part.addresses.iter().map(|at| self.address_row(at)).collect();
            rows.extend(self.real_server_rows(part));
            let width = rows.iter().map(|(left, _)| left.len()).max().unwrap_or_default();
            for (left, right) in rows {
                writeln!(f, "  {left:width$}  {right}")?;
            }
            if part.endpoints.is_empty() && part.slices_without_port.is_empty() {
                writeln!(f, "  no EndpointSlice has an endpoint")?;
            }
            for slice in &part.slices_without_port {
                writeln!(f, "  {slice}: has no port of this name and protocol")?;
            }
        }
        if !(unused_slices.is_empty() && refused.is_empty() && problems.is_empty()) || health_check.is_some()
        {
            writeln!(f)?;
        }
        for slice in unused_slices {
            writeln!(f, "not used: {slice}: the Service has no ClusterIP of its family")?;
        }
        for refused in refused {
            writeln!(f, "refused: {refused}")?;
        }
        if let Some(check) = health_check {
            let (port, ready) = (check.port, check.ready_v4.max(check.ready_v6));
            writeln!(f, "health check port {port}: {ready} ready endpoints on this node")?;
        }
        for problem in problems {
            writeln!(f, "problem: {problem}")?;
        }
        Ok(())
    }
}

impl Answer {
    fn address_row(&self, at: &ExplainedAddress) -> (String, String) {
        let mut words = format!("{}, {}", kind(at.kind), policy(at));
        if let Some(holder) = &at.held_by {
            let _ = write!(words, ", but {holder} has it: its claim comes first");
        }
        if let Some(sources) = &at.allowed_sources {
            let _ = write!(words, ", {}", Sources(sources));
        }
        if self.lacks(&at.address) {
            words.push_str(", MISSING in the kernel");
        }
        if let Some(other) = self.other_scheduler(at) {
            let _ = write!(words, ", but with scheduler {other} in the kernel");
        }
        (at.address.to_string(), words)
    }

    /// Whether the kernel has no virtual server at an address.
    fn lacks(&self, at: &ServiceAddress) -> bool {
        self.kernel.is_some() && self.real_servers(at).is_none()
    }

    /// The scheduler of a virtual server, where it is not what annotations ask for.
    fn other_scheduler(&self, at: &ExplainedAddress) -> Option<Scheduler> {
        let wanted = self.explanation.balancing.as_ref().filter(|_| at.held_by.is_none())?.scheduler;
        let server = self.kernel.iter().flatten().find(|server| server.address == at.address)?;
        server.scheduler.filter(|scheduler| *scheduler != wanted)
    }

    /// What the kernel has at an address.
    fn real_servers(&self, at: &ServiceAddress) -> Option<&[ObservedRealServer]> {
        self.kernel.iter().flatten().find(|server| server.address == *at)?.real_servers.as_deref()
    }

    /// The endpoints with what the kernel has of them, then the real servers that are none any more.
    fn real_server_rows(&self, part: &Part) -> Vec<(String, String)> {
        let served: Vec<_> = part.addresses.iter().filter(|at| at.held_by.is_none()).collect();
        let here = |address: &RealServerAddress| {
            let all = served.iter().filter_map(|at| self.real_servers(&at.address));
            InKernel::of(
                all.map(|real_servers| real_servers.iter().find(|server| server.config.address == *address)),
            )
        };
        let limits = self.explanation.balancing.as_ref();
        let limits = limits.map(|it| [it.max_connections, it.resume_below]).unwrap_or_default();
        let mut rows = Vec::new();
        for endpoint in &part.endpoints {
            let (in_kernel, verdict) = (here(&endpoint.address), endpoint.verdict);
            let mut words = format!("{verdict}, {}", endpoint.slice);
            let weight = endpoint.weight.get();
            if verdict == Verdict::Used && weight != 1 {
                let _ = write!(words, ", weight {weight}");
            }
            if verdict == Verdict::Used && in_kernel.missing > 0 {
                words.push_str(", MISSING in the kernel");
            }
            if verdict == Verdict::Used {
                words.extend(in_kernel.other_limit(limits));
            }
            if verdict != Verdict::ListedAgain && in_kernel.found > 0 {
                let _ = write!(words, ", {}", in_kernel.of_one((verdict == Verdict::Used).then_some(weight)));
            }
            rows.push((endpoint.address.to_string(), words));
        }
        let known = |address| part.endpoints.iter().any(|endpoint| endpoint.address == address);
        let all = served.iter().filter_map(|at| self.real_servers(&at.address)).flatten();
        let mut gone: Vec<_> = all.map(|server| server.config.address).filter(|it| !known(*it)).collect();
        gone.sort_unstable();
        gone.dedup();
        rows.extend(gone.iter().map(|address| {
            (address.to_string(), format!("in no slice any more, {}", here(address).of_one(None)))
        }));
        rows
    }
}

/// A real server at all addresses of a part.
#[derive(Default)]
struct InKernel {
    found: usize,
    missing: usize,
    /// The least and the greatest weight.
    weights: Option<(u32, u32)>,
    /// The upper and the lower threshold; 0: none.
    limits: BTreeSet<[u32; 2]>,
    active: u32,
    inactive: u32,
}

impl InKernel {
    fn of<'a>(servers: impl Iterator<Item = Option<&'a ObservedRealServer>>) -> Self {
        servers.fold(Self::default(), |mut sum, server| match server {
            None => Self { missing: sum.missing + 1, ..sum },
            Some(server) => Self {
                found: sum.found + 1,
                missing: sum.missing,
                weights: {
                    let weight = server.config.weight;
                    Some(
                        sum.weights
                            .map_or((weight, weight), |(least, most)| (least.min(weight), most.max(weight))),
                    )
                },
                limits: {
                    sum.limits.insert([server.config.upper_threshold, server.config.lower_threshold]);
                    sum.limits
                },
                active: sum.active.saturating_add(server.active_connections),
                inactive: sum.inactive.saturating_add(server.inactive_connections),
            },
        })
    }

    /// What there is to say where the thresholds are not these, `max-connections` and `resume-below`.
    fn other_limit(&self, wanted: [Option<u32>; 2]) -> Option<String> {
        let [most, below] = wanted.map(Option::unwrap_or_default);
        let other = self.limits.iter().find(|it| **it != [most, below])?;
        Some(match *other {
            [0, _] => ", but without limit in the kernel".to_owned(),
            [limit, _] if limit != most => format!(", but with limit {limit} in the kernel"),
            [_, 0] => ", but without resume-below in the kernel".to_owned(),
            [_, limit] => format!(", but with resume-below {limit} in the kernel"),
        })
    }

    /// What there is to say of one that is wanted with a weight, or is not.
    fn of_one(&self, wanted: Option<u16>) -> String {
        let Self { weights, active, inactive, .. } = self;
        let (least, most) = weights.unwrap_or_default();
        let connections = format!("{active} active and {inactive} inactive connections");
        let other = |wanted| if most == wanted { least } else { most };
        match wanted.map(u32::from) {
            Some(wanted) if (least, most) == (wanted, wanted) => connections,
            Some(wanted) => format!("but with weight {} in the kernel: {connections}", other(wanted)),
            None if most == 0 => format!("drains with weight 0: {connections}"),
            None => format!("STILL in the kernel with weight {most}: {connections}"),
        }
    }
}

/// Ranges of clients, the first few of them.
struct Sources<'a>(&'a [(IpAddr, IpAddr)]);

const MOST_SOURCES: usize = 5;

impl fmt::Display for Sources<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("from nowhere: no source range can be used");
        }
        for (number, (first, last)) in self.0.iter().take(MOST_SOURCES).enumerate() {
            write!(f, "{}{first}-{last}", if number == 0 { "only from " } else { ", " })?;
        }
        match self.0.len().saturating_sub(MOST_SOURCES) {
            0 => Ok(()),
            more => write!(f, " and {more} more ranges"),
        }
    }
}

/// Scheduler and thresholds.
struct Balancing<'a>(&'a ExplainedBalancing);

impl fmt::Display for Balancing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExplainedBalancing { scheduler, scheduler_flags, max_connections, resume_below } = self.0;
        write!(f, "scheduler {scheduler}")?;
        if !scheduler_flags.is_empty() {
            write!(f, " ({})", scheduler_flags.join(","))?;
        }
        if let Some(most) = max_connections {
            write!(f, ", at most {most} connections an endpoint")?;
        }
        match resume_below {
            Some(below) => write!(f, ", new ones again below {below}"),
            None => Ok(()),
        }
    }
}

/// The port, the family, and the choice.
struct Heading<'a>(&'a Part);

impl fmt::Display for Heading<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Part { port, protocol, family, choice, stands_in, zone, hints_ignored, .. } = self.0;
        if !port.is_empty() {
            write!(f, "{port} ")?;
        }
        write!(f, "{protocol}, {family}: {choice}")?;
        if let (Choice::Ready(Reach::HintedZone), Some(zone)) = (choice, zone) {
            write!(f, ", {zone}")?;
        }
        if let Some(why) = hints_ignored {
            write!(f, "; their hints do not count: {why}")?;
        }
        if *stands_in {
            f.write_str(
                "; none is on this node, so externalTrafficPolicy Local answers only this node's pods",
            )?;
        }
        Ok(())
    }
}

fn kind(kind: AddressKind) -> &'static str {
    match kind {
        AddressKind::ClusterIp => "ClusterIP",
        AddressKind::NodePort => "NodePort",
        AddressKind::LoadBalancer => "load balancer",
        AddressKind::ExternalIp => "external IP",
    }
}

fn policy(at: &ExplainedAddress) -> String {
    let field = match at.kind.traffic() {
        Traffic::Internal => "internalTrafficPolicy",
        Traffic::External => "externalTrafficPolicy",
    };
    let value = match at.policy {
        TrafficPolicy::Cluster => "Cluster",
        TrafficPolicy::Local => "Local",
    };
    format!("{field} {value}")
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use ipvs::{Family, Protocol, RealServer, Stats};
    use service::{ExplainedEndpoint, HealthCheck, HintsIgnored, Refusal, Refused, Special};

    use super::{
        super::documented::{assert_documented, pretty},
        *,
    };

    #[test]
    fn its_json_is_documented() {
        let address = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 10].into(), port: 80 };
        let real_server = RealServer::masquerade([10, 244, 1, 7].into(), 8080);
        let slice: ObjectName = "default/web-abc".parse().unwrap();
        let part = Part {
            port: "http".to_owned(),
            protocol: Protocol::Tcp,
            family: Family::V4,
            choice: Choice::Ready(Reach::Cluster),
            stands_in: false,
            zone: Some("zone-a".to_owned()),
            hints_ignored: Some(HintsIgnored::NotOnEveryEndpoint),
            addresses: vec![ExplainedAddress {
                address,
                kind: AddressKind::LoadBalancer,
                policy: TrafficPolicy::Cluster,
                vip: true,
                held_by: Some("default/older".parse().unwrap()),
                allowed_sources: Some(vec![([192, 0, 2, 0].into(), [192, 0, 2, 255].into())]),
            }],
            endpoints: vec![ExplainedEndpoint {
                address: real_server.address,
                slice: slice.clone(),
                verdict: Verdict::NotReady,
                weight: NonZero::<u16>::MIN,
            }],
            slices_without_port: vec![slice.clone()],
        };
        let why = Refusal::Special(Special::Loopback);
        let explanation = Explanation {
            service: "default/web".parse().unwrap(),
            not_served: None,
            balancing: Some(ExplainedBalancing {
                scheduler: Scheduler::MH,
                scheduler_flags: vec!["mh-fallback".into()],
                max_connections: Some(100),
                resume_below: None,
            }),
            parts: vec![part],
            unused_slices: vec![slice],
            refused: vec![Refused { ip: [127, 0, 0, 1].into(), kind: AddressKind::ExternalIp, why }],
            health_check: NonZero::new(32_000).map(|port| HealthCheck { port, ready_v4: 1, ready_v6: 0 }),
            problems: vec!["spec.ports[1] is wrong".to_owned()],
        };
        let observed = ObservedRealServer {
            config: real_server,
            active_connections: 2,
            inactive_connections: 1,
            persistent_connections: 0,
            stats: Stats::default(),
        };
        let server =
            VirtualServer { address, scheduler: Some(Scheduler::MH), real_servers: Some(vec![observed]) };
        assert_documented("explain", &pretty(&Answer { explanation, kernel: Some(vec![server]) }));
    }

    #[test]
    fn another_limit_in_the_kernel_is_named() {
        let told = |upper_threshold, lower_threshold, wanted| {
            let config = RealServer {
                upper_threshold,
                lower_threshold,
                ..RealServer::masquerade([10, 244, 1, 7].into(), 8080)
            };
            let observed = ObservedRealServer {
                config,
                active_connections: 0,
                inactive_connections: 0,
                persistent_connections: 0,
                stats: Stats::default(),
            };
            InKernel::of([None, Some(&observed)].into_iter()).other_limit(wanted).unwrap_or_default()
        };
        assert_eq!(told(0, 0, [None, None]), "");
        assert_eq!(told(9, 5, [Some(9), Some(5)]), "");
        assert_eq!(told(0, 0, [Some(9), None]), ", but without limit in the kernel");
        assert_eq!(told(7, 0, [None, None]), ", but with limit 7 in the kernel");
        assert_eq!(told(9, 5, [Some(9), None]), ", but with resume-below 5 in the kernel");
        assert_eq!(told(9, 0, [Some(9), Some(5)]), ", but without resume-below in the kernel");
    }
}
