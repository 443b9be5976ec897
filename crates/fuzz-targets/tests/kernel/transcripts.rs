//! What a real kernel says to each conversation is understood the same when it is said again without it.
//!
//! With `KUBE_IPVS_TRANSCRIPTS=DIRECTORY` in the environment it is written there too, as beginnings of corpora.
use std::{
    env,
    fmt::Debug,
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
    thread,
};

use ::dummy_interface::{DummyInterface, KernelDummyInterface, Operation as DeviceOperation, VipBinding};
use ::ipvs::{
    Command as IpvsCommand, Family, Ipvs, KernelIpvs, Protocol, RealServer, RealServerAddress, Scheduler,
    ServiceAddress, Tunnel, TunnelKind, VirtualServer, VirtualServerId,
};
use fuzz_targets::{conntrack, dummy_interface, host_firewall, ipvs, leftovers, nf_tables};
use netfilter::{
    AllowedSource, Element, HairpinFlow, HealthCheckPort, KernelNetfilter, Netfilter, Operation, PodPort,
};
use netlink::Transcript;
use nix::sched::{CloneFlags, unshare};

/// Has the conversation with the kernel of a fresh network namespace, and then with what that has said.
fn compare<T: Debug + PartialEq + Send>(
    name: &str,
    prepare: impl FnOnce() + Send,
    converse: impl Fn() -> T + Sync,
) -> T {
    let transcript = Transcript::default();
    let recorded = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            prepare();
            transcript.record(&converse)
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let bytes = transcript.encode();
    if let Some(directory) = env::var_os("KUBE_IPVS_TRANSCRIPTS") {
        let directory = Path::new(&directory).join(name);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("recorded"), &bytes).unwrap();
    }
    let transcript = Transcript::decode(&bytes);
    assert_eq!(transcript.replay(converse), recorded);
    recorded
}

/// An interface that leads everywhere.
const NODE: &str = "link set lo up
link add eth0 type dummy
link set eth0 up
address add 192.0.2.1/24 dev eth0
address add 2001:db8::1/64 dev eth0 nodad
route add default dev eth0
route add fd00::/16 dev eth0
";

/// Feeds a script to a program.
fn run(program: &str, arguments: &[&str], script: &str) {
    let mut running = Command::new(program).args(arguments).stdin(Stdio::piped()).spawn().unwrap();
    running.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(running.wait().unwrap().success(), "{program}: {script}");
}

fn address(protocol: Protocol, ip: &str, port: u16) -> ServiceAddress {
    ServiceAddress { protocol, ip: ip.parse().unwrap(), port }
}

