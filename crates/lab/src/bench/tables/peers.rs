//! kube-ipvs beside each mode of kube-proxy.

use testkit::kernel_baseline::Size;

use super::{
    Report, cases,
    table::{Table, both, megabytes, ratio, seconds, size_cell},
};
use crate::bench::{
    case::{Binding, Case, Mode, Program, Subject},
    figures::Figures,
};

pub(super) fn table(report: &Report) -> String {
    let mut table = Table::new(
        "Beside kube-proxy",
        &[
            "Services × endpoints",
            "program",
            "cold sync",
            "× kube-ipvs",
            "endpoint change, p50 / p99",
            "memory, steady",
            "memory, peak",
        ],
    );
    let takes_part =
        |program, size| cases(report).any(|case| case == Case { subject: Subject::ColdSync(program), size });
    let kube_proxy = Mode::ALL.map(Program::KubeProxy);
    let mut sizes: Vec<Size> = Vec::new();
    for Case { size, .. } in cases(report) {
        if !sizes.contains(&size) && kube_proxy.iter().any(|&program| takes_part(program, size)) {
            sizes.push(size);
        }
    }
    let ours = Program::KubeIpvs(Binding::Route);
    for size in sizes {
        let cold_sync = |program| report.cold_sync(size, program).map(|cold| cold.from_lists);
        let best = cold_sync(ours);
        for program in [ours].into_iter().chain(kube_proxy).filter(|&program| takes_part(program, size)) {
            let sync = cold_sync(program);
            let memory = match report.figures(Case { subject: Subject::Memory(program), size }) {
                Some(Figures::Memory { steady, peak }) => (Some(steady), Some(peak)),
                _ => (None, None),
            };
            table.row([
                size_cell(size),
                program.to_string(),
                seconds(sync),
                ratio(sync, best),
                both(report.change(size, program)),
                megabytes(memory.0),
                megabytes(memory.1),
            ]);
        }
    }
    table.text
}
