//! What Linux says of a process of this machine.

use std::time::Duration;

/// `USER_HZ` in include/asm-generic/param.h of Linux: in /proc processor time is in hundredths of a second on every
/// architecture.
const TICK: Duration = Duration::from_millis(10);

/// The processor time in what `/proc/PID/stat` says, proc_pid_stat(5): the process's own, and that of the children it has
/// waited for.
pub fn processor_times(stat: &str) -> Option<[Duration; 2]> {
    // The name, in parentheses, may contain spaces.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(11).map_while(|field| field.parse::<u32>().ok());
    let mut of_both = || Some(TICK.saturating_mul(ticks.next()?.saturating_add(ticks.next()?)));
    Some([of_both()?, of_both()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_s_own_time_and_its_childrens_are_told_apart() {
        let stat = "7 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 100 20 3000 400 20 0";
        let seconds = |seconds| Duration::from_millis(seconds);
        assert_eq!(processor_times(stat), Some([seconds(1200), seconds(34_000)]));
        assert_eq!(processor_times("7 (a) S 1"), None);
    }
}
