//! What others publish, and what kube-ipvs and kube-proxy take for the same here.

use std::fmt::Write as _;

use testkit::{kernel_baseline::Size, kube_proxy::Mode};

use super::Report;
use crate::{
    bench::{
        case::{Binding, Program, Subject},
        figures::{Figures, Memory},
        plan::{CORE, MANY_ENDPOINTS, MANY_OF_BOTH, MANY_SERVICES},
        published::{Core, Published},
    },
    table::{NONE, Table, both, megabytes, seconds},
};

const PROGRAMS: [Program; 3] =
    [Program::KubeIpvs(Binding::Route), Program::KubeProxy(Mode::Nftables), Program::KubeProxy(Mode::Ipvs)];
/// A time that is missing because of the limit.
const LATE: &str = "> 20 min";

const FIRST_SYNC: &str = "first sync";
const RESTART: &str = "restart over the unchanged kernel";
const ONE_MORE: &str = "one Service more, p50 / p99";
const STEADY: &str = "memory, steady";
const PEAK: &str = "memory, peak";
const CORE_TIME: &str = "decoded objects to netlink messages";
const CORE_STEADY: &str = "memory of each Service, steady";
const CORE_PEAK: &str = "memory of each Service, peak";

/// What is published. docs/evidence/performance.md says where and how it was measured.
const PUBLISHED: [(Size, &str, &str); 8] = [
    (MANY_ENDPOINTS, FIRST_SYNC, "nftables 2.2 to 13.3 min (kubernetes#135639)"),
    (MANY_SERVICES, FIRST_SYNC, "nftables 16.7 min, a full sync (kubernetes#139513)"),
    (MANY_SERVICES, ONE_MORE, "nftables 1.3 s, patched (kubernetes#139513)"),
    (MANY_OF_BOTH, RESTART, "nftables 3.2 min (kubernetes#130119)"),
    (MANY_OF_BOTH, ONE_MORE, "nftables 141 ms (kubernetes#126013)"),
    (MANY_OF_BOTH, PEAK, "nftables 260 MiB (kubernetes#126013)"),
    (CORE, CORE_TIME, "Cilium 0.62 to 0.99 s (cilium#48261)"),
    (CORE, CORE_STEADY, "Cilium 2.1 to 4.6 kB (cilium#48261)"),
];

pub(super) fn tables(report: &Report) -> String {
    let mut table = Table::new(
        "Beside published figures",
        &format!(
            "Services × endpoints | what | published | {}",
            PROGRAMS.map(|program| program.to_string()).join(" | ")
        ),
    );
    let mut row = |size: Size, what: &str, cells: [String; 3]| {
        let published = PUBLISHED.iter().find(|(of, named, _)| (*of, *named) == (size, what));
        let published = published.map_or(NONE, |(_, _, figure)| figure);
        table.row(&format!("{size} | {what} | {published} | {}", cells.join(" | ")));
    };
    let mut sizes: Vec<Size> = Vec::new();
    let mut late = String::new();
    for measured in &report.measured {
        let size = measured.case.size;
        if matches!(measured.case.subject, Subject::Published(..)) && !sizes.contains(&size) {
            sizes.push(size);
            let of = PROGRAMS.map(|program| report.published(size, program));
            for (place, what) in [FIRST_SYNC, RESTART, ONE_MORE, STEADY, PEAK].into_iter().enumerate() {
                row(
                    size,
                    what,
                    of.map(|published| published.map_or(NONE.to_owned(), |published| cell(published, place))),
                );
            }
        }
    }
    for (case, figures) in report.worked() {
        match (case.subject, figures) {
            (Subject::Published(program, _), Figures::Published(Published { late: Some(reason), .. })) => {
                // Writing to a String cannot fail.
                let _ = writeln!(late, "- {program}, {}: {reason}", case.size);
            }
            (_, Figures::Core(Core { took, memory: Memory { steady, peak } })) => {
                let kilobytes =
                    |bytes: &f64| format!("{:.1} kB", bytes / f64::from(case.size.services) / 1e3);
                for (what, ours) in [
                    (CORE_TIME, seconds(*took)),
                    (CORE_STEADY, kilobytes(steady)),
                    (CORE_PEAK, kilobytes(peak)),
                ] {
                    row(case.size, what, [ours, NONE.to_owned(), NONE.to_owned()]);
                }
            }
            _ => {}
        }
    }
    if late.is_empty() { table.to_string() } else { format!("{table}\n{late}") }
}

