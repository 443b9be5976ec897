//! The answer of `explain`, as data and as text.

mod address;
mod in_kernel;

use std::fmt::{self, Write};

use ipvs::{ObservedRealServer, RealServerAddress, Scheduler, ServiceAddress};
use serde::{Deserialize, Serialize};
use service::{
    AddressKind, EndpointReason, EndpointScope, EndpointSelection, ExplainedAddress, ExplainedBalancing,
    ExplainedPart, Explanation, LEAST_AFFINITY, ObjectName, Traffic, TrafficPolicy, printable_line,
};

pub use address::AddressAnswer;

use in_kernel::InKernel;

/// The answer: the desired state with its reasons, and what the kernel has.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Answer {
    /// The desired state.
    #[serde(flatten)]
    pub explanation: Explanation,
    /// The virtual servers at the addresses of the Service, as the kernel has them; `None` if it cannot be asked.
    pub kernel: Option<Vec<VirtualServer>>,
}

/// An address of the Service, and the virtual server there. Without one its fields are `None`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct VirtualServer {
    /// The address.
    pub address: ServiceAddress,
    /// The scheduler in the kernel.
    pub scheduler: Option<Scheduler>,
    /// The real servers in the kernel.
    pub real_servers: Option<Vec<ObservedRealServer>>,
    /// The real servers with connections whose handshake is not over; `None` if that is not known.
    #[serde(default)]
    pub syn_recv: Option<Vec<SynRecv>>,
}

/// Connections in `SYN_RECV`: the client's SYN was passed on, and the handshake is not over. IPVS counts them as
/// active.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct SynRecv {
    /// The real server.
    pub address: RealServerAddress,
    /// How many there are.
    pub connections: u64,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explanation {
            service,
            not_served,
            balancing,
            session_affinity,
            parts,
            unused_slices,
            refused,
            health_check,
            problems,
            hints,
        } = &self.explanation;
        match not_served {
            Some(why) => writeln!(f, "{service} is not served: {why}")?,
            None if parts.is_empty() => writeln!(f, "{service}: none of its ports is served on this node")?,
            None => writeln!(f, "{service}")?,
        }
        if let Some(balancing) = balancing {
            writeln!(f, "{}", Balancing(balancing))?;
        }
        if let Some(seconds) = session_affinity.filter(|seconds| *seconds < LEAST_AFFINITY) {
            writeln!(
                f,
                "session affinity of {seconds} s: IPVS keeps a TCP client at its endpoint for at least \
                 {LEAST_AFFINITY} s after its last connection"
            )?;
        }
        for part in parts {
            writeln!(f, "\n{}", Heading(part))?;
            let mut rows = Vec::new();
            for at in &part.addresses {
                rows.push(self.address_row(at, part));
                rows.extend(at.client.map(|client| (String::new(), client.to_string())));
            }
            rows.extend(self.real_server_rows(part));
            let width = rows.iter().map(|(left, _)| left.len()).max().unwrap_or_default();
            for (left, right) in rows {
                writeln!(f, "  {left:width$}  {right}")?;
            }
            if part.endpoints.is_empty() && part.slices_without_port.is_empty() {
                without_endpoints(f, service, part)?;
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
            writeln!(f, "problem: {}", printable_line(problem))?;
        }
        for hint in hints {
            writeln!(f, "{}", printable_line(hint))?;
        }
        Ok(())
    }
}

impl Answer {
    fn address_row(&self, at: &ExplainedAddress, part: &ExplainedPart) -> (String, String) {
        let mut words = format!("{}, {}", kind(at.kind), policy(at));
        if let Some(balancing) = &part.direct_return {
            let _ = write!(words, ", answered directly, {}", Balancing(balancing));
        }
        if at.untracked {
            words.push_str(", untracked for pods");
        }
        if let Some(owner) = &at.owner {
            let _ = write!(words, ", not bound: it is {owner}");
        }
        if let Some(owner) = &at.held_by {
            let _ = write!(words, ", but it belongs to {owner}, whose claim comes first");
        }
        if let Some(sources) = Sources::at(at) {
            let _ = write!(words, ", {sources}");
        }
        if self.lacks(&at.address) {
            words.push_str(", MISSING in the kernel");
        }
        if let Some(other) = self.other_scheduler(at, part) {
            let _ = write!(words, ", but with scheduler {other} in the kernel");
        }
        (at.address.to_string(), words)
    }

    /// Whether the kernel has no virtual server at an address.
    fn lacks(&self, at: &ServiceAddress) -> bool {
        self.kernel.is_some() && self.found(at).is_none()
    }

    /// The scheduler of a virtual server, where it is not what annotations ask for.
    fn other_scheduler(&self, at: &ExplainedAddress, part: &ExplainedPart) -> Option<Scheduler> {
        let wanted = part.direct_return.as_ref().or(self.explanation.balancing.as_ref());
        let wanted = wanted.filter(|_| at.held_by.is_none())?.scheduler;
        self.found(&at.address)?.scheduler.filter(|scheduler| *scheduler != wanted)
    }

    /// The virtual server that the kernel has at an address.
    fn found(&self, at: &ServiceAddress) -> Option<&VirtualServer> {
        let mut servers = self.kernel.iter().flatten();
        servers.find(|server| server.address == *at && server.scheduler.is_some())
    }

