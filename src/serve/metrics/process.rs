//! Metrics of this process's memory, CPU time and descriptors, as Prometheus' client for Go names them.

use std::{fs, str::FromStr};

use super::text::{Kind, Page, Real};

/// The unit of the kernel's times, on every architecture that Kubernetes runs on (`USER_HZ` in
/// include/asm-generic/param.h of Linux).
const TICKS: f64 = 100.0;

/// Reads the values, and writes them. A value that cannot be read is left out.
pub(super) fn write(page: &mut Page) {
    use Kind::{Counter, Gauge};
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let (stat, status, limits) =
        (read("/proc/self/stat"), read("/proc/self/status"), read("/proc/self/limits"));
    let kibibytes = |name| after::<f64>(&status, name).map(|size| size * 1024.0);
    let boot = after::<f64>(&read("/proc/stat"), "btime");
    let started = boot.zip(field(&stat, 22)).map(|(boot, ticks)| boot + ticks / TICKS);
    for (name, kind, help, value) in [
        (
            "process_cpu_seconds_total",
            Counter,
            "Total user and system CPU time spent in seconds",
            cpu_seconds(&stat),
        ),
        (
            "process_start_time_seconds",
            Gauge,
            "Start time of the process since unix epoch in seconds",
            started,
        ),
        ("process_resident_memory_bytes", Gauge, "Resident memory size in bytes", kibibytes("VmRSS:")),
        ("process_virtual_memory_bytes", Gauge, "Virtual memory size in bytes", kibibytes("VmSize:")),
        (
            "process_virtual_memory_max_bytes",
            Gauge,
            "Maximum amount of virtual memory available in bytes",
            limit(&limits, "Max address space"),
        ),
        ("process_open_fds", Gauge, "Number of open file descriptors", open_files()),
        (
            "process_max_fds",
            Gauge,
            "Maximum number of open file descriptors",
            limit(&limits, "Max open files"),
        ),
    ] {
        if let Some(value) = value {
            page.single(name, kind, help, Real(value));
        }
    }
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((field(stat, 14)? + field(stat, 15)?) / TICKS)
}

/// A field of `/proc/self/stat`, counted from 1 as in proc_pid_stat(5). The second is the program's name in
/// parentheses, which may hold anything.
fn field(stat: &str, number: usize) -> Option<f64> {
    let (_, from_third) = stat.rsplit_once(')')?;
    from_third.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

/// The word after a name that a line begins with.
fn after<T: FromStr>(text: &str, name: &str) -> Option<T> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

/// A soft limit. `unlimited` is the largest number, as in Go.
fn limit(limits: &str, name: &str) -> Option<f64> {
    let limit: String = after(limits, name)?;
    if limit == "unlimited" { Some(18_446_744_073_709_551_615.0) } else { limit.parse().ok() }
}

/// How many there are, but for the one that lists them.
fn open_files() -> Option<f64> {
    let count = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
    Some(f64::from(u32::try_from(count).ok()?))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn every_metric_of_the_process_is_shown() {
        let begin = Instant::now();
        let used = || cpu_seconds(&fs::read_to_string("/proc/self/stat").unwrap());
        while used() < Some(1.0 / TICKS) {
            assert!(begin.elapsed() < Duration::from_secs(20), "work takes no time: {:?}", used());
        }
        let mut page = Page::default();
        write(&mut page);
        let page = String::from(page);
        let value = |name: &str| -> f64 { after(&page, &format!("{name} ")).unwrap() };
        assert!(page.contains("# TYPE process_cpu_seconds_total counter\n"), "{page}");
        assert!(value("process_cpu_seconds_total") >= 1.0 / TICKS, "{page}");
        assert!(value("process_resident_memory_bytes") > 100_000.0, "{page}");
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"), "{page}");
        assert!(value("process_virtual_memory_max_bytes") >= value("process_virtual_memory_bytes"), "{page}");
        assert!(value("process_open_fds") >= 3.0, "{page}");
        assert!(value("process_max_fds") >= value("process_open_fds"), "{page}");
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        // The clock may have been set since the machine was started.
        assert!(
            value("process_start_time_seconds") > 0.0 && value("process_start_time_seconds") < now + 60.0
        );
    }

    #[test]
    fn a_program_may_have_any_name() {
        let stat = "7 (a) b 1) S 1 7 7 0 -1 0 0 0 0 0 250 50 0 0 20 0 1 0 4200 0";
        assert_eq!(field(stat, 14), Some(250.0));
        assert_eq!(field(stat, 22), Some(4200.0));
        assert_eq!(field("", 14), None);
    }

    #[test]
    fn without_a_limit_it_is_the_largest_number() {
        let limits = "Max open files            1024                 524288               files\n\
                      Max address space         unlimited            unlimited            bytes\n";
        assert_eq!(limit(limits, "Max open files"), Some(1024.0));
        assert_eq!(limit(limits, "Max address space"), Some(1.844_674_407_370_955_2e19));
    }
}
