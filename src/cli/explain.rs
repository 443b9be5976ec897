//! `kube-ipvs explain`: where a Service is served, or whose an address is.

use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    str::FromStr,
    time::Duration,
};

use ipvs::Ipvs as _;
use operator::explain::{Answer, VirtualServer, kind};
use service::{
    AddressExplanation, ExplainedAddress, Explanation, InvalidName, NotServed, ObjectName, one_line,
};

use super::{
    output::{print_as, say},
    question::Question,
    syn_recv::SynRecv,
};
use crate::{
    node::requirements,
    serve::control::{Client, Control as _},
};

/// How long the kernel's text of all connections is read.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is asked about.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    Service(ObjectName),
    Address(IpAddr),
}

impl FromStr for Subject {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let with_port = || text.parse::<SocketAddr>().map(|at| at.ip());
        match text.parse::<IpAddr>().or_else(|_| with_port()) {
            Ok(ip) => Ok(Self::Address(ip)),
            Err(_) => text.parse().map(Self::Service),
        }
    }
}

/// Prints where a Service is served and why each endpoint is used or not, or whose an address is. An unknown Service is
/// a failure.
pub(super) fn explain(subject: &Subject, question: &Question) -> anyhow::Result<ExitCode> {
    match subject {
        Subject::Service(service) => explain_service(service, question),
        Subject::Address(ip) => explain_address(*ip, question),
    }
}

fn explain_service(service: &ObjectName, question: &Question) -> anyhow::Result<ExitCode> {
    let explanation = question.answer(|daemon| daemon.explain(service), |node| Ok(node.explain(service)))?;
    let kernel = in_kernel(&explanation).inspect_err(|error| {
        say(format_args!(
            "kube-ipvs: cannot read the kernel, so the answer does not show what it has: {}",
            one_line(error.as_ref())
        ));
    });
    let answer = Answer { kernel: kernel.ok(), explanation };
    print_as(question.ask.output.format, &answer, || answer.to_string())?;
    if answer.explanation.not_served.is_none() {
        question.print_notes()?;
    }
    let unknown = answer.explanation.not_served == Some(NotServed::Unknown);
    Ok(if unknown { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Reads the virtual servers at the addresses of a served Service. Without addresses the kernel is not asked.
fn in_kernel(explanation: &Explanation) -> anyhow::Result<Vec<VirtualServer>> {
    let addresses: Vec<_> = explanation.parts.iter().flat_map(|part| &part.addresses).collect();
    if addresses.is_empty() {
        return Ok(Vec::new());
    }
    let mut kernel = requirements::open_ipvs()?;
    let opening = SynRecv::read(PATIENCE);
    let read = |at: &ExplainedAddress| {
        let found = kernel.virtual_server(at.address.into())?;
        let real_servers = found.is_some().then(|| kernel.real_servers(at.address.into())).transpose()?;
        let scheduler = found.map(|server| server.config.scheduler);
        let syn_recv = opening.of(at.address);
        Ok(VirtualServer { address: at.address, scheduler, real_servers, syn_recv })
    };
    addresses.into_iter().map(read).collect()
}

/// Prints whose an address is on this node, and what is done with it.
fn explain_address(ip: IpAddr, question: &Question) -> anyhow::Result<ExitCode> {
    let ask = |daemon: &Client| daemon.explain_address(ip);
    let answer = question.answer(ask, |node| Ok(node.explain_address(ip)))?;
    print_as(question.ask.output.format, &answer, || address_text(&answer))?;
    Ok(ExitCode::SUCCESS)
}

fn address_text(AddressExplanation { ip, owner, vip, uses, refused }: &AddressExplanation) -> String {
    let bound = if *vip { "bound to this node as a VIP" } else { "not bound as a VIP" };
    let mut text = format!("{ip}: {owner}; {bound}\n");
    let width = uses.iter().map(|it| it.address.to_string().len()).max().unwrap_or_default();
    for it in uses {
        let _ = writeln!(text, "  {:width$}  {} of {}", it.address.to_string(), kind(it.kind), it.service);
    }
    for (service, refused) in refused {
        let _ = writeln!(text, "refused: {service}: {refused}");
    }
    text
}

#[cfg(test)]
mod tests;
