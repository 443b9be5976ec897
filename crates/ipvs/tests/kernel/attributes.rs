//! Each attribute by itself.

use ipvs::{
    Family, Forwarding, Ipvs, Protocol, Scheduler, ServiceFlags, Tunnel, TunnelKind, VirtualServer,
    VirtualServerId,
};

use super::support::{added, added_real_server, address, in_new_namespace, pod, tcp};

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn every_protocol_in_both_families_round_trips() {
    in_new_namespace(|kernel| {
        for ip in ["10.96.0.1", "fd00::1", "::ffff:1.2.3.4"] {
            for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
                let server = VirtualServer::new(address(protocol, ip, 65_535), Scheduler::RR);
                assert_eq!(added(kernel, &server).unwrap().config, server);
            }
        }
        assert_eq!(kernel.virtual_servers().unwrap().len(), 9);
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn every_scheduler_round_trips() {
    in_new_namespace(|kernel| {
        for (port, scheduler) in (1..).zip(Scheduler::ALL) {
            for ip in ["10.96.0.1", "fd00::1"] {
                let server = VirtualServer::new(address(Protocol::Tcp, ip, port), scheduler);
                if let Some(found) = added(kernel, &server) {
                    assert_eq!(found.config, server);
                }
            }
        }
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn persistence_round_trips_with_every_prefix_length() {
    in_new_namespace(|kernel| {
        for (ip, lengths) in [("10.96.0.1", 1..=32), ("fd00::1", 1..=128)] {
            for prefix_length in lengths {
                let server = tcp(ip, prefix_length.into())
                    .persistent(10_800 + u32::from(prefix_length))
                    .prefix_length(prefix_length);
                assert_eq!(added(kernel, &server).unwrap().config, server);
            }
        }
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn flags_round_trip_and_can_be_taken_back() {
    in_new_namespace(|kernel| {
        for bits in 0..0x40 {
            let mut server = VirtualServer::new(address(Protocol::Udp, "10.96.0.1", 53), Scheduler::MH);
            server.flags = ServiceFlags::from_bits_retain(bits) & ServiceFlags::all();
            let Some(found) = added(kernel, &server) else { return };
            assert_eq!(found.config.flags, server.flags, "the virtual server of before is changed to these");
        }
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_persistence_engine_round_trips_and_can_be_taken_back() {
    in_new_namespace(|kernel| {
        let mut server =
            VirtualServer::new(address(Protocol::Udp, "10.96.0.1", 5060), Scheduler::RR).persistent(60);
        server.persistence_engine = Some("sip".into());
        let Some(found) = added(kernel, &server) else { return };
        assert_eq!(found.config, server);
        server.persistence_engine = None;
        assert_eq!(added(kernel, &server).unwrap().config, server);
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn firewall_marks_round_trip_and_are_kept_apart_by_family() {
    in_new_namespace(|kernel| {
        for mark in [1, u32::MAX] {
            for family in Family::BOTH {
                let server =
                    VirtualServer::new(VirtualServerId::Mark { family, mark }, Scheduler::RR).persistent(60);
                assert_eq!(added(kernel, &server).unwrap().config, server);
            }
        }
        assert_eq!(kernel.virtual_servers().unwrap().len(), 4);
        let server = VirtualServer::new(VirtualServerId::Mark { family: Family::V6, mark: 1 }, Scheduler::RR);
        assert_eq!(added_real_server(kernel, &server, pod("fd01::9", 0)).config, pod("fd01::9", 0));
        assert_eq!(kernel.real_servers(VirtualServerId::Mark { family: Family::V4, mark: 1 }).unwrap(), []);
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn weights_and_thresholds_round_trip() {
    in_new_namespace(|kernel| {
        for (ip, pod_ip) in [("10.96.0.1", "10.1.0.4"), ("fd00::1", "fd01::4")] {
            for weight in [0, 1, 65_535, 65_536, 70_000, i32::MAX.unsigned_abs()] {
                let real_server = pod(pod_ip, 8080).weight(weight).thresholds(weight, weight / 2);
                assert_eq!(added_real_server(kernel, &tcp(ip, 80), real_server).config, real_server);
            }
        }
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn every_forwarding_method_round_trips() {
    in_new_namespace(|kernel| {
        let methods = [
            Forwarding::Masquerade,
            Forwarding::Local,
            Forwarding::Tunnel,
            Forwarding::Route,
            Forwarding::Bypass,
        ];
        for forwarding in methods {
            let real_server = pod("10.1.0.4", 80).forwarding(forwarding);
            assert_eq!(added_real_server(kernel, &tcp("10.96.0.1", 80), real_server).config, real_server);
        }
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn every_encapsulation_round_trips() {
    in_new_namespace(|kernel| {
        let tunnels = [
            Tunnel::default(),
            Tunnel::new(TunnelKind::Gue).port(6080),
            Tunnel::new(TunnelKind::Gue).port(6080).flags(1),
            Tunnel::new(TunnelKind::Gue).port(65_535).flags(2),
            Tunnel::new(TunnelKind::Gre),
            Tunnel::new(TunnelKind::Gre).flags(1),
        ];
        // The last is a tunnel into the other family.
        for (ip, pod_ip) in [("10.96.0.1", "10.1.0.4"), ("fd00::1", "fd01::4"), ("fd00::1", "10.1.0.4")] {
            for tunnel in tunnels {
                let real_server = pod(pod_ip, 80).tunnel(tunnel);
                assert_eq!(added_real_server(kernel, &tcp(ip, 80), real_server).config, real_server);
            }
        }
        assert_eq!(kernel.real_servers(tcp("fd00::1", 80).id).unwrap().len(), 2);
    });
}
