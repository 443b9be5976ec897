//! The processor time of the node that clients come in by. Each node is a guest with a kernel of its own, whose time this
//! machine's kernel counts.

use std::{
    fmt, thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use super::Application;
use crate::{
    network,
    state::Cluster,
    web::{Address, Client},
};

/// How often each is measured, the two by turns.
const ROUNDS: usize = 8;

/// How long.
const TIME: Duration = Duration::from_secs(8);

/// So many connections a second are opened for one request each, or so many are held and asked over once a second.
const CONNECTIONS: u32 = 250;

/// What a request is.
#[derive(Clone, Copy)]
enum Kind {
    NewConnection,
    OnOpenConnection,
}

impl Kind {
    const ALL: [Self; 2] = [Self::NewConnection, Self::OnOpenConnection];

    const fn name(self) -> &'static str {
        match self {
            Self::NewConnection => "a new connection with one request",
            Self::OnOpenConnection => "a request on an open connection",
        }
    }

    /// Connections opened a second, and connections held.
    const fn load(self) -> (u32, u32) {
        match self {
            Self::NewConnection => (CONNECTIONS, 0),
            Self::OnOpenConnection => (1, CONNECTIONS),
        }
    }
}

/// Prints what a request costs the entrance with either method; direct return must not cost more.
pub(in crate::scenario) fn of_both(cluster: &Cluster) -> Result<()> {
    let application = Application::deploy(cluster)?;
    let measured = measure(&application);
    measured.and(network::spread_no_longer())
}

fn measure(application: &Application<'_>) -> Result<()> {
    for kind in Kind::ALL {
        let (mut masqueraded, mut direct) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            for (method, costs) in [("masq", &mut masqueraded), ("tunnel", &mut direct)] {
                application.forward(method, &[application.entrance])?;
                costs.push(cost_of_one(application, kind)?);
            }
        }
        let (masqueraded, direct) = (Spread::of(masqueraded)?, Spread::of(direct)?);
        println!("{}: {masqueraded} masqueraded, {direct} with direct return", kind.name());
        ensure!(direct.median < masqueraded.median, "{}: direct return costs the entrance more", kind.name());
    }
    Ok(())
}

/// The entrance's processor time for a request in microseconds, without what it uses anyway.
fn cost_of_one(application: &Application<'_>, kind: Kind) -> Result<f64> {
    let anyway = spent_meanwhile(application)?;
    let (rate, held) = kind.load();
    let load = application.web.ask(Client::Outside, Address::LoadBalancer, rate, held)?;
    let began = Instant::now();
    let spent = spent_meanwhile(application)?;
    let outcome = load.end()?;
    let share = TIME.as_secs_f64() / began.elapsed().as_secs_f64();
    ensure!(outcome.failures() + outcome.losses() == 0, "requests failed: {outcome:?}");
    let requests = f64::from(u32::try_from(outcome.answered + outcome.answered_over_held)?) * share;
    ensure!(requests > 1_000.0, "only {requests:.0} requests");
    Ok((spent - anyway) * 1e6 / requests)
}

/// What the entrance uses in [`TIME`], in seconds.
fn spent_meanwhile(application: &Application<'_>) -> Result<f64> {
    let before = application.entrance.processor_time()?;
    thread::sleep(TIME);
    Ok(application.entrance.processor_time()?.as_secs_f64() - before.as_secs_f64())
}

/// What was measured several times.
struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    fn of(mut costs: Vec<f64>) -> Result<Self> {
        costs.sort_by(f64::total_cmp);
        let [least, .., most] = costs[..] else { anyhow::bail!("measured too seldom") };
        let median = costs.get(costs.len() / 2).copied().unwrap_or(most);
        Ok(Self { least, median, most })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { least, median, most } = self;
        write!(f, "{median:.0} µs ({least:.0} to {most:.0})")
    }
}
