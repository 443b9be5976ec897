//! Commands are idempotent, whatever the kernel's verbs say, and each kind of failure has its own error.

use std::{os::unix::process::CommandExt, process::Command as Process};

use ipvs::{Command, Error, Forwarding, Ipvs, KernelIpvs, Scheduler};
use nix::errno::Errno;

use super::support::{apply, in_new_namespace, pod, table, tcp, tcp_id};

const VIP: &str = "10.96.0.1";

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_missing_virtual_server_has_no_real_servers() {
    in_new_namespace(|kernel| {
        assert_eq!(kernel.real_servers(tcp_id(VIP, 80)).unwrap(), []);
        assert_eq!(kernel.virtual_server(tcp_id(VIP, 80)).unwrap(), None);
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn adding_what_exists_makes_it_so() {
    in_new_namespace(|kernel| {
        let id = tcp_id(VIP, 80);
        apply(
            kernel,
            &[Command::AddVirtualServer(tcp(VIP, 80)), Command::AddRealServer(id, pod("10.1.0.4", 80))],
        );
        let mut changed = tcp(VIP, 80).persistent(60);
        changed.scheduler = Scheduler::LC;
        let real_server = pod("10.1.0.4", 80).weight(7);
        apply(kernel, &[Command::AddVirtualServer(changed.clone()), Command::AddRealServer(id, real_server)]);
        let found = table(kernel);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0.config, changed);
        assert_eq!(found[0].1.iter().map(|server| server.config).collect::<Vec<_>>(), [real_server]);
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn editing_what_is_missing_creates_it() {
    in_new_namespace(|kernel| {
        let id = tcp_id(VIP, 80);
        let real_servers = [pod("10.1.0.4", 80), pod("10.1.0.5", 80).weight(3)];
        // One with its virtual server missing, one with the virtual server there.
        apply(
            kernel,
            &[Command::EditVirtualServer(tcp(VIP, 80)), Command::EditRealServer(id, real_servers[0])],
        );
        apply(kernel, &[Command::EditRealServer(id, real_servers[1])]);
        let mut found: Vec<_> = kernel.real_servers(id).unwrap().iter().map(|server| server.config).collect();
        found.sort();
        assert_eq!(found, real_servers);
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn deleting_twice_does_not_fail() {
    in_new_namespace(|kernel| {
        let (id, real_server) = (tcp_id(VIP, 80), pod("10.1.0.4", 80));
        let delete = [Command::DeleteRealServer(id, real_server.address), Command::DeleteVirtualServer(id)];
        apply(kernel, &delete);
        apply(kernel, &[Command::AddVirtualServer(tcp(VIP, 80)), delete[0].clone()]);
        apply(kernel, &[Command::AddRealServer(id, real_server)]);
        apply(kernel, &delete);
        assert_eq!(table(kernel), []);
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn last_command_about_an_object_wins_even_if_the_first_needed_another_verb() {
    in_new_namespace(|kernel| {
        let (id, real_server) = (tcp_id(VIP, 80), pod("10.1.0.4", 80));
        let setup = [Command::AddVirtualServer(tcp(VIP, 80)), Command::AddRealServer(id, real_server)];
        apply(kernel, &setup);
        apply(kernel, &[setup[1].clone(), Command::EditRealServer(id, real_server.weight(9))]);
        assert_eq!(kernel.real_servers(id).unwrap()[0].config.weight, 9);
        apply(kernel, &[setup[0].clone(), setup[1].clone(), Command::DeleteVirtualServer(id)]);
        assert_eq!(table(kernel), []);
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_missing_scheduler_names_its_module_and_stops_nothing_else() {
    in_new_namespace(|kernel| {
        let mut fancy = tcp(VIP, 80);
        fancy.scheduler = "fancy".parse().unwrap();
        let commands = [
            Command::AddVirtualServer(fancy.clone()),
            Command::AddRealServer(fancy.id, pod("10.1.0.4", 80)),
            Command::AddVirtualServer(tcp(VIP, 81)),
            Command::EditVirtualServer(fancy),
        ];
        let failed = kernel.apply(&commands).unwrap();
        let refused: Vec<_> = failed.iter().map(|failure| (failure.index, failure.error.errno())).collect();
        assert_eq!(refused, [(0, Errno::ENOENT as i32), (1, Errno::ESRCH as i32), (3, Errno::ENOENT as i32)]);
        let reason = failed[0].error.message().unwrap();
        assert!(reason.contains("ip_vs_fancy"), "{reason}");
        assert_eq!(failed[1].error.message(), Some("there is no virtual server TCP 10.96.0.1:80"));
        assert_eq!(kernel.virtual_servers().unwrap().len(), 1);
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn refused_commands_have_the_errno_of_the_kernel() {
    in_new_namespace(|kernel| {
        apply(kernel, &[Command::AddVirtualServer(tcp(VIP, 80))]);
        let lower_above_upper = pod("10.1.0.4", 80).thresholds(1, 2);
        let other_family = pod("fd01::4", 80).forwarding(Forwarding::Route);
        for (real_server, errno) in [
            (pod("224.0.0.1", 80), Errno::EINVAL),
            (pod("0.0.0.0", 80), Errno::EINVAL),
            (other_family, Errno::EINVAL),
            (pod("10.1.0.4", 80).weight(1 << 31), Errno::ERANGE),
            (lower_above_upper, Errno::ERANGE),
        ] {
            let failed = kernel.apply(&[Command::AddRealServer(tcp_id(VIP, 80), real_server)]).unwrap();
            assert_eq!(failed[0].error.errno(), errno as i32, "{real_server:?}");
            assert!(failed[0].error.message().is_some());
        }
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_virtual_server_of_an_unknown_protocol_hides_no_other() {
    in_new_namespace(|kernel| {
        apply(kernel, &[Command::AddVirtualServer(tcp(VIP, 80))]);
        // The kernel takes any protocol.
        let mut socket = netlink::Socket::open(netlink::Protocol::Generic).unwrap();
        let family = socket.generic_family("IPVS").unwrap();
        let mut esp = netlink::Batch::default();
        esp.generic(family, 1, 1, |e| {
            e.nest(1, |e| {
                e.u16(1, 2);
                e.u16(2, 50);
                e.bytes(3, &[10, 96, 0, 9]);
                e.u16_be(4, 1);
                e.string(6, "rr");
                e.bytes(7, &[0; 8]);
                e.u32(8, 0);
                e.u32(9, u32::MAX);
            });
        });
        if let Err(error) = socket.execute(&mut esp) {
            println!("ABSENT: this kernel refuses other protocols: {error}");
            return;
        }
        let found = kernel.virtual_servers().unwrap();
        assert_eq!(found.iter().map(|server| server.config.id).collect::<Vec<_>>(), [tcp_id(VIP, 80)]);
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn without_the_capability_nothing_is_permitted() {
    const AGAIN: &str = "IPVS_TEST_WITHOUT_CAPABILITY";
    const UNPRIVILEGED: u32 = 65_534;
    if std::env::var_os(AGAIN).is_some() {
        return everything_is_refused();
    }
    // This user has no capabilities. Threads share a user, so this test runs again as another program.
    let output = Process::new("/proc/self/exe")
        .args(["--include-ignored", "--exact"])
        .arg("outcomes::without_the_capability_nothing_is_permitted")
        .env(AGAIN, "1")
        .uid(UNPRIVILEGED)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
}

fn everything_is_refused() {
    let mut kernel = KernelIpvs::open().unwrap();
    let id = tcp_id(VIP, 80);
    let errors = [
        kernel.virtual_servers().unwrap_err(),
        kernel.virtual_server(id).unwrap_err(),
        kernel.real_servers(id).unwrap_err(),
        kernel.apply(&[Command::DeleteVirtualServer(id)]).unwrap_err(),
        kernel.info().unwrap_err(),
        kernel.timeouts().unwrap_err(),
        kernel.zero(None).unwrap_err(),
        kernel.flush().unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::NotPermitted { .. }), "{error:?}");
    }
}
