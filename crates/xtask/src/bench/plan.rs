//! Which measurements are made.

use testkit::floor::Size;

use super::case::{Binding, Case, Mode, Program, Subject};

const fn size(services: u32, endpoints: u32) -> Size {
    Size { services, endpoints }
}

/// What a large cluster has: as many Services as Kubernetes is tested with.
pub(super) const LARGE: Size = size(10_000, 5);
/// More Services than that.
pub(super) const HUGE: Size = size(50_000, 2);
/// Where kube-proxy takes part.
pub(super) const SHARED: [Size; 2] = [size(1_000, 5), size(2_000, 5)];
/// Large enough for every phase, small enough for a test.
const TINY: Size = size(20, 2);

/// The measurements of docs/performance.md.
pub(super) fn full() -> Vec<Case> {
    let mut cases = Vec::new();
    for size in SHARED.into_iter().chain([LARGE, HUGE]) {
        cases.extend(against_floor(size));
    }
    cases.extend(of_kube_ipvs(LARGE, 1_000, 20));
    cases.push(Case { subject: Subject::Memory(Program::KubeIpvs(Binding::Route)), size: HUGE });
    for size in SHARED {
        let changes_and_memory = |program, times| {
            [Subject::EndpointChange(program, times), Subject::Memory(program)]
                .map(|subject| Case { subject, size })
        };
        cases.extend(changes_and_memory(Program::KubeIpvs(Binding::Route), 1_000));
        for program in Mode::ALL.map(Program::KubeProxy) {
            cases.push(Case { subject: Subject::ColdSync(program), size });
            cases.extend(changes_and_memory(program, 10));
        }
    }
    cases
}

/// One of each kind, and every mode of kube-proxy.
pub(super) fn small() -> Vec<Case> {
    let mut cases = against_floor(TINY);
    cases.extend(of_kube_ipvs(TINY, 10, 2));
    cases.extend(
        Mode::ALL.map(|mode| Case { subject: Subject::ColdSync(Program::KubeProxy(mode)), size: TINY }),
    );
    let change = Subject::EndpointChange(Program::KubeProxy(Mode::Ipvs), 2);
    cases.push(Case { subject: change, size: TINY });
    cases
}

fn against_floor(size: Size) -> Vec<Case> {
    let of = |binding| [Subject::Floor(binding), Subject::ColdSync(Program::KubeIpvs(binding))];
    Binding::BOTH.into_iter().flat_map(of).map(|subject| Case { subject, size }).collect()
}

fn of_kube_ipvs(size: Size, changes: u32, reconciles: u32) -> Vec<Case> {
    let of = |binding| [Subject::Reconcile(binding, reconciles), Subject::Restart(binding)];
    let program = Program::KubeIpvs(Binding::Route);
    let once = [Subject::EndpointChange(program, changes), Subject::Memory(program)];
    let both = Binding::BOTH.into_iter().flat_map(of);
    both.chain(once).map(|subject| Case { subject, size }).collect()
}
