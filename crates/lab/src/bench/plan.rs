//! Which measurements are made.

use testkit::{kernel_baseline::Size, kube_proxy::Mode};

use super::{
    case::{Binding, Case, Ejecting, Program, Subject},
    data_plane::Effort,
};

const fn size(services: u32, endpoints: u32) -> Size {
    Size { services, endpoints }
}

/// What a large cluster has: as many Services as Kubernetes is tested with.
pub(super) const LARGE: Size = size(10_000, 5);
/// More Services than that.
pub(super) const HUGE: Size = size(50_000, 2);
/// Sizes for all modes of kube-proxy.
const SHARED: [Size; 2] = [size(1_000, 5), size(2_000, 5)];
/// The size in which endpoint changes and memory are compared with all modes.
const COMPARED: Size = size(2_000, 5);
/// The size for nftables mode only, from the goal.
const NFTABLES: Size = size(5_000, 5);
/// The sizes for growth.
const GROWING: [Size; 4] = [size(10_000, 1), size(20_000, 1), size(50_000, 1), size(100_000, 1)];
/// The ports and endpoints of the tenant whose changes cost others time.
const COSTLY: Size = size(64, 1_024);
/// The sizes of published figures: of syncs with many endpoints, with many Services, with both, and of the core.
pub(super) const MANY_ENDPOINTS: Size = size(5_006, 50);
pub(super) const MANY_SERVICES: Size = size(44_125, 1);
pub(super) const MANY_OF_BOTH: Size = size(10_000, 2);
pub(super) const CORE: Size = size(50_000, 1);
/// Large enough for every phase, small enough for a test.
pub const TINY: Size = size(20, 2);
/// The next size, for growth.
pub const TINY_DOUBLED: Size = size(40, 2);

const OURS: Program = Program::KubeIpvs(Binding::Route);

/// The measurements of docs/evidence/performance.md.
pub(super) fn full() -> Vec<Case> {
    let mut cases = Vec::new();
    for size in SHARED.into_iter().chain([NFTABLES, LARGE, HUGE]) {
        cases.extend(against_baseline(size));
    }
    cases.extend(for_kube_ipvs(LARGE, 1_000, 20));
    cases.push(Case { subject: Subject::Memory(OURS), size: HUGE });
    cases.push(Case { subject: Subject::Fairness, size: COSTLY });
    cases.extend(GROWING.map(|size| Case { subject: Subject::Growth, size }));
    for size in SHARED {
        let sync = |mode| Case { subject: Subject::ColdSync(Program::KubeProxy(mode)), size };
        cases.extend(Mode::ALL.map(sync));
    }
    cases.push(Case { subject: Subject::ColdSync(Program::KubeProxy(Mode::Nftables)), size: NFTABLES });
    cases.extend(changes_and_memory(OURS, 1_000, COMPARED));
    for mode in Mode::ALL {
        cases.extend(changes_and_memory(Program::KubeProxy(mode), 10, COMPARED));
    }
    cases.extend(changes_and_memory(OURS, 1_000, NFTABLES));
    cases.extend(changes_and_memory(Program::KubeProxy(Mode::Nftables), 10, NFTABLES));
    cases
}

/// The measurements of docs/evidence/performance/data-plane.txt.
pub(super) fn data_plane() -> Vec<Case> {
    let of_size = |services| Case { subject: Subject::DataPlane(Effort::Whole), size: size(services, 1) };
    [1, 1_000, 10_000].map(of_size).to_vec()
}

/// The measurements of docs/evidence/performance/ejection.txt.
pub(super) fn ejection() -> Vec<Case> {
    let with = |ejecting| Case { subject: Subject::Ejection(ejecting, Effort::Whole), size: LARGE };
    [Ejecting::None, Ejecting::Active, Ejecting::All].map(with).to_vec()
}

/// The measurements of docs/evidence/performance/schedulers.txt.
pub(super) fn schedulers() -> Vec<Case> {
    let with = |nodes| Case { subject: Subject::Schedulers(Effort::Whole), size: size(nodes, 10) };
    [1, 10, 100].map(with).to_vec()
}

