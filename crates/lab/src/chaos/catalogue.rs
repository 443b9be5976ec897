//! The faults, and how to inject each.

mod api_server;
mod kernel;
mod process;

use anyhow::Result;

use super::scene::Scene;

/// Something that goes wrong around a node proxy.
#[derive(Clone, Copy)]
pub(super) struct Fault {
    /// The name in the table.
    pub(super) name: &'static str,
    /// Injects the fault, and ends it if it does not end by itself. The time to heal counts from its end.
    pub(super) inject: fn(&mut Scene<'_>) -> Result<()>,
    /// What the daemon then logs. `None` if nothing is to be logged: the daemon has just started, or nothing
    /// is wrong.
    pub(super) logged: Option<&'static str>,
    /// Whether connections break with any proxy. With other faults none may break.
    pub(super) costs: bool,
    /// How many times as often it happens as the others.
    pub(super) times: u32,
    /// Whether the daemon is to be killed in the middle of a sync.
    pub(super) cuts_short: bool,
}

/// What the log says when something else has changed the kernel.
pub(super) const REPAIRED: &str = "repaired what something else had changed";

const fn fault(
    name: &'static str,
    logged: Option<&'static str>,
    inject: fn(&mut Scene<'_>) -> Result<()>,
) -> Fault {
    Fault { name, inject, logged, costs: false, times: 1, cuts_short: false }
}

/// One that costs connections.
const fn costly(
    name: &'static str,
    logged: Option<&'static str>,
    inject: fn(&mut Scene<'_>) -> Result<()>,
) -> Fault {
    Fault { costs: true, ..fault(name, logged, inject) }
}

/// What the guest does not share with the host, and may be harmed.
#[derive(Clone, Copy)]
pub(super) struct Own {
    pub(super) api_server: bool,
    pub(super) clock: bool,
}

/// All faults while VIPs are addresses of kube-ipvs0.
pub(super) fn with_addresses(own: Own) -> Vec<Fault> {
    let server = if own.api_server { api_server::SERVER } else { &[] };
    let clock = if own.clock { process::CLOCK } else { &[] };
    let others = [
        api_server::CONNECTIONS,
        kernel::IPVS,
        kernel::DEVICE,
        kernel::NF_TABLES,
        kernel::DIRECT_RETURN,
        process::FAULTS,
    ];
    [server, clock].into_iter().chain(others).flatten().copied().collect()
}

/// The faults that differ if VIPs are routes.
pub(super) fn with_routes() -> Vec<Fault> {
    kernel::ROUTES.to_vec()
}

impl Own {
    pub(super) const EVERYTHING: Self = Self { api_server: true, clock: true };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_fault_has_a_name_of_its_own() {
        let all = [with_addresses(Own::EVERYTHING), with_routes()].concat();
        let names: BTreeSet<_> = all.iter().map(|fault| fault.name).collect();
        assert_eq!(names.len(), all.len());
    }
}
