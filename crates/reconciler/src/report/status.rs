//! The status of the reconciler, the problems that it lists, and what Services use of the node.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    time::{Duration, Instant},
};

use ipvs::{Family, RealServerAddress, ServiceAddress};
use netfilter::Element;
use serde::{Deserialize, Serialize};
use service::{
    AddressKind, Conflict, DNS_PORT, EjectedEndpoint, EjectionState, ObjectName, Problem, RefusedAddress,
    State, in_turn, seconds,
};
use watcher::{Draining, Operation, OperationKind, Ownership};

use super::sync_log::NO_NODE_PORTS;
use crate::{FirstNamed, ForeignVirtualServers, SyncReport, sync::Reconciler};

/// The status of the reconciler. The default is the status before anything is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncStatus {
    /// Whether [`SyncStatus::sync_state`] is [`SyncState::Synced`].
    pub synced: bool,
    /// Whether the desired state is programmed, and if not, why.
    #[serde(rename = "standing")]
    pub sync_state: SyncState,
    /// How long the sync state has been the same, as far as the kernel has been checked; in JSON,
    /// seconds. A change that is served at once does not begin that time anew, and a repair does.
    #[serde(rename = "standing_for", with = "seconds")]
    pub sync_state_age: Duration,
    /// How the kernel differs although nothing is under way, if it was compared for this status.
    // A daemon of an earlier release may be asked.
    #[serde(default)]
    pub difference: Option<KernelDifference>,
    /// The changes that take so long that other Services are served in between, if any do.
    // A daemon of an earlier release may be asked.
    #[serde(default)]
    pub busy: Option<BusyWith>,
    /// How many Services are served.
    // A daemon of an earlier release may be asked.
    #[serde(default)]
    pub services: usize,
    /// Those of them of which no port has an endpoint, for another reason than a policy Local.
    #[serde(default)]
    pub without_endpoints: FirstNamed<ObjectName>,
    /// How many endpoints are ejected: they get no new connections because clients fail there.
    // A daemon of an earlier release may be asked.
    #[serde(default)]
    pub ejected: usize,
    /// How many were, and have not answered since.
    #[serde(default)]
    pub on_trial: usize,
    /// The first of both, in turn by namespaces; at most [`SyncStatus::MOST_EJECTED`].
    #[serde(default)]
    pub ejections: Vec<EjectedFrom>,
    /// So many endpoints do not answer that the fault is probably this node's, and none is ejected.
    #[serde(default)]
    pub most_are_silent: bool,
    /// How many virtual servers are wanted.
    pub virtual_servers: usize,
    /// How many real servers are wanted.
    pub real_servers: usize,
    /// How many VIPs are wanted on this node.
    pub vips: usize,
    /// The external addresses at which Services are served and that are not bound, because another host has
    /// them.
    // A daemon of an earlier release may be asked.
    #[serde(default)]
    pub unbound: BTreeSet<IpAddr>,
    /// How many real servers drain: they get no new connections, and are removed when their last one ends.
    pub draining: usize,
    /// For how long the first of these has been draining, as far as is known: a restart forgets it. 0 without
    /// any; in JSON, seconds.
    #[serde(with = "seconds")]
    pub longest_drain: Duration,
    /// The real servers that have been draining longest, longest first; at most [`SyncStatus::MOST_DRAINS`]
    /// of them, in turn by namespaces.
    pub drains: Vec<Drain>,
    /// How many virtual servers still wait for their new scheduler: each sync changes a few.
    pub scheduler_changes: usize,
    /// The foreign virtual servers that are left alone, as of the last full read: those that are kept, and
    /// those in excluded ranges.
    pub kept_foreign: ForeignVirtualServers,
    /// The foreign virtual servers that were removed, in all syncs.
    pub removed_foreign: ForeignVirtualServers,
    /// The problems of Services and EndpointSlices, one line each, in turn by namespaces; at most
    /// [`SyncStatus::MOST_PROBLEMS`] of them. The rest of these objects is served all the same.
    pub problems: Vec<String>,
    /// The last sync, if there was one.
    pub last_sync: Option<LastSync>,
    /// The last sync that changed something.
    pub last_change: Option<LastSync>,
    /// The last sync that repaired what another program had changed.
    pub last_repair: Option<LastSync>,
    /// How many operations have repaired something, in all syncs.
    pub repaired: usize,
    /// The last sync that checked the whole kernel. What another program has changed since is not known.
    pub last_full_sync: Option<LastSync>,
}

