//! Clients of every kind that ask the application while something happens.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};

use crate::{
    load::{Load, Outcome},
    state::Cluster,
    web::{Address, Client, Web},
};

/// How many requests a second there are from all of them together.
pub(crate) const RATE: u32 = 200;

/// How long they go on after what happened: some of what breaks is noticed later.
const AFTERWARDS: Duration = Duration::from_secs(5);

/// How many of the requests that were due must have been made, in percent: a client that hangs asks nothing.
const MADE: u64 = 80;

/// No answer may take longer where a proxy is replaced, in milliseconds: of a connection's first packet that is lost,
/// the second comes after a second and the third after two more.
const LONGEST: u128 = 2000;

/// Clients that ask.
pub(crate) struct Clients(Vec<(&'static str, Load)>);

/// What became of their requests.
pub(crate) struct Outcomes(Vec<(&'static str, Outcome)>);

impl Clients {
    /// Starts one in a pod, one on a node and two outside of the cluster; each holds so many connections. Together they
    /// meet the proxy of every node, and that on a node asks by IPv6.
    pub(crate) fn start(cluster: &Cluster, web: &Web, held: u32) -> Result<Self> {
        Self::start_at_rate(cluster, web, RATE, held)
    }

    /// The same, with so many requests a second from all of them together.
    pub(crate) fn start_at_rate(cluster: &Cluster, web: &Web, rate: u32, held: u32) -> Result<Self> {
        let (node, control_plane) = (cluster.first_worker()?, cluster.control_plane()?);
        let kinds = [
            ("pod, ClusterIP", Client::Pod(node), Address::ClusterIp),
            ("node, ClusterIP of IPv6", Client::Node(node), Address::ClusterIpV6),
            ("outside, NodePort", Client::Outside, Address::NodePort(control_plane)),
            ("outside, load balancer", Client::Outside, Address::LoadBalancer),
        ];
        Self::start_at(web, &kinds, rate / 4, held)
    }

    /// Starts these clients, each with so many requests a second and so many held connections.
    pub(crate) fn start_at(
        web: &Web,
        kinds: &[(&'static str, Client<'_>, Address<'_>)],
        rate: u32,
        held: u32,
    ) -> Result<Self> {
        let start = |&(name, client, address)| Ok((name, web.ask(client, address, rate, held)?));
        kinds.iter().map(start).collect::<Result<_>>().map(Self)
    }

    /// Ends them, and prints what became of their requests.
    pub(crate) fn end(self) -> Result<Outcomes> {
        thread::sleep(AFTERWARDS);
        let ended = self.0.into_iter().map(|(name, load)| Ok((name, load.end()?)));
        let outcomes: Vec<(&str, Outcome)> = ended.collect::<Result<_>>()?;
        for (name, outcome) in &outcomes {
            let Outcome { answered, slow, slowest, due, failed, held, broken, .. } = outcome;
            println!(
                "{name}: {answered} answered ({slow} slowly, the slowest in {slowest} ms), {} failed {failed:?} \
                 within {} ms; {held} held, {} broken {broken:?}",
                outcome.failures(),
                outcome.failing(),
                outcome.losses()
            );
            let made = answered + outcome.failures();
            ensure!(made * 100 >= due * MADE, "{name}: {made} requests instead of {due}");
            ensure!(*answered > 0, "{name}: no request was answered");
        }
        Ok(Outcomes(outcomes))
    }
}

impl Outcomes {
    /// How many requests were answered, and how many were not.
    pub(crate) fn requests(&self) -> (u64, u64) {
        let sum = |count: fn(&Outcome) -> u64| self.0.iter().map(|(_, outcome)| count(outcome)).sum();
        (sum(|outcome| outcome.answered), sum(Outcome::failures))
    }

    /// Fails if a request was not answered.
    pub(crate) fn expect_all_answered(&self) -> Result<()> {
        let (answered, failed) = self.requests();
        ensure!(failed == 0, "{failed} of {} requests failed", answered + failed);
        Ok(())
    }

    /// Fails if a client was not answered for longer than a lost packet takes to be repeated.
    pub(crate) fn expect_no_silence(&self) -> Result<()> {
        for (name, outcome) in &self.0 {
            ensure!(outcome.slowest <= LONGEST, "{name}: one answer took {} ms", outcome.slowest);
        }
        Ok(())
    }

    /// Fails if a request failed for another reason than these.
    pub(crate) fn expect_failures_by(&self, reasons: &[&str]) -> Result<()> {
        for (name, outcome) in &self.0 {
            for (why, times) in &outcome.failed {
                let is_expected = reasons.iter().any(|reason| why.contains(reason));
                ensure!(is_expected, "{name}: {times} requests failed: {why}");
            }
        }
        Ok(())
    }

    /// Fails if a connection broke.
    pub(crate) fn expect_all_held(&self) -> Result<()> {
        let broken: u64 = self.0.iter().map(|(_, outcome)| outcome.losses()).sum();
        ensure!(broken == 0, "{broken} connections broke");
        Ok(())
    }
}
