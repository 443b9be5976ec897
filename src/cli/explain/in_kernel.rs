//! Reads the virtual servers of a Service from the kernel.

use std::collections::BTreeSet;

use ipvs::{Ipvs, ObservedRealServer, Scheduler, ServiceAddress};
use serde::{Deserialize, Serialize, Serializer};
use service::Explanation;

use crate::node::requirements;

/// An address of the Service, and the virtual server there.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(from = "WithNulls")]
pub(in crate::cli) struct VirtualServer {
    pub(in crate::cli) address: ServiceAddress,
    /// `None`: there is no virtual server. Its fields are null then.
    #[serde(flatten, serialize_with = "or_nulls")]
    pub(in crate::cli) found: Option<Found>,
}

/// A virtual server in the kernel.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Found {
    pub(in crate::cli) scheduler: Scheduler,
    pub(in crate::cli) real_servers: Vec<ObservedRealServer>,
}

#[derive(Deserialize)]
struct WithNulls {
    address: ServiceAddress,
    scheduler: Option<Scheduler>,
    real_servers: Option<Vec<ObservedRealServer>>,
}

impl From<WithNulls> for VirtualServer {
    fn from(WithNulls { address, scheduler, real_servers }: WithNulls) -> Self {
        let found = scheduler.zip(real_servers);
        Self { address, found: found.map(|(scheduler, real_servers)| Found { scheduler, real_servers }) }
    }
}

#[allow(clippy::ref_option, reason = "serde calls it like this")]
fn or_nulls<S: Serializer>(found: &Option<Found>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Fields<'a> {
        scheduler: Option<Scheduler>,
        real_servers: Option<&'a [ObservedRealServer]>,
    }
    let scheduler = found.as_ref().map(|found| found.scheduler);
    let real_servers = found.as_ref().map(|found| &*found.real_servers);
    Fields { scheduler, real_servers }.serialize(serializer)
}

/// Reads the virtual servers at the addresses of a served Service. Without addresses the kernel is not asked.
pub(super) fn read(explanation: &Explanation) -> anyhow::Result<Vec<VirtualServer>> {
    let mut servers = Vec::new();
    let addresses = explanation.parts.iter().flat_map(|part| &part.addresses).map(|at| at.address);
    let mut addresses = addresses.peekable();
    if addresses.peek().is_none() {
        return Ok(servers);
    }
    let mut kernel = requirements::open_ipvs()?;
    for address in addresses {
        let found = match kernel.virtual_server(address.into())? {
            Some(server) => Some(Found {
                scheduler: server.config.scheduler,
                real_servers: kernel.real_servers(address.into())?,
            }),
            None => None,
        };
        servers.push(VirtualServer { address, found });
    }
    Ok(servers)
}

/// A real server, as the kernel has it at all addresses of a part.
#[derive(Default)]
pub(super) struct InKernel {
    pub(super) found: usize,
    pub(super) missing: usize,
    /// The least and the greatest weight.
    weights: Option<(u32, u32)>,
    /// The upper and the lower threshold; 0: none.
    limits: BTreeSet<[u32; 2]>,
    active: u32,
    inactive: u32,
}

impl InKernel {
    pub(super) fn summary<'a>(servers: impl Iterator<Item = Option<&'a ObservedRealServer>>) -> Self {
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

    /// Describes thresholds in the kernel that differ from the wanted ones, `max-connections` and `resume-below`.
    pub(super) fn other_limit(&self, wanted: [Option<u32>; 2]) -> Option<String> {
        let [most, below] = wanted.map(Option::unwrap_or_default);
        let other = self.limits.iter().find(|it| **it != [most, below])?;
        Some(match *other {
            [0, _] => ", but without limit in the kernel".to_owned(),
            [limit, _] if limit != most => format!(", but with limit {limit} in the kernel"),
            [_, 0] => ", but without resume-below in the kernel".to_owned(),
            [_, limit] => format!(", but with resume-below {limit} in the kernel"),
        })
    }

    /// Describes a real server in the kernel that is wanted with this weight, or not wanted.
    pub(super) fn of_one(&self, wanted: Option<u16>) -> String {
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

#[cfg(test)]
mod tests {
    use ipvs::{Protocol, RealServer};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_virtual_server_that_is_missing_has_its_fields_and_is_read_as_missing() {
        let address = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 10].into(), port: 80 };
        let shown = serde_json::to_value(VirtualServer { address, found: None }).unwrap();
        assert_eq!(shown, json!({ "address": address, "scheduler": null, "real_servers": null }));
        let read: VirtualServer = serde_json::from_value(shown).unwrap();
        assert!(read.address == address && read.found.is_none());
    }

    #[test]
    fn another_limit_in_the_kernel_is_named() {
        let limit_text = |upper_threshold, lower_threshold, wanted| {
            let config = RealServer::masquerade([10, 244, 1, 7].into(), 8080)
                .thresholds(upper_threshold, lower_threshold);
            let observed = ObservedRealServer::new(config);
            InKernel::summary([None, Some(&observed)].into_iter()).other_limit(wanted).unwrap_or_default()
        };
        assert_eq!(limit_text(0, 0, [None, None]), "");
        assert_eq!(limit_text(9, 5, [Some(9), Some(5)]), "");
        assert_eq!(limit_text(0, 0, [Some(9), None]), ", but without limit in the kernel");
        assert_eq!(limit_text(7, 0, [None, None]), ", but with limit 7 in the kernel");
        assert_eq!(limit_text(9, 5, [Some(9), None]), ", but with resume-below 5 in the kernel");
        assert_eq!(limit_text(9, 0, [Some(9), Some(5)]), ", but without resume-below in the kernel");
    }
}