/// What one program took: the first time that is missing is the one that was over the limit.
fn cell(published: &Published, place: usize) -> String {
    let Published { first_sync, restart, one_more, memory, late } = published;
    let shown = [
        first_sync.map(seconds),
        restart.map(seconds),
        one_more.map(both),
        memory.map(|memory| megabytes(memory.steady)),
        memory.map(|memory| megabytes(memory.peak)),
    ];
    let is_late = late.is_some() && shown.iter().position(Option::is_none) == Some(place);
    let missing = if is_late { LATE } else { NONE };
    shown.into_iter().nth(place).flatten().unwrap_or_else(|| missing.to_owned())
}

impl Report {
    fn published(&self, size: Size, program: Program) -> Option<&Published> {
        self.worked().find_map(|(case, figures)| match (case.subject, figures) {
            (Subject::Published(of, _), Figures::Published(published)) => {
                (of == program && case.size == size).then_some(published)
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        bench::{case::Case, figures::Measured, plan, report::Machine},
        statistics::Percentiles,
    };

    fn text(measured: Vec<(Subject, Size, Result<Figures, String>)>) -> String {
        let machine = Machine { processor: String::new(), processors: 1, guest: "none", loads: Vec::new() };
        let measured = measured.into_iter();
        let measured =
            measured.map(|(subject, size, outcome)| Measured { case: Case { subject, size }, outcome });
        tables(&Report { machine, measured: measured.collect() })
    }

    #[test]
    fn a_time_over_the_limit_is_said_once_and_what_comes_after_it_is_a_dash() {
        let [ours, nftables, ipvs] = PROGRAMS.map(|program| Subject::Published(program, 1));
        let whole = Published {
            first_sync: Some(0.5),
            restart: Some(0.25),
            one_more: Some(Percentiles { p50: 0.001, p99: 0.002, longest: 0.003 }),
            memory: Some(Memory { steady: 20e6, peak: 30e6 }),
            late: None,
        };
        let late =
            Published { first_sync: Some(9.0), late: Some("no sync".to_owned()), ..Published::default() };
        let size = MANY_OF_BOTH;
        let text = text(vec![
            (ours, size, Ok(Figures::Published(whole))),
            (nftables, size, Ok(Figures::Published(late))),
            (ipvs, size, Err("it has ended".to_owned())),
        ]);
        for line in [
            "| 10000 × 2 | first sync | – | 500.0 ms | 9.0 s | – |\n",
            "| 10000 × 2 | restart over the unchanged kernel | nftables 3.2 min (kubernetes#130119) | 250.0 ms | > 20 min | – |\n",
            "| 10000 × 2 | one Service more, p50 / p99 | nftables 141 ms (kubernetes#126013) | 1.0 ms / 2.0 ms | – | – |\n",
            "| 10000 × 2 | memory, peak | nftables 260 MiB (kubernetes#126013) | 30 MB | – | – |\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert!(text.ends_with("|\n\n- kube-proxy nftables, 10000 × 2: no sync\n"), "{text}");
    }

    #[test]
    fn memory_of_the_core_is_that_of_one_service() {
        let core = Core { took: 0.4, memory: Memory { steady: 75e6, peak: 150e6 } };
        let text = text(vec![(Subject::Core, CORE, Ok(Figures::Core(core)))]);
        assert!(text.contains("| Cilium 0.62 to 0.99 s (cilium#48261) | 400.0 ms | – | – |\n"), "{text}");
        assert!(text.contains("| Cilium 2.1 to 4.6 kB (cilium#48261) | 1.5 kB | – | – |\n"), "{text}");
    }

    #[test]
    fn each_published_figure_has_its_measurement_in_the_plan() {
        let plan = plan::published();
        for (size, what, _) in PUBLISHED {
            let is_measured = |case: &Case| match case.subject {
                Subject::Core => [CORE_TIME, CORE_STEADY].contains(&what),
                Subject::Published(..) => [FIRST_SYNC, RESTART, ONE_MORE, PEAK].contains(&what),
                _ => false,
            };
            assert!(plan.iter().any(|case| case.size == size && is_measured(case)), "{size}, {what}");
        }
    }
}
