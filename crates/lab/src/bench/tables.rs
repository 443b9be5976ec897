//! The figures as tables, each beside its goal.

mod data_plane;
mod ejection;
mod published;
mod schedulers;

use std::fmt::Write as _;

use testkit::{
    kernel_baseline::{Reading, Size},
    kube_proxy::Mode,
};

use super::{
    case::{Binding, Case, Program, Subject},
    figures::{ColdSync, Figures, KernelBaseline, Measured, Memory, Phases, Waits},
    plan::{HUGE, LARGE},
    report::Report,
};
use crate::{
    statistics::{Percentiles, exponent},
    table::{NONE, Table, both, megabytes, ratio, seconds, with_longest},
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
        fairness(report),
        memory(report),
        growth(report),
        peers(report),
        ejection::table(report),
    ] {
        text += &table.to_string();
    }
    text += &published::tables(report);
    text + &data_plane::tables(report) + &schedulers::tables(report) + &missing(report)
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

fn cold_sync(report: &Report) -> Table {
    let mut table = Table::new(
        "Cold sync",
        "Services × endpoints | VIPs as | kernel baseline | kube-ipvs' sync | × baseline (goal: 1.5) | \
         both lists sent to the last write | start to the last write",
    );
    for Measured { case: Case { subject, size }, .. } in &report.measured {
        let Subject::KernelBaseline(binding) = *subject else { continue };
        let baseline = report.baseline(*size, binding).map(|baseline| baseline.write);
        let cold = report.cold_sync(*size, Program::KubeIpvs(binding));
        let sync = cold.map(|cold| cold.in_syncs);
        let (from_lists, from_start) = (cold.map(|cold| cold.from_lists), cold.map(|cold| cold.from_start));
        let [written, lists, start] = [baseline, from_lists, from_start].map(seconds);
        let (took, ratio) = (seconds(sync), ratio(sync, baseline));
        table.row(&format!("{size} | {binding} | {written} | {took} | {ratio} | {lists} | {start}"));
    }
    table
}

fn first_vip(report: &Report) -> Table {
    let mut table = Table::new(
        "From the start to the first VIP, `default/kubernetes`",
        "Services × endpoints | VIPs as | from the first byte | from the start (goal: 500 ms)",
    );
    for (Case { subject, size }, figures) in report.worked() {
        let Subject::FirstVip(binding) = subject else { continue };
        let Figures::FirstVip { from_start, from_first_byte } = *figures else { continue };
        let [byte, start] = [from_first_byte, from_start].map(seconds);
        table.row(&format!("{size} | {binding} | {byte} | {start}"));
    }
    table
}

fn rolling_update(report: &Report) -> Table {
    let mut table = Table::new(
        "A tenth of all endpoints replaced, 100 changes a second: how far the kernel is behind the watch",
        "Services × endpoints | VIPs as | changes | p50 / p99 | greatest (goal: 100 ms)",
    );
    for (Case { size, .. }, figures) in report.worked() {
        let Figures::RollingUpdate { changes, lag } = *figures else { continue };
        let (vips, greatest) = (Binding::Route, seconds(lag.longest));
        table.row(&format!("{size} | {vips} | {changes} | {} | {greatest}", both(lag)));
    }
    table
}

fn fairness(report: &Report) -> Table {
    let mut table = Table::new(
        "One tenant's costly changes, and how long others wait meanwhile: p50 / p99 / longest",
        "one tenant | takes | a neighbour's endpoint moves (goal: p99 1 s) | cluster DNS's (goal: 300 ms) | \
         another program's `nft add table` (goal: 1 s)",
    );
    let waits = report.worked().filter_map(|(_, figures)| match figures {
        Figures::Fairness(waits) => Some(waits),
        _ => None,
    });
    for Waits { change, took, neighbour, dns, nft } in waits.flatten() {
        let [neighbour, dns, nft] = [*neighbour, *dns, *nft].map(with_longest);
        table.row(&format!("{change} | {} | {neighbour} | {dns} | {nft}", seconds(*took)));
    }
    table
}