impl SyncStatus {
    /// How many draining real servers are listed.
    pub const MOST_DRAINS: usize = 20;

    /// How many ejected endpoints are listed.
    pub const MOST_EJECTED: usize = 20;

    /// How many problems are listed.
    pub const MOST_PROBLEMS: usize = 20;

    /// Adds what the reconciler knows. `knows_node`: whether everything was compared with the kernel once.
    pub(crate) fn with(self, reconciler: &Reconciler, knows_node: bool, now: Instant) -> Self {
        let Reconciler { state, draining, ownership, scheduler_changes, .. } = reconciler;
        let [ejected, on_trial] = state.reports().ejected_count();
        Self {
            virtual_servers: state.virtual_servers().count(),
            real_servers: state.virtual_servers().map(|server| server.real_servers.len()).sum(),
            vips: state.vips().count(),
            services: state.reports().served(),
            without_endpoints: state.reports().lacking_endpoints().iter().collect(),
            ejected,
            on_trial,
            ejections: EjectedFrom::first(state),
            most_are_silent: state.has_fault(),
            unbound: state.unbound(),
            draining: draining.count(),
            longest_drain: draining.longest(now),
            drains: Drain::oldest(draining, state, now),
            scheduler_changes: *scheduler_changes,
            kept_foreign: reconciler.kept_foreign(),
            problems: problems(state, ownership, knows_node),
            ..self
        }
    }
}

/// A sync that has ended, and how long ago.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastSync {
    /// The result of the sync.
    pub report: SyncReport,
    /// How long ago it ended; in JSON, seconds.
    #[serde(with = "seconds")]
    pub age: Duration,
}

/// A real server that gets no new connections and is removed when its last one ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// The Service that has the virtual server's address, if one still has it.
    pub service: Option<ObjectName>,
    /// The virtual server.
    pub virtual_server: ServiceAddress,
    /// The real server.
    pub real_server: RealServerAddress,
    /// For how long it has been draining, as far as is known: a restart forgets it. In JSON, seconds.
    #[serde(with = "seconds")]
    pub age: Duration,
}

impl Drain {
    /// The oldest ones, in turn by namespace.
    fn oldest(draining: &Draining, state: &State, now: Instant) -> Vec<Self> {
        let drains = draining.oldest(now).map(|(virtual_server, real_server, age)| Self {
            service: state.owner(&virtual_server).cloned(),
            virtual_server,
            real_server,
            age,
        });
        let namespace = |drain: &Self| drain.service.as_ref().map(|service| service.namespace().to_owned());
        let mut drains = in_turn(drains, SyncStatus::MOST_DRAINS, namespace);
        drains.sort_by_key(|drain| Reverse(drain.age));
        drains
    }
}

/// An endpoint that is ejected or on trial, and its Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EjectedFrom {
    /// The Service.
    pub service: ObjectName,
    /// The endpoint, and why.
    #[serde(flatten)]
    pub endpoint: EjectedEndpoint,
}

impl EjectedFrom {
    /// The first of all that are ejected or on trial, in turn by namespaces.
    fn first(state: &State) -> Vec<Self> {
        let all = state.reports().ejected().flat_map(|(service, endpoints)| {
            let counted = endpoints.iter().filter(|it| it.state != EjectionState::Kept);
            counted.map(|endpoint| Self { service: service.clone(), endpoint: *endpoint })
        });
        in_turn(all, SyncStatus::MOST_EJECTED, |it| it.service.namespace().to_owned())
    }
}

