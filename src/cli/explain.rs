//! `kube-ipvs explain`: where a Service is served, or whose an address or a NodePort is.

use std::{net::IpAddr, process::ExitCode, time::Duration};

use ipvs::Ipvs as _;
use operator::explain::{AddressAnswer, Answer, VirtualServer};
use service::{AddressQuery, ExplainedAddress, Explanation, NotServed, ObjectName, one_line};

use super::{
    output::{print_as, say},
    question::Question,
    subject::{InvalidSubject, Namespace, Subject},
    syn_recv::SynRecv,
};
use crate::{node::requirements, serve::control::Control as _};

/// How long the kernel's text of all connections is read.
const PATIENCE: Duration = Duration::from_secs(1);

/// The flags of the command.
#[derive(clap::Args, Debug)]
pub(super) struct Explain {
    /// The Service; an address with or without its port; or the number of a NodePort
    #[arg(value_name = "NAMESPACE/NAME|IP[:PORT[/PROTOCOL]]|PORT")]
    subject: Subject,
    #[command(flatten)]
    namespace: Namespace,
    /// Print whether this client is let in, and whether it is masqueraded
    #[arg(long, value_name = "IP")]
    from: Option<IpAddr>,
    #[command(flatten)]
    question: Question,
}

/// Prints where a Service is served and why each endpoint is used or not, or whose an address or a NodePort is. It is a
/// failure if the Service is unknown, or no Service is served at the port.
pub(super) fn explain(Explain { subject, namespace, from, question }: &Explain) -> anyhow::Result<ExitCode> {
    let client = from.map(|client| client.to_canonical());
    match subject {
        Subject::Service(name) => explain_service(&name.in_namespace(namespace)?, client, question),
        Subject::Address(query) if client.is_some() && query.port.is_none() => {
            Err(InvalidSubject::PortMissing.into())
        }
        Subject::Address(query) => explain_address(query, client, question),
    }
}

fn explain_service(
    service: &ObjectName,
    client: Option<IpAddr>,
    question: &Question,
) -> anyhow::Result<ExitCode> {
    let explanation =
        question.answer(|daemon| daemon.explain(service, client), |node| node.explain(service, client))?;
    let answer = Answer { kernel: in_kernel([&explanation]), explanation };
    print_as(question.ask.output.format, &answer, || answer.to_string())?;
    if answer.explanation.not_served.is_none() {
        question.print_notes()?;
    }
    let unknown = answer.explanation.not_served == Some(NotServed::Unknown);
    Ok(if unknown { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Prints whose an address or a NodePort is on this node, and what is done with it.
fn explain_address(
    query: &AddressQuery,
    client: Option<IpAddr>,
    question: &Question,
) -> anyhow::Result<ExitCode> {
    let explanation = question
        .answer(|daemon| daemon.explain_address(query, client), |node| node.explain_address(query, client))?;
    let answer = AddressAnswer { kernel: in_kernel(&explanation.served), explanation };
    print_as(question.ask.output.format, &answer, || answer.to_string())?;
    Ok(if answer.is_served() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The virtual servers at the addresses of these Services, or none and a complaint if the kernel cannot be read.
fn in_kernel<'a>(explanations: impl IntoIterator<Item = &'a Explanation>) -> Option<Vec<VirtualServer>> {
    let parts = explanations.into_iter().flat_map(|explanation| &explanation.parts);
    let read = read_kernel(parts.flat_map(|part| &part.addresses).collect());
    let complain = |error: &anyhow::Error| {
        say(format_args!(
            "kube-ipvs: cannot read the kernel, so the answer does not show what it has: {}",
            one_line(error.as_ref())
        ));
    };
    read.inspect_err(complain).ok()
}

/// Reads the virtual servers at these addresses. Without addresses the kernel is not asked.
fn read_kernel(addresses: Vec<&ExplainedAddress>) -> anyhow::Result<Vec<VirtualServer>> {
    if addresses.is_empty() {
        return Ok(Vec::new());
    }
    let mut kernel = requirements::open_ipvs()?;
    let opening = SynRecv::read(PATIENCE);
    let read = |at: &ExplainedAddress| {
        let found = kernel.virtual_server(at.address.into())?;
        let real_servers = found.is_some().then(|| kernel.real_servers(at.address.into())).transpose()?;
        let scheduler = found.map(|server| server.config.scheduler);
        let syn_recv = opening.at_virtual_server(at.address);
        Ok(VirtualServer { address: at.address, scheduler, real_servers, syn_recv })
    };
    addresses.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests;