    /// The endpoints with their real servers in the kernel, then real servers that are no endpoints any more.
    fn real_server_rows(&self, part: &ExplainedPart) -> Vec<(String, String)> {
        let served = part.addresses.iter().filter(|at| at.held_by.is_none());
        let served: Vec<&VirtualServer> = served.filter_map(|at| self.found(&at.address)).collect();
        let here = |address: &RealServerAddress| {
            let everywhere = served.iter().map(|found| found.real_servers.as_deref().unwrap_or_default());
            let syn_recv = served.iter().flat_map(|found| found.syn_recv.iter().flatten());
            InKernel::summary(
                everywhere.map(|all| all.iter().find(|server| server.config.address == *address)),
            )
            .with_syn_recv(syn_recv.filter(|it| it.address == *address).map(|it| it.connections).sum())
        };
        let limits = self.explanation.balancing.as_ref();
        let limits = limits.map(|it| [it.max_connections, it.resume_below]).unwrap_or_default();
        let mut rows = Vec::new();
        for endpoint in &part.endpoints {
            let (in_kernel, reason) = (here(&endpoint.address), endpoint.reason);
            let is_used = reason == EndpointReason::Used;
            let mut words = format!("{reason}, {}", endpoint.slice);
            if let Some(way) = endpoint.way {
                let _ = write!(words, ", {way}");
            }
            if let Some(answering) = endpoint.answering.filter(|_| is_used) {
                let _ = write!(words, ", {answering}");
            }
            let weight = endpoint.weight;
            match endpoint.weight_parts {
                Some(parts) if is_used => _ = write!(words, ", weight {parts}"),
                None if is_used && weight != 1 => _ = write!(words, ", weight {weight}"),
                _ => {}
            }
            if is_used && in_kernel.missing > 0 {
                words.push_str(", MISSING in the kernel");
            }
            if is_used {
                words.extend(in_kernel.other_limit(limits));
            }
            if reason != EndpointReason::ListedAgain && in_kernel.found > 0 {
                let _ = write!(words, ", {}", in_kernel.of_one(is_used.then_some(weight)));
            }
            rows.push((endpoint.address.to_string(), words));
        }
        let known = |address| part.endpoints.iter().any(|endpoint| endpoint.address == address);
        let all = served.iter().flat_map(|found| found.real_servers.iter().flatten());
        let mut gone: Vec<_> = all.map(|server| server.config.address).filter(|it| !known(*it)).collect();
        gone.sort_unstable();
        gone.dedup();
        rows.extend(gone.iter().map(|address| {
            (address.to_string(), format!("no longer in any slice, {}", here(address).of_one(None)))
        }));
        rows
    }
}

/// Why a part lists no endpoint, and the command that shows more.
fn without_endpoints(f: &mut fmt::Formatter<'_>, service: &ObjectName, part: &ExplainedPart) -> fmt::Result {
    let (namespace, name) = service.parts();
    match &part.empty_slices[..] {
        [] => writeln!(
            f,
            "  no EndpointSlice of {} belongs to the Service: kubectl -n {namespace} get endpointslices -l \
             kubernetes.io/service-name={name}",
            part.family
        ),
        [slice, ..] => writeln!(
            f,
            "  EndpointSlice {slice} has no endpoint: no pod matches spec.selector, or none has an address: kubectl -n \
             {namespace} describe service {name}"
        ),
    }
}

/// Ranges of clients, the first few of them.
struct Sources(Vec<String>);

const MOST_SOURCES: usize = 5;

impl Sources {
    /// The clients that an address admits, as the Service writes them; `None`: all.
    fn at(at: &ExplainedAddress) -> Option<Self> {
        let allowed = at.allowed_sources.as_ref()?;
        // None is admitted if they are too many, and a daemon of an earlier release does not tell the text.
        let written = at.source_ranges.as_ref().filter(|_| !allowed.is_empty());
        Some(Self(match written {
            Some(ranges) => ranges.iter().map(ToString::to_string).collect(),
            None => allowed.iter().map(|(first, last)| format!("{first}-{last}")).collect(),
        }))
    }
}

impl fmt::Display for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("from no client: no source range can be used");
        }
        let first: Vec<_> = self.0.iter().take(MOST_SOURCES).map(String::as_str).collect();
        write!(f, "only from {}", first.join(", "))?;
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

/// The port, the family, and the endpoints selected.
struct Heading<'a>(&'a ExplainedPart);

impl fmt::Display for Heading<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExplainedPart { port, protocol, family, selection, stands_in, zone, hints_ignored, .. } = self.0;
        if !port.is_empty() {
            write!(f, "{} ", printable_line(port))?;
        }
        write!(f, "{protocol}, {family}: {selection}")?;
        if let (EndpointSelection::Ready(EndpointScope::HintedZone), Some(zone)) = (selection, zone) {
            write!(f, ", {}", printable_line(zone))?;
        }
        if let Some(why) = hints_ignored {
            write!(f, "; hints ignored: {why}")?;
        }
        if *stands_in {
            f.write_str(
                "; none is on this node, so externalTrafficPolicy Local answers only this node and its pods",
            )?;
        }
        Ok(())
    }
}

/// The kind of an address, as text.
pub fn kind(kind: AddressKind) -> &'static str {
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
    use ipvs::Protocol;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_virtual_server_that_is_missing_has_its_fields_and_is_read_as_missing() {
        let address = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 10].into(), port: 80 };
        let missing = VirtualServer { address, scheduler: None, real_servers: None, syn_recv: None };
        let shown = serde_json::to_value(&missing).unwrap();
        assert_eq!(
            shown,
            json!({ "address": address, "scheduler": null, "real_servers": null, "syn_recv": null })
        );
        assert_eq!(serde_json::from_value::<VirtualServer>(shown).unwrap(), missing);
    }
}
