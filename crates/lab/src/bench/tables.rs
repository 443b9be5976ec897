//! The figures as tables, each beside its goal.

mod data_plane;
mod table;

use std::fmt::Write as _;

use table::{NONE, Table, both, bytes, megabytes, ratio, seconds, size_cell};
use testkit::kernel_baseline::Size;

use super::{
    case::{Binding, Case, Program, Subject},
    figures::{ColdSync, Figures, Measured, Percentiles},
    plan::{HUGE, LARGE},
    report::Report,
};

/// All tables for which there are figures.
pub(super) fn all(report: &Report) -> String {
    let (least, most) = report.machine.load_range();
    let mut text = format!(
        "Processor: {}, {} of them; guest: {}; load average of the machine during the run: {least:.1} to {most:.1}.\n",
        report.machine.processor, report.machine.processors, report.machine.guest,
    );
    for table in [
        cold_sync(report),
        first_vip(report),
        reconcile(report),
        restart(report),
        change(report),
        rolling_update(report),
        memory(report),
        table::growth(report),
        table::peers(report),
        data_plane::tables(report),
        missing(report),
    ] {
        text.push_str(&table);
    }
    text
}

/// Why there is no figure.
fn missing(report: &Report) -> String {
    let mut text = String::new();
    for Measured { case, outcome } in &report.measured {
        let Err(reason) = outcome else { continue };
        if text.is_empty() {
            text.push_str("\n### Not measured\n\n");
        }
        // What the program said last follows in further lines, which the report has.
        let reason = reason.lines().next().unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "- {case}: {reason}");
    }
    text
}

fn cold_sync(report: &Report) -> String {
    let mut table = Table::new(
        "Cold sync",
        &[
            "Services × endpoints",
            "VIPs as",
            "kernel baseline",
            "kube-ipvs' sync",
            "× baseline (goal: 1.5)",
            "both lists sent to the last write",
            "start to the last write",
        ],
    );
    for Case { subject, size } in cases(report) {
        let Subject::KernelBaseline(binding) = subject else { continue };
        let baseline = report.baseline(size, binding).map(|baseline| baseline.write);
        let cold = report.cold_sync(size, Program::KubeIpvs(binding));
        let sync = cold.map(|cold| cold.in_syncs);
        let cells = [
            seconds(baseline),
            seconds(sync),
            ratio(sync, baseline),
            seconds(cold.map(|cold| cold.from_lists)),
            seconds(cold.map(|cold| cold.from_start)),
        ];
        table.row([size_cell(size), binding.to_string()].into_iter().chain(cells));
    }
    table.text
}

fn first_vip(report: &Report) -> String {
    let mut table = Table::new(
        "From the start to the first VIP, `default/kubernetes`",
        &["Services × endpoints", "VIPs as", "from the first byte", "from the start (goal: 500 ms)"],
    );
    for case in cases(report) {
        let Subject::FirstVip(binding) = case.subject else { continue };
        let Some(Figures::FirstVip { from_start, from_first_byte }) = report.figures(case) else { continue };
        let cells = [seconds(Some(from_first_byte)), seconds(Some(from_start))];
        table.row([size_cell(case.size), binding.to_string()].into_iter().chain(cells));
    }
    table.text
}

fn rolling_update(report: &Report) -> String {
    let mut table = Table::new(
        "A tenth of all endpoints replaced, 100 changes a second: how far the kernel is behind the watch",
        &["Services × endpoints", "VIPs as", "changes", "p50 / p99", "greatest (goal: 100 ms)"],
    );
    for case in cases(report) {
        let Subject::RollingUpdate(binding) = case.subject else { continue };
        let Some(Figures::RollingUpdate { changes, lag, greatest }) = report.figures(case) else { continue };
        let cells = [changes.to_string(), both(Some(lag)), seconds(Some(greatest))];
        table.row([size_cell(case.size), binding.to_string()].into_iter().chain(cells));
    }
    table.text
}

fn reconcile(report: &Report) -> String {
    let mut table = Table::new(
        "Periodic reconcile with nothing to do",
        &[
            "Services × endpoints",
            "VIPs as",
            "read of IPVS by netlink",
            "read of /proc/net/ip_vs",
            "read of the rest",
            "kube-ipvs, wall",
            "kube-ipvs, processor",
            "× cheapest read (goal: 1.3)",
            "of a core, every 30 s (goal: 0.3%)",
        ],
    );
    for case in cases(report) {
        let Subject::Reconcile(binding, _) = case.subject else { continue };
        let Some(Figures::Reconcile { wall, processor }) = report.figures(case) else { continue };
        let baseline = report.baseline(case.size, binding);
        let cells = [
            seconds(baseline.map(|baseline| baseline.by_netlink)),
            seconds(baseline.map(|baseline| baseline.as_text)),
            seconds(baseline.map(|baseline| baseline.rest)),
            seconds(Some(wall)),
            seconds(Some(processor)),
            ratio(Some(wall), baseline.map(KernelBaseline::read)),
            format!("{:.2}%", processor / 30.0 * 100.0),
        ];
        table.row([size_cell(case.size), binding.to_string()].into_iter().chain(cells));
    }
    table.text
}

