//! The answer of `explain` for an address or a NodePort.

use std::fmt;

use serde::{Deserialize, Serialize};
use service::{AddressExplanation, AddressOwner, EndpointUse};

use super::{Answer, VirtualServer, kind};

/// The answer: the owner of the address, the Services there, and what the kernel has of them.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct AddressAnswer {
    /// The owner, and the Services.
    #[serde(flatten)]
    pub explanation: AddressExplanation,
    /// The virtual servers at the addresses of the Services that are served at the port; `None` if the kernel cannot be
    /// asked.
    pub kernel: Option<Vec<VirtualServer>>,
}

impl AddressAnswer {
    /// Whether a Service is served at the port of the question, if it has one.
    pub fn is_served(&self) -> bool {
        self.explanation.port.is_none() || !self.explanation.served.is_empty()
    }
}

impl fmt::Display for AddressAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AddressExplanation { ip, owner, vip, uses, refused, port, served, endpoint_of, asked_by, .. } =
            &self.explanation;
        if let (Some(ip), Some(owner)) = (ip, owner) {
            let bound = if *vip { "bound to this node as a VIP" } else { "not bound as a VIP" };
            match owner {
                AddressOwner::Nobody => writeln!(f, "{ip}: {owner} has it; {bound}")?,
                owner => writeln!(f, "{ip}: {owner}; {bound}")?,
            }
        }
        if !self.is_served() {
            self.not_served(f)?;
        }
        if served.is_empty() {
            let width = uses.iter().map(|it| it.address.to_string().len()).max().unwrap_or_default();
            for it in uses {
                writeln!(f, "  {:width$}  {} of {}", it.address.to_string(), kind(it.kind), it.service)?;
            }
        }
        for (service, refused) in refused {
            writeln!(f, "refused: {service}: {refused}")?;
        }
        for service in asked_by.iter().take(MOST) {
            writeln!(
                f,
                "{service} has this address too, and is not served there: kube-ipvs explain {service}"
            )?;
        }
        for it in endpoint_of.iter().take(MOST_ENDPOINTS) {
            writeln!(f, "endpoint: {}", Endpoint(it))?;
        }
        if let more @ 1.. = endpoint_of.len().saturating_sub(MOST_ENDPOINTS) {
            writeln!(f, "endpoint: {more} more entries of EndpointSlices")?;
        }
        if endpoint_of.is_empty() && served.is_empty() && *owner == Some(AddressOwner::PodRange) {
            writeln!(f, "no Service has an endpoint there (headless ones are not listed)")?;
        }
        if port.is_none() {
            return Ok(());
        }
        for (number, explanation) in served.iter().enumerate() {
            let answer = Answer { explanation: explanation.clone(), kernel: self.kernel.clone() };
            write!(f, "{}{answer}", if ip.is_some() || number > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

impl AddressAnswer {
    /// Why no Service is served at the port.
    fn not_served(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AddressExplanation { ip, owner, vip, uses, port, node_port_of, node_port_addresses, .. } =
            &self.explanation;
        let port = port.unwrap_or_default();
        if ip.is_none() && node_port_of.is_empty() {
            return writeln!(f, "no Service has the NodePort {port}");
        }
        if ip.is_some() {
            let rejected = if *vip { ": this node rejects connections to it" } else { "" };
            let others = if uses.is_empty() { "" } else { "; there are" };
            writeln!(f, "no Service is served at port {port} there{rejected}{others}")?;
        }
        if node_port_of.is_empty() {
            return Ok(());
        }
        let why = match owner {
            None | Some(AddressOwner::ThisNode | AddressOwner::Interface) => {
                "--nodeport-addresses leaves the address out"
            }
            Some(AddressOwner::OtherNode) => "ask that node",
            Some(_) => "it is not an address of this node",
        };
        let why = if ip.is_some() { format!(": {why}") } else { String::new() };
        writeln!(
            f,
            "{port} is the NodePort of {}{why}; this node serves NodePorts at {}",
            list(node_port_of),
            if node_port_addresses.is_empty() { "no address".to_owned() } else { list(node_port_addresses) }
        )
    }
}

/// At most so many things are listed.
const MOST: usize = 5;

/// At most so many entries of EndpointSlices are printed.
const MOST_ENDPOINTS: usize = 20;

fn list<T: ToString>(all: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>) -> String {
    let all = all.into_iter();
    let more = all.len().saturating_sub(MOST);
    let first: Vec<_> = all.take(MOST).map(|it| it.to_string()).collect();
    let first = first.join(", ");
    if more == 0 { first } else { format!("{first} and {more} more") }
}

struct Endpoint<'a>(&'a EndpointUse);

impl fmt::Display for Endpoint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EndpointUse { service, slice, address, verdict, not_served } = self.0;
        write!(f, "{address} of {service}, {slice}: ")?;
        match (verdict, not_served) {
            (_, Some(why)) => write!(f, "{service} is not served: {why}"),
            (Some(verdict), None) => verdict.fmt(f),
            (None, None) => f.write_str("the Service has no port of this name and protocol"),
        }
    }
}