/// The measurements of docs/evidence/performance/published.txt.
pub(super) fn published() -> Vec<Case> {
    let programs = [(OURS, 20), (Program::KubeProxy(Mode::Nftables), 3), (Program::KubeProxy(Mode::Ipvs), 3)];
    let of_size =
        |size| programs.map(|(program, more)| Case { subject: Subject::Published(program, more), size });
    let mut cases = [MANY_ENDPOINTS, MANY_SERVICES, MANY_OF_BOTH].map(of_size).concat();
    cases.push(Case { subject: Subject::Core, size: CORE });
    cases.push(Case { subject: Subject::DataPlane(Effort::Whole), size: size(1_000, 1) });
    cases
}

/// One of each kind, and every mode of kube-proxy.
pub fn small() -> Vec<Case> {
    let mut cases = against_baseline(TINY);
    cases.extend(for_kube_ipvs(TINY, 10, 2));
    cases.push(Case { subject: Subject::Fairness, size: TINY });
    cases.extend([TINY, TINY_DOUBLED].map(|size| Case { subject: Subject::Growth, size }));
    let sync = |mode| Case { subject: Subject::ColdSync(Program::KubeProxy(mode)), size: TINY };
    cases.extend(Mode::ALL.map(sync));
    // What is looked at then is the same in all modes.
    cases.extend(changes_and_memory(Program::KubeProxy(Mode::Ipvs), 2, TINY));
    cases.push(Case { subject: Subject::Ejection(Ejecting::All, Effort::Tiny), size: TINY });
    cases.push(Case { subject: Subject::DataPlane(Effort::Tiny), size: TINY });
    cases.push(Case { subject: Subject::Schedulers(Effort::Tiny), size: TINY });
    // In ipvs mode kube-proxy takes half a minute to set up whatever little there is.
    let programs = [(OURS, 2), (Program::KubeProxy(Mode::Nftables), 1)];
    cases.extend(
        programs.map(|(program, more)| Case { subject: Subject::Published(program, more), size: TINY }),
    );
    cases.push(Case { subject: Subject::Core, size: TINY });
    cases
}

fn changes_and_memory(program: Program, changes: u32, size: Size) -> [Case; 2] {
    [Subject::EndpointChange(program, changes), Subject::Memory(program)]
        .map(|subject| Case { subject, size })
}

fn against_baseline(size: Size) -> Vec<Case> {
    let with = |binding| [Subject::KernelBaseline(binding), Subject::ColdSync(Program::KubeIpvs(binding))];
    Binding::BOTH.into_iter().flat_map(with).map(|subject| Case { subject, size }).collect()
}

fn for_kube_ipvs(size: Size, changes: u32, reconciles: u32) -> Vec<Case> {
    let with = |binding| {
        [Subject::FirstVip(binding), Subject::Reconcile(binding, reconciles), Subject::Restart(binding)]
    };
    let both = Binding::BOTH.into_iter().flat_map(with).chain([Subject::RollingUpdate]);
    let mut cases: Vec<_> = both.map(|subject| Case { subject, size }).collect();
    cases.extend(changes_and_memory(OURS, changes, size));
    cases
}

#[cfg(test)]
mod tests {
    use std::mem::discriminant;

    use super::*;

    #[test]
    fn every_kind_of_measurement_of_the_document_is_tried_out_in_a_tiny_size() {
        let small = small();
        for case in [full(), data_plane(), ejection(), schedulers(), published()].concat() {
            let same = |tiny: &Case| discriminant(&tiny.subject) == discriminant(&case.subject);
            assert!(small.iter().any(same), "{case}");
        }
    }

    #[test]
    fn no_measurement_is_made_twice() {
        for cases in [full(), data_plane(), ejection(), schedulers(), published(), small()] {
            for (number, case) in cases.iter().enumerate() {
                assert!(!cases[..number].contains(case), "{case}");
            }
        }
    }
}