fn reconcile(report: &Report) -> Table {
    let mut table = Table::new(
        "Periodic reconcile with nothing to do",
        "Services × endpoints | VIPs as | read of IPVS by netlink | read of /proc/net/ip_vs | read of the rest | \
         kube-ipvs, wall | kube-ipvs, processor | × cheapest read (goal: 1.3) | of a core, every 30 s (goal: 0.3%)",
    );
    for (Case { subject, size }, figures) in report.worked() {
        let Subject::Reconcile(binding, _) = subject else { continue };
        let Figures::Reconcile { wall, processor } = *figures else { continue };
        let read = report.baseline(size, binding).map(|baseline| baseline.read);
        let [netlink, text, rest] = [
            read.map(|read| read.ipvs_by_netlink),
            read.map(|read| read.ipvs_as_text),
            read.map(|read| read.rest),
        ]
        .map(seconds);
        let ratio = ratio(Some(wall), read.map(Reading::cheapest));
        let share = processor / 30.0 * 100.0;
        let [wall, processor] = [wall, processor].map(seconds);
        table.row(&format!(
            "{size} | {binding} | {netlink} | {text} | {rest} | {wall} | {processor} | {ratio} | {share:.2}%"
        ));
    }
    table
}

fn restart(report: &Report) -> Table {
    let mut table = Table::new(
        "Restart over an unchanged kernel",
        "Services × endpoints | VIPs as | list transfer | cheapest read | start to synced | × both (goal: 1.5)",
    );
    for (Case { subject, size }, figures) in report.worked() {
        let Subject::Restart(binding) = subject else { continue };
        let Figures::Restart { list_transfer, ready } = *figures else { continue };
        let read = report.baseline(size, binding).map(|baseline| baseline.read.cheapest());
        let ratio = ratio(Some(ready), read.map(|read| read + list_transfer));
        let [transfer, read, ready] = [Some(list_transfer), read, Some(ready)].map(seconds);
        table.row(&format!("{size} | {binding} | {transfer} | {read} | {ready} | {ratio}"));
    }
    table
}

fn change(report: &Report) -> Table {
    let mut table = Table::new(
        "One endpoint less or more: write at the API server to the kernel",
        "Services × endpoints | changes | the watch alone, p50 / p99 | kernel, p50 / p99 | \
         over the watch, p99 (goal: 5 ms)",
    );
    for (Case { subject, size }, figures) in report.worked() {
        let Subject::EndpointChange(Program::KubeIpvs(_), times) = subject else { continue };
        let Figures::EndpointChange { kernel, watch } = *figures else { continue };
        let over = (kernel.p99 - watch.p99) * 1e3;
        table.row(&format!("{size} | {times} | {} | {} | {over:.1} ms", both(watch), both(kernel)));
    }
    table
}

fn memory(report: &Report) -> Table {
    let mut table = Table::new(
        "Resident memory of kube-ipvs",
        "Services × endpoints | steady | goal | peak | peak ÷ steady (goal: 1.2)",
    );
    for (Case { subject, size }, figures) in report.worked() {
        let Subject::Memory(Program::KubeIpvs(_)) = subject else { continue };
        let Figures::Memory(Memory { steady, peak }) = *figures else { continue };
        let goal = match size {
            LARGE => "30 MB",
            HUGE => "80 MB",
            _ => NONE,
        };
        let ratio = peak / steady;
        let [steady, peak] = [steady, peak].map(megabytes);
        table.row(&format!("{size} | {steady} | {goal} | {peak} | {ratio:.2}"));
    }
    table
}

