//! What thousands of nodes do to one Service together, in a simulation: ejection, spill-over and slow starts.
//!
//! Each node decides for itself, by what it sees of its own clients. The simulation runs the program's own decisions, one
//! `service::State` for each node, and one `service::liveness::Evidence` for each endpoint there. What surrounds them is
//! modelled: clients, queues of endpoints, the kernel's schedulers and counters, and delays that were measured. It
//! is deterministic: the same seed gives the same events.
//!
//! Not modelled: lost packets, slow networks, busy nodes, session affinity, several ports, and other Services on a node,
//! which slow down the reading of counters.

mod endpoint;
mod near;
mod node;
mod overload;
mod plan;
mod scheduler;
mod seen;
mod silent;
mod slow_start;
mod world;

use std::thread;

use anyhow::{Result, anyhow};

/// Runs every scenario with so many nodes, all at once, and prints a table of each.
pub(super) fn measure(nodes: u32) -> Result<()> {
    let tables = [silent::table, overload::table, near::table, slow_start::table];
    thread::scope(|scope| {
        let running = tables.map(|table| scope.spawn(move || table(nodes)));
        for table in running {
            let table = table.join().map_err(|_| anyhow!("the simulation panicked"))?;
            println!("{}", table?);
        }
        Ok(())
    })
}

/// What most tests and tables use.
mod common {
    use std::time::Duration;

    use ipvs::Scheduler;
    use service::{Balancing, Ejection};

    /// Ejection of silent endpoints, with a scheduler if one is named.
    pub(super) fn ejecting(scheduler: Option<Scheduler>) -> Balancing {
        Balancing { scheduler, ejection: Some(Ejection::SILENT), ..Balancing::default() }
    }

    /// For people: so many connections a second.
    pub(super) fn rate(every: Duration) -> String {
        format!("{}", 1.0 / every.as_secs_f64())
    }

    /// For people: the scheduler, where none is named the default.
    pub(super) fn name(scheduler: Option<Scheduler>) -> String {
        scheduler.map_or_else(|| "rr".to_owned(), |it| it.to_string())
    }

    /// For people: seconds, if there are any.
    pub(super) fn after(seconds: Option<f64>) -> String {
        seconds.map_or_else(|| crate::table::NONE.to_owned(), |seconds| format!("{seconds:.1} s"))
    }
}
