//! `kube-ipvs explain`.

use std::{
    fmt::{self, Write},
    process::ExitCode,
};

use ipvs::{Ipvs, ObservedRealServer, RealServerAddress, ServiceAddress};
use serde::Serialize;
use service::{
    AddressKind, ExplainedAddress, Explanation, ObjectName, Part, Traffic, TrafficPolicy, UnusedSlice,
    Verdict,
};

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
    /// The virtual servers at the addresses of the Service, as the kernel has them.
    kernel: Vec<VirtualServer>,
}

/// A virtual server in the kernel.
#[derive(Serialize)]
struct VirtualServer {
    address: ServiceAddress,
    /// `None`: there is none.
    real_servers: Option<Vec<ObservedRealServer>>,
}

/// Prints where a Service is served, and of each endpoint why it is used or not.
pub(super) fn explain(service: &ObjectName, question: &Question) -> anyhow::Result<ExitCode> {
    let request = Request::Explain { service: service.clone() };
    let expected = |response| if let Response::Explanation(it) = response { Some(*it) } else { None };
    let explanation = question.answer(&request, expected, |node| Ok(node.explain(service)))?;
    let answer = Answer { kernel: in_the_kernel(&explanation)?, explanation };
    match question.ask.output.format {
        Format::Text => print(&answer.to_string())?,
        Format::Json => print_json(&answer)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn in_the_kernel(explanation: &Explanation) -> anyhow::Result<Vec<VirtualServer>> {
    let mut kernel = preflight::open_ipvs()?;
    let mut found = Vec::new();
    for ExplainedAddress { address, .. } in explanation.parts.iter().flat_map(|part| &part.addresses) {
        let real_servers = match kernel.virtual_server((*address).into())? {
            Some(_) => Some(kernel.real_servers((*address).into())?),
            None => None,
        };
        found.push(VirtualServer { address: *address, real_servers });
    }
    Ok(found)
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explanation { service, not_served, parts, unused_slices, refused, health_check, problems } =
            &self.explanation;
        match not_served {
            Some(why) => writeln!(f, "{service} is not served: {why}")?,
            None if parts.is_empty() => writeln!(f, "{service} is not served: spec.ports has none")?,
            None => writeln!(f, "{service}")?,
        }
        for part in parts {
            writeln!(f, "\n{}", Heading(part))?;
            let mut rows: Vec<_> = part.addresses.iter().map(|at| self.address_row(at)).collect();
            rows.extend(self.real_server_rows(part));
            let width = rows.iter().map(|(left, _)| left.len()).max().unwrap_or_default();
            for (left, right) in rows {
                writeln!(f, "  {left:width$}  {right}")?;
            }
        }
        if !(unused_slices.is_empty() && refused.is_empty() && problems.is_empty()) || health_check.is_some()
        {
            writeln!(f)?;
        }
        for UnusedSlice { slice, family, endpoints, why } in unused_slices {
            writeln!(f, "not used: {slice} with {endpoints} {family} endpoints: {why}")?;
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
        for (number, (first, last)) in at.allowed_sources.iter().flatten().enumerate() {
            let _ = write!(words, "{}{first}-{last}", if number == 0 { ", only from " } else { ", " });
        }
        if at.allowed_sources.as_ref().is_some_and(Vec::is_empty) {
            words.push_str(", from nowhere: no source range could be read");
        }
        if self.real_servers(&at.address).is_none() {
            words.push_str(", MISSING in the kernel");
        }
        (at.address.to_string(), words)
    }

    /// What the kernel has at an address; `None` if there is no virtual server.
    fn real_servers(&self, at: &ServiceAddress) -> Option<&[ObservedRealServer]> {
        self.kernel.iter().find(|server| server.address == *at)?.real_servers.as_deref()
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
        let mut rows = Vec::new();
        for endpoint in &part.endpoints {
            let (in_kernel, verdict) = (here(&endpoint.address), endpoint.verdict);
            let mut words = format!("{verdict}, {}", endpoint.slice);
            match verdict {
                Verdict::Used if in_kernel.missing > 0 => words.push_str(", MISSING in the kernel"),
                Verdict::InAnotherSlice => {}
                _ if in_kernel.found > 0 => {
                    let _ = write!(words, ", {in_kernel}");
                }
                _ => {}
            }
            rows.push((endpoint.address.to_string(), words));
        }
        let known = |address| part.endpoints.iter().any(|endpoint| endpoint.address == address);
        let all = served.iter().filter_map(|at| self.real_servers(&at.address)).flatten();
        let mut gone: Vec<_> = all.map(|server| server.config.address).filter(|it| !known(*it)).collect();
        gone.sort_unstable();
        gone.dedup();
        rows.extend(
            gone.iter()
                .map(|address| (address.to_string(), format!("in no slice any more, {}", here(address)))),
        );
        rows
    }
}

/// A real server at all addresses of a part.
#[derive(Default)]
struct InKernel {
    found: usize,
    missing: usize,
    drains: bool,
    active: u32,
    inactive: u32,
}

impl InKernel {
    fn of<'a>(servers: impl Iterator<Item = Option<&'a ObservedRealServer>>) -> Self {
        servers.fold(Self::default(), |sum, server| match server {
            None => Self { missing: sum.missing + 1, ..sum },
            Some(server) => Self {
                found: sum.found + 1,
                missing: sum.missing,
                drains: sum.drains || server.config.weight == 0,
                active: sum.active + server.active_connections,
                inactive: sum.inactive + server.inactive_connections,
            },
        })
    }
}

impl fmt::Display for InKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let drains = if self.drains { "drains with weight 0: " } else { "" };
        write!(f, "{drains}{} active and {} inactive connections", self.active, self.inactive)
    }
}

/// The port, the family, and the choice.
struct Heading<'a>(&'a Part);

impl fmt::Display for Heading<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Part { port, protocol, family, choice, zone, hints_ignored, .. } = self.0;
        if !port.is_empty() {
            write!(f, "{port} ")?;
        }
        write!(f, "{protocol}, {family}: {choice}")?;
        if let Some(zone) = zone {
            write!(f, ", {zone}")?;
        }
        if *hints_ignored {
            f.write_str(" (hints do not count: not every ready endpoint has them, none is for this node, or the policy is Local)")?;
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