impl fmt::Display for EjectedFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EjectedEndpoint { protocol, address, cause, state } = self.endpoint;
        let what = match state {
            EjectionState::Out => "ejected",
            EjectionState::OnTrial => "on trial, ejected before",
            EjectionState::Kept => "kept, since others are ejected",
        };
        write!(f, "{}: {protocol} {address} {what}: {cause}", self.service)
    }
}

/// Whether the desired state is programmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyncState {
    /// The lists of Services and EndpointSlices have not arrived: nothing is written before.
    #[default]
    NotListed,
    /// A change waits for the next sync.
    Behind,
    /// An operation or a reading of the last sync failed; it is tried again.
    Failing,
    /// Nothing failed in the last sync, and nothing waits for the next.
    Synced,
}

/// How the kernel differs from the desired state: what would be done about it. Without what is under way: changes that wait
/// for the next sync, failed operations that wait for their retry, and real servers that drain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelDifference {
    /// How many operations would remove it, by kind; empty if nothing differs.
    pub by_kind: BTreeMap<OperationKind, usize>,
    /// The Services whose virtual servers, real servers or elements are concerned. Those that are gone are left out.
    pub services: FirstNamed<ObjectName>,
    /// The first of these operations, one line each; at most [`SyncReport::MOST_DONE`] of them.
    pub first: Vec<String>,
}

impl KernelDifference {
    /// Collects the difference from operations.
    pub(crate) fn from_operations(operations: impl IntoIterator<Item = Operation>, state: &State) -> Self {
        let mut difference = Self::default();
        let mut services = BTreeSet::new();
        for operation in operations {
            *difference.by_kind.entry(operation.kind()).or_default() += 1;
            services.extend(operation.key().and_then(|key| state.owner(&key.belongs_to()?)));
            if difference.first.len() < SyncReport::MOST_DONE {
                difference.first.push(operation.to_string());
            }
        }
        difference.services = services.into_iter().collect();
        difference
    }
}

/// The work that keeps the writer thread busy, and for how long it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyWith {
    /// The Service that has the most of what is left, if it still exists.
    pub service: Option<ObjectName>,
    /// How many virtual servers, VIPs and elements of our tables are left.
    pub left: usize,
    /// For how long; in JSON, seconds.
    #[serde(rename = "for", with = "seconds")]
    pub age: Duration,
}

/// A virtual server, and the Service that owns its address. Other Services may claim the address too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualServerOwner {
    /// The virtual server's address.
    pub address: ServiceAddress,
    /// The Service that owns it.
    pub service: ObjectName,
    /// How many real servers are wanted; others may still drain.
    pub real_servers: usize,
}

impl VirtualServerOwner {
    /// Lists every desired virtual server.
    pub(crate) fn list(state: &State) -> Vec<Self> {
        let owners = state.virtual_servers().filter_map(|server| {
            let (address, real_servers) = (server.address, server.real_servers.len());
            Some(Self { address, service: state.owner(&address)?.clone(), real_servers })
        });
        owners.collect()
    }
}

/// The use that Services make of the node itself, which must be fit for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeUsage {
    /// The NodePorts that are served.
    pub node_ports: BTreeSet<u16>,
    /// The addresses of this node's pods that are real servers.
    pub local_endpoints: BTreeSet<IpAddr>,
    /// The ClusterIPs at which DNS is served.
    pub dns: BTreeSet<IpAddr>,
    /// Whether other nodes may tunnel to this one.
    pub direct_return: bool,
    /// Whether failing endpoints of any Service are ejected.
    pub ejects: bool,
}

