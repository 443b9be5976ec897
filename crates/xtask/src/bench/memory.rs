//! Resident memory: at rest after the first sync, and the most that there was until then.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use testkit::floor::Size;

use super::case::{Figures, Program};
use super::node::Node;

/// Until what was needed for the sync alone has been given back, if ever.
const REST: Duration = Duration::from_secs(10);

pub(super) fn measure(size: Size, program: Program) -> Result<Figures> {
    let node = Node::new(size)?;
    let running = node.start(program, &[])?;
    node.synced(&running)?;
    thread::sleep(REST);
    let status = fs::read_to_string(format!("/proc/{}/status", running.id()))?;
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kibibytes.map(|kibibytes| kibibytes * 1024).with_context(|| format!("no {name} in {status}"))
    };
    Ok(Figures::Memory { steady: bytes("VmRSS:")?, peak: bytes("VmHWM:")? })
}
