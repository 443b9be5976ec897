//! Who answers whom, and whose address it sees: the tables in tests/packets, packet by packet.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on must stop"
)]

mod cluster;
mod packets;

#[test]
fn the_tables_have_hundreds_of_rows_and_each_table_is_followed() {
    let tests = include_str!("kernel_packets.rs");
    let mut rows = 0;
    for name in packets::names() {
        assert!(tests.contains(&format!("packets::follow({name:?})")), "no test follows {name}");
        rows += packets::read(&name).rows().count();
    }
    assert!(rows >= 300, "{rows} rows");
}

#[test]
fn what_a_table_does_not_understand_is_an_error_with_its_line() {
    let table = |line: &str| {
        packets::Table::parse(&format!("service web endpoints=pod-1 node-port=30080\ndaemon\n{line}\n"))
    };
    for row in ["client -> web cluster-ip tcp 80 : pod-1 sees node", "node -> pod-2 ping4 : echo # why", ""] {
        assert!(table(row).is_ok(), "{:?}", table(row));
    }
    for (row, error) in [
        ("client -> web cluster-ip tcp 80", "no `:`"),
        ("client web cluster-ip tcp 80 : refused", "no `->`"),
        ("nobody -> web cluster-ip tcp 80 : refused", "\"nobody\""),
        ("client -> web tcp 80 : refused", "\"web\""),
        ("client -> shop cluster-ip tcp 80 : refused", "no Service shop"),
        ("client -> web cluster tcp 80 : refused", "no way cluster"),
        ("client -> web cluster-ip icmp 80 : refused", "no protocol icmp"),
        ("client -> web cluster-ip tcp46 80 : refused", "no protocol tcp46"),
        ("client -> web cluster-ip tcp 80000 : refused", "no port 80000"),
        ("client -> web cluster-ip tcp : refused", "no port tcp"),
        ("client -> web node-port tcp 30081 : refused", "not the NodePort of web"),
        ("client -> web cluster-ip tcp 80 : silence", "no outcome"),
        ("client -> web cluster-ip tcp 80 : pod-4 sees node", "\"pod-4\""),
        ("client -> web cluster-ip tcp 80 : sees node", "no outcome"),
        ("client -> web cluster-ip tcp 80 : pod-1 sees nobody", "\"nobody\""),
        ("service late endpoints=pod-1", "before the daemon"),
    ] {
        let found = table(row).unwrap_err();
        assert!(found.contains("line 3: ") && found.contains(error), "{row}: {found}");
    }
    for (service, error) in [
        ("service web colour=red", "no field colour"),
        ("service web endpoints=pod-9", "\"pod-9\""),
        ("service web external-policy=local", "\"local\""),
        ("service web load-balancer-of=shop", "no Service shop"),
        ("client -> node tcp 22 : refused", "before the daemon"),
    ] {
        let found = packets::Table::parse(service).unwrap_err();
        assert!(found.contains("line 1: ") && found.contains(error), "{service}: {found}");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn masquerading_follows_the_table() {
    packets::follow("masquerading.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_pod_reaches_itself_in_every_way() {
    packets::follow("hairpin.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_endpoints_are_those_of_the_policy_and_none_is_a_refusal() {
    packets::follow("policies.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn what_no_service_serves_at_a_vip_is_rejected_and_pings_are_answered() {
    packets::follow("vips.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn source_ranges_let_in_whom_they_name() {
    packets::follow("source-ranges.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_host_port_takes_nothing_that_a_service_serves() {
    packets::follow("host-ports.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_packet_mark_is_the_configured_bit_and_leaves_others_alone() {
    packets::follow("marks.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_closed_host_firewall_lets_services_through_where_the_daemon_is_told_to() {
    packets::follow("host-firewall.txt");
}