/// How each phase grows with the number of Services: y = a · Services^b, fitted to all sizes.
fn growth(report: &Report) -> Table {
    let measured = report.worked().filter_map(|(case, figures)| match figures {
        Figures::Growth(phases) => Some((case.size, phases)),
        _ => None,
    });
    let measured: Vec<(Size, &Phases)> = measured.collect();
    let sizes: Vec<String> = measured.iter().map(|(size, _)| size.to_string()).collect();
    let mut table = Table::new(
        "Growth, VIPs as routes (goal: ≤ 12 × from 10,000 to 100,000)",
        &format!("phase | {} | largest ÷ smallest | exponent", sizes.join(" | ")),
    );
    let mut row = |name: &str, shown: fn(f64) -> String, of: fn(&Phases) -> f64| {
        let points = measured.iter().map(|(size, phases)| (size.services.into(), of(phases)));
        let points: Vec<(f64, f64)> = points.collect();
        let Some(exponent) = exponent(&points) else { return };
        let values: Vec<String> = points.iter().map(|(_, value)| shown(*value)).collect();
        let [smallest, largest] = [points.first(), points.last()].map(|point| point.map(|(_, value)| *value));
        let (values, grown) = (values.join(" | "), ratio(largest, smallest));
        table.row(&format!("{name} | {values} | {grown} | {exponent:.2}"));
    };
    row("start to the last write", seconds, |phases| phases.cold_sync.from_start);
    row("of that, the first sync", seconds, |phases| phases.cold_sync.in_syncs);
    row("`kube-ipvs resync`, nothing to do", seconds, |phases| phases.resync);
    row("one endpoint changed", seconds, |phases| phases.change);
    row("memory, steady", megabytes, |phases| phases.memory.steady);
    row("memory, peak", megabytes, |phases| phases.memory.peak);
    table
}

/// kube-ipvs beside each mode of kube-proxy.
fn peers(report: &Report) -> Table {
    let mut table = Table::new(
        "Beside kube-proxy",
        "Services × endpoints | program | cold sync | × kube-ipvs | endpoint change, p50 / p99 | memory, steady | \
         memory, peak",
    );
    let takes_part = |program, size| {
        let cold_sync = Case { subject: Subject::ColdSync(program), size };
        report.measured.iter().any(|measured| measured.case == cold_sync)
    };
    let kube_proxy = Mode::ALL.map(Program::KubeProxy);
    let mut sizes: Vec<Size> = Vec::new();
    for Measured { case: Case { size, .. }, .. } in &report.measured {
        if !sizes.contains(size) && kube_proxy.iter().any(|&program| takes_part(program, *size)) {
            sizes.push(*size);
        }
    }
    let ours = Program::KubeIpvs(Binding::Route);
    for size in sizes {
        let cold_sync = |program| report.cold_sync(size, program).map(|cold| cold.from_lists);
        for program in [ours].into_iter().chain(kube_proxy).filter(|&program| takes_part(program, size)) {
            let memory = report.memory(size, program);
            let [steady, peak] =
                [memory.map(|memory| memory.steady), memory.map(|memory| memory.peak)].map(megabytes);
            let (took, change) = (seconds(cold_sync(program)), both(report.change(size, program)));
            let ratio = ratio(cold_sync(program), cold_sync(ours));
            table.row(&format!("{size} | {program} | {took} | {ratio} | {change} | {steady} | {peak}"));
        }
    }
    table
}

impl Report {
    /// The measurements that worked, in their order.
    fn worked(&self) -> impl Iterator<Item = (Case, &Figures)> {
        self.measured.iter().filter_map(|measured| Some((measured.case, measured.outcome.as_ref().ok()?)))
    }

    /// The figures of a measurement, if it was made and worked.
    fn figures(&self, subject: Subject, size: Size) -> Option<&Figures> {
        self.worked().find(|(case, _)| *case == Case { subject, size }).map(|(_, figures)| figures)
    }

    fn baseline(&self, size: Size, binding: Binding) -> Option<KernelBaseline> {
        let figures = self.figures(Subject::KernelBaseline(binding), size)?;
        if let Figures::KernelBaseline(baseline) = figures { Some(*baseline) } else { None }
    }

    fn cold_sync(&self, size: Size, program: Program) -> Option<ColdSync> {
        let figures = self.figures(Subject::ColdSync(program), size)?;
        if let Figures::ColdSync(cold) = figures { Some(*cold) } else { None }
    }

    fn memory(&self, size: Size, program: Program) -> Option<Memory> {
        let figures = self.figures(Subject::Memory(program), size)?;
        if let Figures::Memory(memory) = figures { Some(*memory) } else { None }
    }

    /// The changes of this program, however many there were.
    fn change(&self, of: Size, by: Program) -> Option<Percentiles> {
        self.worked().find_map(|(Case { subject, size }, figures)| match (subject, figures) {
            (Subject::EndpointChange(program, _), Figures::EndpointChange { kernel, .. }) => {
                (program == by && size == of).then_some(*kernel)
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::Machine;

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