fn restart(report: &Report) -> String {
    let mut table = Table::new(
        "Restart over an unchanged kernel",
        &[
            "Services × endpoints",
            "VIPs as",
            "list transfer",
            "cheapest read",
            "start to synced",
            "× both (goal: 1.5)",
        ],
    );
    for case in cases(report) {
        let Subject::Restart(binding) = case.subject else { continue };
        let Some(Figures::Restart { list_transfer, ready }) = report.figures(case) else { continue };
        let read = report.baseline(case.size, binding).map(KernelBaseline::read);
        let cells = [
            seconds(Some(list_transfer)),
            seconds(read),
            seconds(Some(ready)),
            ratio(Some(ready), read.map(|read| read + list_transfer)),
        ];
        table.row([size_cell(case.size), binding.to_string()].into_iter().chain(cells));
    }
    table.text
}

fn change(report: &Report) -> String {
    let mut table = Table::new(
        "One endpoint less or more: write at the API server to the kernel",
        &[
            "Services × endpoints",
            "changes",
            "the watch alone, p50 / p99",
            "kernel, p50 / p99",
            "over the watch, p99 (goal: 5 ms)",
        ],
    );
    for case in cases(report) {
        let Subject::EndpointChange(Program::KubeIpvs(_), times) = case.subject else { continue };
        let Some(Figures::EndpointChange { kernel, watch }) = report.figures(case) else { continue };
        let over = format!("{:.1} ms", (kernel.p99 - watch.p99) * 1e3);
        table.row([size_cell(case.size), times.to_string(), both(Some(watch)), both(Some(kernel)), over]);
    }
    table.text
}

fn memory(report: &Report) -> String {
    let mut table = Table::new(
        "Resident memory of kube-ipvs",
        &["Services × endpoints", "steady", "goal", "peak", "peak ÷ steady (goal: 1.2)"],
    );
    for case in cases(report) {
        let Subject::Memory(Program::KubeIpvs(_)) = case.subject else { continue };
        let Some(Figures::Memory { steady, peak }) = report.figures(case) else { continue };
        let goal = if case.size == LARGE {
            "30 MB"
        } else if case.size == HUGE {
            "80 MB"
        } else {
            NONE
        };
        let ratio = format!("{:.2}", bytes(peak) / bytes(steady));
        table.row([
            size_cell(case.size),
            megabytes(Some(steady)),
            goal.to_owned(),
            megabytes(Some(peak)),
            ratio,
        ]);
    }
    table.text
}

/// What the kernel itself needs, in seconds.
#[derive(Clone, Copy)]
struct KernelBaseline {
    write: f64,
    by_netlink: f64,
    as_text: f64,
    rest: f64,
}

impl KernelBaseline {
    fn read(self) -> f64 {
        self.by_netlink.min(self.as_text) + self.rest
    }
}

impl Report {
    fn baseline(&self, size: Size, binding: Binding) -> Option<KernelBaseline> {
        match self.figures(Case { subject: Subject::KernelBaseline(binding), size })? {
            Figures::KernelBaseline { write, read_ipvs_by_netlink, read_ipvs_as_text, read_rest } => {
                Some(KernelBaseline {
                    write,
                    by_netlink: read_ipvs_by_netlink,
                    as_text: read_ipvs_as_text,
                    rest: read_rest,
                })
            }
            _ => None,
        }
    }

    fn cold_sync(&self, size: Size, program: Program) -> Option<ColdSync> {
        match self.figures(Case { subject: Subject::ColdSync(program), size })? {
            Figures::ColdSync(cold) => Some(cold),
            _ => None,
        }
    }

    /// The changes of this program, however many there were.
    fn change(&self, size: Size, program: Program) -> Option<Percentiles> {
        let ours = |case: &Case| matches!(case.subject, Subject::EndpointChange(of, _) if of == program);
        let case = cases(self).find(|case| case.size == size && ours(case))?;
        match self.figures(case)? {
            Figures::EndpointChange { kernel, .. } => Some(kernel),
            _ => None,
        }
    }
}

fn cases(report: &Report) -> impl Iterator<Item = Case> {
    report.measured.iter().map(|measured| measured.case)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{case::Mode, report::Machine};

    #[test]
    fn a_measurement_that_failed_is_a_dash_in_its_table_and_its_reason_stands_below() {
        let size = Size { services: 1, endpoints: 1 };
        let cold = |program| Case { subject: Subject::ColdSync(program), size };
        let (ours, theirs) = (Program::KubeIpvs(Binding::Route), Program::KubeProxy(Mode::Iptables));
        let outcomes = [
            (cold(ours), Ok(Figures::ColdSync(ColdSync { from_start: 0.9, from_lists: 0.5, in_syncs: 0.4 }))),
            (cold(theirs), Err("it took too long\nand said much".to_owned())),
        ];
        let machine = Machine { processor: String::new(), processors: 1, guest: "none", loads: Vec::new() };
        let measured = outcomes.map(|(case, outcome)| Measured { case, outcome }).to_vec();
        let text = all(&Report { machine, measured });
        assert!(text.contains("| 1 × 1 | kube-proxy iptables | – | – | – | – | – |\n"), "{text}");
        assert!(text.contains("| 1 × 1 | kube-ipvs, VIPs as routes | 500.0 ms | 1.0 |"), "{text}");
        assert!(
            text.ends_with("- cold sync of kube-proxy iptables, 1 Services × 1: it took too long\n"),
            "{text}"
        );
        assert!(!text.contains("nftables"), "what does not take part has no row: {text}");
    }
}
