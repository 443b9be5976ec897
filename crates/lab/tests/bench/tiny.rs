//! Every measurement in a tiny size: as root, on a kernel with IPVS.

use lab::bench::{
    case::{Binding, Case, Ejecting, Program, Subject},
    data_plane::Effort,
    plan::{self, TINY, TINY_DOUBLED},
};
use testkit::kube_proxy::Mode;

const ADDRESS: Binding = Binding::Address;
const ROUTE: Binding = Binding::Route;
const KUBE_IPVS: Program = Program::KubeIpvs(ROUTE);

/// A test for each measurement, and one that none is missing.
macro_rules! measurements {
    ($($name:ident: $subject:expr, $size:expr;)*) => {
        $(
            #[test]
            #[ignore = "needs root and ip_vs: cargo xtask test --tier bench"]
            fn $name() -> anyhow::Result<()> {
                measure(Case { subject: $subject, size: $size })
            }
        )*

        #[test]
        fn every_measurement_of_the_small_plan_is_a_test() {
            let tests = [$(Case { subject: $subject, size: $size }),*];
            assert_eq!(tests.as_slice(), plan::small());
        }
    };
}

measurements! {
    kernel_baseline_with_routes: Subject::KernelBaseline(ROUTE), TINY;
    cold_sync_with_routes: Subject::ColdSync(Program::KubeIpvs(ROUTE)), TINY;
    kernel_baseline_with_addresses: Subject::KernelBaseline(ADDRESS), TINY;
    cold_sync_with_addresses: Subject::ColdSync(Program::KubeIpvs(ADDRESS)), TINY;
    first_vip_with_routes: Subject::FirstVip(ROUTE), TINY;
    reconcile_with_routes: Subject::Reconcile(ROUTE, 2), TINY;
    restart_with_routes: Subject::Restart(ROUTE), TINY;
    first_vip_with_addresses: Subject::FirstVip(ADDRESS), TINY;
    reconcile_with_addresses: Subject::Reconcile(ADDRESS, 2), TINY;
    restart_with_addresses: Subject::Restart(ADDRESS), TINY;
    rolling_update: Subject::RollingUpdate, TINY;
    endpoint_change: Subject::EndpointChange(KUBE_IPVS, 10), TINY;
    memory: Subject::Memory(KUBE_IPVS), TINY;
    fairness: Subject::Fairness, TINY;
    growth: Subject::Growth, TINY;
    growth_of_twice_as_much: Subject::Growth, TINY_DOUBLED;
    cold_sync_of_kube_proxy_ipvs: Subject::ColdSync(Program::KubeProxy(Mode::Ipvs)), TINY;
    cold_sync_of_kube_proxy_nftables: Subject::ColdSync(Program::KubeProxy(Mode::Nftables)), TINY;
    cold_sync_of_kube_proxy_iptables: Subject::ColdSync(Program::KubeProxy(Mode::Iptables)), TINY;
    endpoint_change_of_kube_proxy: Subject::EndpointChange(Program::KubeProxy(Mode::Ipvs), 2), TINY;
    memory_of_kube_proxy: Subject::Memory(Program::KubeProxy(Mode::Ipvs)), TINY;
    ejection: Subject::Ejection(Ejecting::All, Effort::Tiny), TINY;
    data_plane: Subject::DataPlane(Effort::Tiny), TINY;
    schedulers: Subject::Schedulers(Effort::Tiny), TINY;
    published: Subject::Published(KUBE_IPVS, 2), TINY;
    published_of_kube_proxy: Subject::Published(Program::KubeProxy(Mode::Nftables), 1), TINY;
    core: Subject::Core, TINY;
}

fn measure(case: Case) -> anyhow::Result<()> {
    let Case { subject, .. } = case;
    let needs_kube_proxy = subject.is_of_kube_proxy() || matches!(subject, Subject::DataPlane(_));
    if needs_kube_proxy && testkit::kube_proxy::binary().is_none() {
        println!("SKIP: no kube-proxy: KUBE_PROXY_BIN is not set");
        return Ok(());
    }
    println!("{case}: {:?}", lab::bench::measure(case)?);
    Ok(())
}
