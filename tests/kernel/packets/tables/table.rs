//! The content of a table.

use std::{collections::BTreeSet, fmt};

use ipvs::{Family, Protocol};

/// A table.
#[derive(Debug)]
pub(crate) struct Table {
    pub(super) services: Vec<Service>,
    pub(super) steps: Vec<Step>,
}

/// A Service, in the words of the API.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) name: String,
    /// `endpoints=pod-1,pod-3`: none if there are none.
    pub(super) endpoints: Vec<String>,
    /// `port=80`.
    pub(super) port: u16,
    /// `protocols=tcp,udp`: of those that the kernel has; `any`, all of them, if nothing else is said.
    pub(super) protocols: Vec<Protocol>,
    /// `node-port=30080`.
    pub(super) node_port: Option<u16>,
    /// `internal-policy=Local`.
    pub(super) internal_policy: String,
    /// `external-policy=Local`.
    pub(super) external_policy: String,
    /// `sources=192.168.60.0/24,nonsense`: `loadBalancerSourceRanges`.
    pub(super) sources: Vec<String>,
    /// `external-ip=node`: that host's own addresses; of the `loopback` those.
    pub(super) external_ip: Option<String>,
    /// `external-ip-of=NAME`: that Service's ClusterIPs.
    pub(super) external_ip_of: Option<String>,
    /// `load-balancer-of=NAME`: that Service's load balancer's addresses are this one's.
    pub(super) load_balancer_of: Option<String>,
    /// `health-check=32100`: `healthCheckNodePort`.
    pub(super) health_check: Option<u16>,
}

#[derive(Debug)]
pub(super) enum Step {
    /// The daemon is started anew with these arguments.
    Daemon(Vec<String>),
    /// A file of rules is loaded on the node.
    Nft(String),
    /// The same for iptables and ip6tables, in the place of the rules that their tables have.
    Iptables(String),
    /// From now on a host puts what it sends to a Service into packets for a pod, with the source of one like it.
    Tunnel {
        from: String,
        like: String,
        pod: String,
        service: Destination,
    },
    Rows(Vec<Row>),
}

/// A row.
#[derive(Debug)]
pub(crate) struct Row {
    pub(super) line: usize,
    /// As it is written, without its comment.
    pub(super) text: String,
    pub(super) from: String,
    pub(super) to: Destination,
    pub(super) families: Vec<Family>,
    pub(super) by: By,
    pub(super) expected: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Destination {
    Host(String),
    Service(String, Way),
}

/// How a Service is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    ClusterIp,
    ExternalIp,
    LoadBalancer,
    NodePort,
}

/// By which protocols a destination is asked.
#[derive(Debug)]
pub(super) enum By {
    Ping,
    Port(Vec<Protocol>, u16),
}

/// What comes of asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Each answers, and sees this host's address.
    Answered(BTreeSet<(String, String)>),
    /// The client gets a refusal: ICMP port unreachable or RST.
    Refused,
    /// The client gets no answer.
    Dropped,
    /// The answer to a ping.
    Echo,
    /// What no row expects.
    Other(String),
}

impl Table {
    pub(crate) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.steps.iter().flat_map(|step| match step {
            Step::Rows(rows) => &rows[..],
            Step::Daemon(_) | Step::Nft(_) | Step::Iptables(_) | Step::Tunnel { .. } => &[],
        })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered(answers) => {
                let answers: Vec<_> =
                    answers.iter().map(|(who, sees)| format!("{who} sees {sees}")).collect();
                f.write_str(&answers.join(", "))
            }
            Self::Refused => f.write_str("refused"),
            Self::Dropped => f.write_str("dropped"),
            Self::Echo => f.write_str("echo"),
            Self::Other(error) => f.write_str(error),
        }
    }
}
