//! The tables in tests/packets, packet by packet: who asks, where, by what; who answers, and whose address it sees.
//!
//! As calls in Rust each row would be ten lines, and a missing combination would go unseen.
//!
//! A table is a text file in tests/packets. `#` begins a comment. First come the Services, one a line:
//!
//! ```text
//! service web  endpoints=pod-1,pod-3  node-port=30080  external-policy=Local
//! ```
//!
//! Each has a ClusterIP, an external IP and a load balancer's address in both families, and serves port 80 by
//! TCP, UDP and SCTP, unless its fields ([`table::Service`]) say otherwise.
//!
//! Then come steps. `daemon ARGUMENT…` starts the daemon anew, `nft FILE` and `iptables FILE` load rules of another
//! program on the node, and everything else is a row:
//!
//! ```text
//! client  -> web cluster-ip  any  80  : pod-1 pod-3 sees node
//! client  -> web cluster-ip  tcp4 81  : refused
//! client  -> web cluster-ip  ping     : echo
//! client  -> node            tcp  22  : node sees client
//! ```
//!
//! `tunnel client to pod-1 for web load-balancer` is a step too: from then on the client puts what it sends there into
//! packets for the pod, as a node does that serves by direct return. `tunnel pod-2 as node-2 to pod-1 for …` gives those
//! the source of another host.
//!
//! `any` is TCP, UDP and SCTP, one after the other; each is asked in both families unless a 4 or a 6 follows.
//! Round robin leads to every real server in turn: all that are named have to answer, and no others.
//! `sees node` is the node's address on its link to the one who answers, as whatever is masqueraded has it;
//! `sees node-ip` is the address under which the outside knows the node.
//!
//! ```text
//!   client 192.168.50.2 ───┐                ┌─── pod-1, pod-2
//!   office 192.168.60.2 ─── node ───────────┤
//!                          192.168.50.1     └─── node-2 192.168.70.2 ─── pod-3
//! ```

mod network;
mod parse;
mod run;
mod table;

use std::{fs, path::PathBuf};

use ipvs::Protocol;
use testkit::lab::Lab;

use self::{
    network::Network,
    table::{Step, Table},
};

/// Sends all packets of a table and compares. Reports all differences at once.
fn follow(name: &str) {
    follow_with(name, &[]);
}

/// The same, with these arguments beside those that the table has for the daemon.
fn follow_with(name: &str, more: &[&str]) {
    let table = read(name);
    let mut network = Network::new(&table.services);
    let (mut asked, mut otherwise) = (0, Vec::new());
    for step in &table.steps {
        match step {
            Step::Daemon(arguments) => {
                let arguments = arguments.iter().map(String::as_str).chain(more.iter().copied());
                network.restart(&arguments.collect::<Vec<_>>());
            }
            Step::Nft(file) => network.load("nft", &["-f"], &directory().join(file)),
            Step::Iptables(file) => {
                for restore in ["iptables-restore", "ip6tables-restore"] {
                    network.load(restore, &[], &directory().join(file));
                }
            }
            Step::Tunnel { from, like, pod, service } => network.tunnel(from, like, pod, service),
            Step::Rows(rows) => {
                let answers = run::ask(&network, rows);
                network.daemon_still_runs();
                asked += answers.len();
                otherwise.extend(answers.into_iter().filter(run::Answered::is_otherwise));
            }
        }
    }
    let rows = table.rows().count();
    println!("{name}: {rows} rows, asked in {asked} ways");
    assert!(asked >= rows, "rows were left out");
    if !Lab::protocols().contains(&Protocol::Sctp) {
        println!("ABSENT: this kernel has no SCTP");
    }
    assert!(
        otherwise.is_empty(),
        "{} of {asked} are otherwise:\n{}",
        otherwise.len(),
        run::report(&otherwise)
    );
}

/// The names of all tables.
fn names() -> Vec<String> {
    let files = fs::read_dir(directory()).unwrap().map(|file| file.unwrap().path());
    let tables = files.filter(|file| file.extension().is_some_and(|extension| extension == "txt"));
    tables.map(|file| file.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

/// The table in a file.
fn read(name: &str) -> Table {
    let text = fs::read_to_string(directory().join(name)).unwrap();
    Table::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/packets")
}

#[test]
fn the_tables_have_hundreds_of_rows_and_each_table_is_followed() {
    let tests = include_str!("tables.rs");
    let mut rows = 0;
    for name in names() {
        assert!(tests.contains(&format!("follow({name:?})")), "no test follows {name}");
        rows += read(&name).rows().count();
    }
    assert!(rows >= 300, "{rows} rows");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn pods_see_their_client_or_the_node_by_kind_of_address_policy_and_who_asks() {
    follow("masquerading.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_pod_that_is_its_own_client_sees_the_node_in_every_way() {
    follow("hairpin.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_policy_s_pods_answer_and_without_any_the_client_is_refused() {
    follow("policies.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn what_no_service_serves_at_a_vip_is_rejected_and_pings_are_answered() {
    follow("vips.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn what_no_service_serves_at_a_vip_that_is_a_route_is_rejected_all_the_same() {
    follow_with("vips.txt", &["--vip-binding=route"]);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn refused_external_ips_take_nothing_from_their_owners() {
    follow("hostile.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn with_vips_as_routes_they_take_nothing_either() {
    follow_with("hostile.txt", &["--vip-binding=route"]);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn only_nodes_may_send_what_leaves_the_tunnel() {
    follow("tunnels.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn with_vips_as_addresses_everyone_is_answered_and_seen_with_their_own_address() {
    follow("bindings.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn with_vips_as_routes_the_same_are_answered_and_seen_as_the_same() {
    follow_with("bindings.txt", &["--vip-binding=route"]);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn source_ranges_admit_the_clients_that_they_name_and_no_others() {
    follow("source-ranges.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_host_port_takes_nothing_that_a_service_serves() {
    follow("host-ports.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_packet_mark_is_the_configured_bit_and_leaves_others_alone() {
    follow("marks.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_closed_host_firewall_lets_services_through_if_the_daemon_opens_it() {
    follow("host-firewall.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn where_iptables_drop_what_kube_proxy_accepts_is_accepted_and_nothing_else() {
    follow("iptables.txt");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_node_is_answered_where_pods_and_cluster_ips_share_a_range() {
    follow("ranges.txt");
}
