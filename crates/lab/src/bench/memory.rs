//! Resident memory: at rest after the first sync, and the peak until then.

use std::{fs, thread, time::Duration};

use anyhow::{Context as _, Result};
use testkit::kernel_baseline::Size;

use super::{case::Program, figures::Figures, node::Node};

/// The time in which memory that only the sync needed is given back, if ever.
pub(super) const REST: Duration = Duration::from_secs(10);

pub(super) fn measure(size: Size, program: Program) -> Result<Figures> {
    let node = Node::new(size)?;
    let running = node.start(program, &[])?;
    node.synced(&running)?;
    thread::sleep(REST);
    let Memory { steady, peak } = read(running.id())?;
    Ok(Figures::Memory { steady, peak })
}

/// What a process has, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) steady: u64,
    pub(super) peak: u64,
}

/// Reads it from /proc.
pub(super) fn read(process: u32) -> Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kibibytes.map(|kibibytes| kibibytes * 1024).with_context(|| format!("no {name} in {status}"))
    };
    Ok(Memory { steady: bytes("VmRSS:")?, peak: bytes("VmHWM:")? })
}
