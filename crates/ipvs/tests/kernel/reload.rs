//! The module is unloaded and loaded again. In the test kernels it is built in, or others use it too: the
//! client is made to ask for a family of another number, which the kernel answers in the same way.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use ipvs::{Command, Error, Ipvs, KernelIpvs, Timeouts, wire::forget_family};

use super::support::{apply, in_new_namespace, pod, table, tcp, tcp_id};

const VIP: &str = "10.96.0.1";

fn served() -> [Command; 2] {
    [Command::AddVirtualServer(tcp(VIP, 80)), Command::AddRealServer(tcp_id(VIP, 80), pod("10.1.0.4", 80))]
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn requests_are_repeated_after_the_module_was_loaded_again() {
    in_new_namespace(|kernel| {
        apply(kernel, &served());
        let expected = table(kernel);
        let requests: [fn(&mut KernelIpvs); 7] = [
            |kernel| assert_eq!(kernel.virtual_servers().unwrap().len(), 1),
            |kernel| assert!(kernel.virtual_server(tcp_id(VIP, 80)).unwrap().is_some()),
            |kernel| assert_eq!(kernel.real_servers(tcp_id(VIP, 80)).unwrap().len(), 1),
            |kernel| assert_ne!(kernel.info().unwrap().version, (0, 0, 0)),
            |kernel| assert_ne!(kernel.timeouts().unwrap().tcp, 0),
            |kernel| kernel.set_timeouts(Timeouts::UNCHANGED.udp(60)).unwrap(),
            |kernel| kernel.zero(None).unwrap(),
        ];
        for request in requests {
            forget_family(kernel);
            request(kernel);
            assert_eq!(table(kernel), expected);
        }
        assert_eq!(kernel.summaries().unwrap().count(), 1, "the text was opened again");
        forget_family(kernel);
        kernel.flush().unwrap();
        assert_eq!(table(kernel), []);
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn commands_are_neither_done_nor_refused_after_the_module_was_loaded_again() {
    in_new_namespace(|kernel| {
        let [virtual_server, real_server] = served();
        let delete = Command::DeleteRealServer(tcp_id(VIP, 80), pod("10.1.0.4", 80).address);
        for commands in [vec![virtual_server, real_server], vec![delete]] {
            forget_family(kernel);
            let reloaded = kernel.apply(&commands);
            assert!(matches!(reloaded, Err(Error::Reloaded)), "{reloaded:?}");
            apply(kernel, &commands);
        }
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_kernel_is_prepared_again_once_each_time_the_module_was_loaded_again() {
    in_new_namespace(|_| {
        let prepared = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&prepared);
        let mut kernel = KernelIpvs::open().unwrap().on_reload(move |kernel| {
            kernel.set_timeouts(Timeouts::UNCHANGED.udp(77)).unwrap();
            count.fetch_add(1, Ordering::Relaxed);
        });
        kernel.virtual_servers().unwrap();
        // Nothing says this but a family that is not there.
        apply(&mut kernel, &[Command::AddVirtualServer(tcp(VIP, 80))]);
        let missing = Command::EditRealServer(tcp_id(VIP, 80), pod("10.1.0.4", 80));
        apply(&mut kernel, &[missing]);
        assert_eq!(prepared.load(Ordering::Relaxed), 0);
        for time in 1..=2 {
            forget_family(&mut kernel);
            assert_eq!(kernel.timeouts().unwrap().udp, 77);
            kernel.virtual_servers().unwrap();
            assert_eq!(prepared.load(Ordering::Relaxed), time);
        }
    });
}
