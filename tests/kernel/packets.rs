//! The tables in tests/packets, packet by packet: who answers, and which client address it sees.

use crate::packet_table;

#[test]
fn the_tables_have_hundreds_of_rows_and_each_table_is_followed() {
    let tests = include_str!("packets.rs");
    let mut rows = 0;
    for name in packet_table::names() {
        assert!(tests.contains(&format!("packet_table::follow({name:?})")), "no test follows {name}");
        rows += packet_table::read(&name).rows().count();
    }
    assert!(rows >= 300, "{rows} rows");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn pods_see_their_client_or_the_node_by_kind_of_address_policy_and_who_asks() {
    packet_table::follow("masquerading.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_pod_that_is_its_own_client_sees_the_node_in_every_way() {
    packet_table::follow("hairpin.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_policy_s_pods_answer_and_without_any_the_client_is_refused() {
    packet_table::follow("policies.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn what_no_service_serves_at_a_vip_is_rejected_and_pings_are_answered() {
    packet_table::follow("vips.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn what_no_service_serves_at_a_vip_that_is_a_route_is_rejected_all_the_same() {
    packet_table::follow_with("vips.txt", &["--vip-binding=route"]);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn refused_external_ips_take_nothing_from_their_owners() {
    packet_table::follow("hostile.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn with_vips_as_routes_they_take_nothing_either() {
    packet_table::follow_with("hostile.txt", &["--vip-binding=route"]);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn only_nodes_may_send_what_leaves_the_tunnel() {
    packet_table::follow("tunnels.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn with_vips_as_addresses_everyone_is_answered_and_seen_with_their_own_address() {
    packet_table::follow("bindings.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn with_vips_as_routes_the_same_are_answered_and_seen_as_the_same() {
    packet_table::follow_with("bindings.txt", &["--vip-binding=route"]);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn source_ranges_let_in_whom_they_name_and_nobody_else() {
    packet_table::follow("source-ranges.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_host_port_takes_nothing_that_a_service_serves() {
    packet_table::follow("host-ports.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_packet_mark_is_the_configured_bit_and_leaves_others_alone() {
    packet_table::follow("marks.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_closed_host_firewall_lets_services_through_where_the_daemon_is_told_to() {
    packet_table::follow("host-firewall.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn where_iptables_drop_what_kube_proxy_accepts_is_accepted_and_nothing_else() {
    packet_table::follow("iptables.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_node_is_answered_where_pods_and_cluster_ips_share_a_range() {
    packet_table::follow("ranges.txt");
}