fn virtual_servers() -> Vec<IpvsCommand> {
    let [v4, v6] = ["10.96.0.1", "fd00::1"].map(|ip| VirtualServerId::from(address(Protocol::Tcp, ip, 443)));
    let mark = VirtualServerId::Mark { family: Family::V4, mark: 42 };
    let server = |ip: &str, port| RealServer::masquerade(ip.parse().unwrap(), port);
    let tunnelled = server("192.168.7.10", 0).tunnel(Tunnel::new(TunnelKind::Gue).port(6080).flags(1));
    vec![
        IpvsCommand::AddVirtualServer(VirtualServer::new(v4, Scheduler::RR).persistent(10_800)),
        IpvsCommand::AddRealServer(v4, server("10.1.0.4", 6443).weight(70_000)),
        IpvsCommand::AddRealServer(v4, server("10.1.0.5", 6443).thresholds(9, 0)),
        IpvsCommand::AddVirtualServer(VirtualServer::new(v6, Scheduler::MH)),
        IpvsCommand::AddRealServer(v6, server("fd00:1::4", 6443)),
        IpvsCommand::AddVirtualServer(VirtualServer::new(mark, Scheduler::RR)),
        IpvsCommand::AddRealServer(mark, tunnelled),
    ]
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn virtual_servers_are_read_as_before() {
    let prepare = || {
        run("ip", &["-batch", "-"], NODE);
        assert_eq!(KernelIpvs::open().unwrap().apply(&virtual_servers()).unwrap(), []);
    };
    let answers = compare("ipvs", prepare, ipvs::converse).unwrap();
    let counts: Vec<_> = answers.table.iter().map(|(_, real_servers)| real_servers.len()).collect();
    assert_eq!(counts.iter().sum::<usize>(), 4, "{counts:?}");
    assert_eq!(answers.refused, Some(1), "a real server of a virtual server that is not there");
}

fn elements() -> Vec<Operation> {
    let both = |port| [address(Protocol::Tcp, "10.96.0.1", port), address(Protocol::Udp, "fd00::1", port)];
    let of = |address: ServiceAddress| {
        let first = if address.ip.is_ipv4() { "198.51.100.0" } else { "2001:db8::" }.parse().unwrap();
        let last = if address.ip.is_ipv4() { "198.51.100.255" } else { "2001:db8::ffff" }.parse().unwrap();
        let (ip, family) = (address.ip, Family::from(address.ip));
        let pod = RealServerAddress { ip, port: 8080 };
        [
            Element::Vip(ip),
            Element::ClusterIp(address),
            Element::External(ServiceAddress { port: 81, ..address }),
            Element::ExternalLocal(ServiceAddress { port: 82, ..address }),
            Element::LocalClientsOnly(ServiceAddress { port: 82, ..address }),
            Element::Restricted(address),
            Element::AllowedSource(AllowedSource { to: address, first, last }),
            Element::Hairpin(HairpinFlow { protocol: address.protocol, pod }),
            Element::HealthCheckPort(HealthCheckPort { family, port: 30_001 }),
            Element::Untracked(address),
            Element::UntrackedEndpoint(PodPort { protocol: address.protocol, pod }),
            Element::TrackedClient(ip),
        ]
    };
    both(80).into_iter().flat_map(of).map(Operation::AddElement).collect()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn our_tables_are_read_as_before() {
    let prepare = || {
        let mut kernel = KernelNetfilter::open(&nf_tables::policy()).unwrap();
        kernel.apply(&[&Family::BOTH.map(Operation::InstallTable)[..], &elements()].concat()).unwrap();
    };
    let answers = compare("nf_tables", prepare, nf_tables::converse).unwrap();
    assert_eq!(answers.installed, Family::BOTH.into());
    assert_eq!(answers.elements.len(), elements().len());
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_hosts_chains_are_read_as_before() {
    let prepare = || {
        run(
            "nft",
            &["-f", "-"],
            "table inet filter {
                chain input {
                    type filter hook input priority 0; policy drop;
                    ct state established,related accept
                    meta mark & 0x1000 == 0x1000 accept
                    counter log comment \"kube-ipvs\"
                    ip saddr { 10.0.0.0/8, 192.0.2.1 } tcp dport 22 accept
                }
                chain forward { type filter hook forward priority 0; limit rate 5/second accept; reject; }
            }
            table ip6 sleeping {
                flags dormant;
                chain input { type filter hook input priority 0; drop; }
            }\n",
        );
        let iptables = "*filter\n:FORWARD DROP\n-A INPUT -m mark --mark 0x1000/0x1000 -j ACCEPT\n\
             -A INPUT -m comment --comment why -j REJECT\nCOMMIT\n";
        run("iptables-nft-restore", &[], iptables);
    };
    let answers = compare("host_firewall", prepare, host_firewall::converse).unwrap();
    assert_eq!(answers.closed.len(), 4, "{answers:?}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn what_kube_proxy_left_is_found_as_before() {
    let prepare = || {
        let iptables = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:MINE - [0:0]\n\
             -A PREROUTING -m comment --comment portals -j KUBE-SERVICES\n-A KUBE-SERVICES -j KUBE-MARK-MASQ\n\
             -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\nCOMMIT\n";
        run("iptables-nft-restore", &[], iptables);
        run(
            "ip6tables-nft-restore",
            &[],
            "*filter\n:KUBE-FORWARD - [0:0]\n-A FORWARD -j KUBE-FORWARD\nCOMMIT\n",
        );
        run("ipset", &["restore"], "create KUBE-CLUSTER-IP hash:ip,port\ncreate mine hash:ip\n");
        run("nft", &["-f", "-"], "table ip6 kube-proxy { }");
    };
    let found = compare("leftovers", prepare, leftovers::converse);
    assert_eq!(found.len(), 4, "{found:?}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn stale_flows_are_found_as_before() {
    let prepare = || {
        let flows = conntrack::stale().into_iter().enumerate().map(|(number, (to, answered_by))| {
            let client = if to.ip.is_ipv4() { "192.0.2.9" } else { "2001:db8::9" };
            format!(
                "-I -t 600 -p udp -s {client} -d {} -r {} -q {client} --sport {port} --dport {} \
                 --reply-port-src {} --reply-port-dst {port}\n",
                to.ip,
                answered_by.ip,
                to.port,
                answered_by.port,
                port = 4000 + number,
            )
        });
        let others = "-I -t 600 -p tcp --state ESTABLISHED -s 192.0.2.9 -d 10.96.0.10 -r 10.1.0.5 -q 192.0.2.9 \
             --sport 1 --dport 53 --reply-port-src 5353 --reply-port-dst 1\n";
        let entries: String = flows.chain([others.to_owned()]).collect();
        run("conntrack", &["-R", "/proc/self/fd/0"], &entries);
    };
    let deleted = compare("conntrack", prepare, conntrack::converse).unwrap();
    assert_eq!(deleted.total(), 3);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn kube_ipvs0_and_its_routes_are_read_as_before() {
    let prepare = || {
        run("ip", &["-batch", "-"], NODE);
        let route = VipBinding::Route { source_v4: Some([192, 0, 2, 1].into()), source_v6: None };
        for (binding, vips) in
            [(VipBinding::Address, ["10.96.0.1", "fd00::1"]), (route, ["10.96.0.2", "fd00::2"])]
        {
            let bind = vips.map(|vip| DeviceOperation::Bind(vip.parse().unwrap()));
            let changes = [&[DeviceOperation::EnsureDevice][..], &bind].concat();
            let failed = KernelDummyInterface::open(binding).unwrap().apply(&changes).unwrap();
            assert_eq!(failed, []);
        }
    };
    let answers = compare("dummy_interface", prepare, dummy_interface::converse);
    let as_addresses = answers.as_addresses.unwrap();
    assert_eq!(as_addresses.bound.len() + as_addresses.stale_bindings.len(), 4, "{as_addresses:?}");
    assert_eq!(answers.loopback, Some(1));
}
