//! Why a Service is served on this node as it is: the decisions about it, in words and values.

mod address;
mod endpoint_reason;
mod explanation;
mod parts;
mod unknown_name;

use std::collections::BTreeSet;

use ipvs::ServiceAddress;

pub use address::{AddressExplanation, AddressUse};
pub use endpoint_reason::{EndpointReason, HintsIgnored};
pub use explanation::{
    EndpointWay, ExplainedAddress, ExplainedBalancing, ExplainedEndpoint, ExplainedPart, Explanation,
    LEAST_AFFINITY,
};

use self::{parts::parts, unknown_name::unknown_name};
use crate::{
    compute::{Decisions, DesiredService, EffectiveBalancing, NotServed},
    input::{CompactSlice, ExternalIps, ObjectName, Problem},
    state::State,
};

impl State {
    /// Why a Service is served on this node as it is.
    pub fn explain(&self, service: &ObjectName) -> Explanation {
        let decided = self.inputs().decide(service);
        let (decisions, not_served) = match &decided {
            Ok(decisions) => (Some(decisions), None),
            Err(why) => (None, *why),
        };
        let desired = self.desired(service);
        let not_given = decisions.into_iter().flat_map(not_given);
        let mut problems: Vec<_> =
            not_given.chain(self.inputs().problems_of(service)).map(|problem| problem.to_string()).collect();
        if not_served == Some(NotServed::Unknown) {
            problems.extend(unknown_name(service, || self.inputs().services()));
        }
        let parts = decisions.zip(desired).map(|(it, desired)| parts(it, desired, self)).unwrap_or_default();
        problems.extend(self.endpoints_at_services(&parts));
        Explanation {
            service: service.clone(),
            not_served,
            balancing: decisions.and_then(ExplainedBalancing::from_decisions),
            session_affinity: decisions.and_then(|it| it.inputs.service.session_affinity),
            parts,
            unused_slices: decisions.map(|it| names(it.unused_slices())).unwrap_or_default(),
            refused: desired.map(|it| it.refused().to_vec()).unwrap_or_default(),
            health_check: desired.and_then(DesiredService::health_check),
            problems,
        }
    }

    /// The endpoints in use that are themselves an address of a Service. IPVS balances a packet once
    /// (`ipvs_property` in net/netfilter/ipvs/ip_vs_core.c), so it gets no further than to this node.
    fn endpoints_at_services(&self, parts: &[ExplainedPart]) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for part in parts {
            for ExplainedEndpoint { address, slice, reason, .. } in &part.endpoints {
                let at = ServiceAddress { protocol: part.protocol, ip: address.ip, port: address.port };
                let is_served = self.wants_vip(&at.ip) || self.virtual_server(&at).is_some();
                if *reason == EndpointReason::Used && is_served {
                    found.insert(format!(
                        "{slice}: {address} is an address of a Service, and no endpoint answers there: IPVS balances a \
                         packet once"
                    ));
                }
            }
        }
        found
    }
}

/// What a Service asks for and this node gives to no Service.
fn not_given<'a>(decisions: &Decisions<'a>) -> impl Iterator<Item = Problem<'a>> {
    let inputs = decisions.inputs;
    let has_node_port = inputs.service.ports.iter().any(|port| port.node_port.is_some());
    let nowhere = has_node_port && inputs.node.node_port_addresses().is_empty();
    let no_external_ips =
        inputs.options.external_ips == ExternalIps::Off && !inputs.service.external_ips.is_empty();
    let node_ports = "spec.ports[].nodePort: no address of this node serves NodePorts";
    let external_ips = "spec.externalIPs: the gate AllowServiceExternalIPs is off";
    let not_given = [nowhere.then_some(node_ports), no_external_ips.then_some(external_ips)];
    not_given.into_iter().flatten().map(move |what| Problem::Service(&inputs.service.name, what))
}

impl ExplainedBalancing {
    /// How the connections of a Service are balanced, if its annotations ask for anything.
    fn from_decisions(Decisions { inputs, balancing, .. }: &Decisions<'_>) -> Option<Self> {
        inputs.service.balancing.as_ref().map(|_| Self::from_effective(balancing))
    }

    fn from_effective(balancing: &EffectiveBalancing) -> Self {
        let unless_0 = |threshold| Some(threshold).filter(|it| *it != 0);
        let flags = balancing.scheduler.flag_names(balancing.scheduler_flags);
        Self {
            scheduler: balancing.scheduler,
            scheduler_flags: flags.map(Into::into).collect(),
            max_connections: unless_0(balancing.upper_threshold),
            resume_below: unless_0(balancing.lower_threshold),
        }
    }
}

fn names<'a>(slices: impl Iterator<Item = &'a CompactSlice>) -> Vec<ObjectName> {
    slices.map(|slice| slice.name.clone()).collect()
}
