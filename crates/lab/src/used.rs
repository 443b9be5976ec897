//! What a process uses, as /proc shows it.

use std::fs;

use anyhow::{Context as _, Result};
use guest::programs::processor_time;

/// The processor time of a process so far, in seconds.
pub(crate) fn processor(process: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    Ok(processor_time(&stat).context("a stat without times")?.as_secs_f64())
}

/// Its resident memory, and the most that has been, in KiB.
pub(crate) fn memory(process: u32) -> Result<[u32; 2]> {
    let status = status(process)?;
    Ok([number(&status, "VmRSS:")?, number(&status, "VmHWM:")?])
}

/// How many threads it has.
pub(crate) fn threads(process: u32) -> Result<u32> {
    number(&status(process)?, "Threads:")
}

/// How many descriptors it has open.
pub(crate) fn descriptors(process: u32) -> Result<u32> {
    Ok(u32::try_from(fs::read_dir(format!("/proc/{process}/fd"))?.count())?)
}

fn status(process: u32) -> Result<String> {
    fs::read_to_string(format!("/proc/{process}/status")).context("the process has ended")
}

fn number(status: &str, name: &str) -> Result<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.with_context(|| format!("no {name} in {status}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_by_its_name() {
        let status = "Name:\ta\nVmHWM:\t 2000 kB\nVmRSS:\t 1000 kB\nThreads:\t4\n";
        assert_eq!(
            ["VmRSS:", "VmHWM:", "Threads:"].map(|name| number(status, name).unwrap()),
            [1000, 2000, 4]
        );
        assert!(number(status, "VmSwap:").is_err());
    }
}
