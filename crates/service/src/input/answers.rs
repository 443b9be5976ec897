//! What the counters of IPVS say about the answers of endpoints, as an input.

use std::time::{Duration, Instant};

use ipvs::{RealServerAddress, ServiceAddress};

/// The answers of all endpoints that clients have asked lately, at one reading of the counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// When the counters were read.
    pub at: Instant,
    /// The endpoints, in any order; one at several virtual servers once for each.
    pub endpoints: Vec<EndpointAnswer>,
}

impl Answers {
    /// Endpoints that were asked longer ago say nothing.
    pub const MEMORY: Duration = Duration::from_secs(30);
    /// For how long a question without an answer says something about the present: three ticks of the counters.
    pub(crate) const RECENT: Duration = Duration::from_secs(6);
}

/// What one endpoint does at one virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointAnswer {
    /// Where clients asked.
    pub virtual_server: ServiceAddress,
    /// The endpoint.
    pub endpoint: RealServerAddress,
    /// What it did last.
    pub answer: Answer,
    /// When a client last asked.
    pub asked: Instant,
}

/// What an endpoint did when clients last asked. The worst is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// It answered.
    Answered,
    /// There is no answer so far: less than a tick of the counters has passed.
    Missing,
    /// It rejected everything.
    Refused,
    /// It did not answer.
    Silent,
}