impl NodeUsage {
    /// Collects what the desired state uses.
    pub fn from_state(state: &State) -> Self {
        let (mut node_ports, mut dns) = (BTreeSet::new(), BTreeSet::new());
        for server in state.virtual_servers() {
            match (server.kind, server.address.port) {
                (AddressKind::NodePort, port) => _ = node_ports.insert(port),
                (AddressKind::ClusterIp, DNS_PORT) => _ = dns.insert(server.address.ip),
                _ => {}
            }
        }
        // There is a hairpin element for each pod of this node that is a real server: it can be its own
        // client.
        let local_endpoint = |element| match element {
            Element::Hairpin(flow) => Some(flow.pod.ip),
            _ => None,
        };
        Self {
            node_ports,
            local_endpoints: state.elements().filter_map(local_endpoint).collect(),
            dns,
            direct_return: !state.unpacking().is_empty(),
            ejects: state.ejects(),
        }
    }
}

/// How many of the Services that wait for an address are named: all of a namespace may want the same.
const NAMED_WAITING: usize = 3;

/// Lists the first of what is wrong with the node for these inputs, and then of what is wrong with the
/// inputs, in turn by namespaces: one cannot hide the others. `read` says whether the node's addresses are
/// known.
fn problems(state: &State, ours: &Ownership, read: bool) -> Vec<String> {
    let unserved = unserved_families(state, ours).map(|family| {
        let count = state.virtual_server_count(family);
        format!("this node has no {family}; virtual servers that are not served: {count}")
    });
    let no_node_ports = (read && state.has_unserved_node_ports()).then(|| NO_NODE_PORTS.to_owned());
    let refused = state
        .reports()
        .refused()
        .flat_map(|(service, refused)| refused.iter().map(|refused| Listed::Refused(service, refused)));
    let conflicts = state.conflicts().map(Listed::Conflict);
    let in_objects = state.problems().map(Listed::Problem);
    let of_objects = refused.chain(conflicts).chain(in_objects);
    let of_objects = in_turn(of_objects, SyncStatus::MOST_PROBLEMS, |it| it.namespace().to_owned());
    unserved
        .chain(no_node_ports)
        .chain(of_objects.iter().map(ToString::to_string))
        .take(SyncStatus::MOST_PROBLEMS)
        .collect()
}

/// A problem of an object.
enum Listed<'a> {
    Refused(&'a ObjectName, &'a RefusedAddress),
    Conflict(Conflict<'a>),
    Problem(Problem<'a>),
}

impl Listed<'_> {
    /// The namespace of the object whose problem it is.
    fn namespace(&self) -> &str {
        match self {
            Self::Refused(service, _) => service.namespace(),
            Self::Conflict(Conflict { waiting, .. }) => waiting.first().map_or("", |name| name.namespace()),
            Self::Problem(problem) => problem.namespace(),
        }
    }
}

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(service, refused) => write!(f, "{service}: {refused}"),
            Self::Conflict(Conflict { address, owner, waiting }) => {
                let named: Vec<_> = waiting.iter().take(NAMED_WAITING).map(ToString::to_string).collect();
                let named = named.join(", ");
                write!(f, "{address} belongs to {owner}, whose claim comes first; {named}")?;
                match waiting.len().saturating_sub(NAMED_WAITING) {
                    0 => {}
                    more => write!(f, " and {more} more")?,
                }
                f.write_str(" cannot have it")
            }
            Self::Problem(problem) => problem.fmt(f),
        }
    }
}

/// Counts what [`problems`] lists and what is beyond its limit, without reading every object.
pub(crate) fn count_problems(state: &State, ours: &Ownership, read: bool) -> usize {
    unserved_families(state, ours).count()
        + usize::from(read && state.has_unserved_node_ports())
        + state.reports().refused_count()
        + state.conflict_count()
        + state.reports().problem_count()
}

/// The families of virtual servers that this node does not serve.
fn unserved_families(state: &State, ours: &Ownership) -> impl Iterator<Item = Family> {
    let others = Family::BOTH.into_iter().filter(|family| !ours.families.contains(family));
    others.filter(|family| state.virtual_server_count(*family) > 0)
}
