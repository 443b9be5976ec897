use ipvs::*;
use service::*;
use std::time::Instant;
fn rss() -> f64 {
    std::fs::read_to_string("/proc/self/status")
        .unwrap()
        .lines()
        .find(|l| l.starts_with("VmRSS"))
        .unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}
fn svc(i: u32) -> Service {
    Service {
        name: ObjectName::new(format!("namespace-{}", i % 100), format!("service-{i}")),
        created: Some(1_700_000_000 + i64::from(i)),
        kind: ServiceKind::ClusterIp,
        cluster_ips: vec![std::net::Ipv4Addr::from(0x0a60_0000 + i).into()],
        ports: vec![ServicePort { name: "http".into(), protocol: Protocol::Tcp, port: 80 }],
        session_affinity: None,
        internal_traffic_policy: TrafficPolicy::Cluster,
        other_proxy: false,
        problems: vec![],
    }
}
fn ep(i: u32, n: u32) -> Endpoint {
    Endpoint {
        address: std::net::Ipv4Addr::from(0x0a80_0000 + i * 256 + n).into(),
        ready: true,
        serving: true,
        terminating: false,
        node: Some(format!("node-{}", (i + n) % 1000).into()),
        zone_hints: Box::default(),
        node_hints: Box::default(),
    }
}
fn sl(i: u32, e: u32) -> EndpointSlice {
    EndpointSlice {
        name: ObjectName::new(format!("namespace-{}", i % 100), format!("service-{i}-abcde")),
        service: ObjectName::new(format!("namespace-{}", i % 100), format!("service-{i}")),
        family: Family::V4,
        ports: vec![EndpointPort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints: (0..e).map(|n| ep(i, n)).collect(),
        problems: vec![],
    }
}
fn main() {
    let args: Vec<u32> = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    let (n, e) = (args[0], args[1]);
    let mut state = State::new(Options { node_name: "node-1".into(), scheduler: Scheduler::RR });
    // one by one, so that the inputs' own memory is not counted
    let base = rss();
    if args.len() > 2 {
        let (s, l): (Vec<_>, Vec<_>) = (0..n).map(|i| (svc(i), sl(i, e))).unzip();
        let t = Instant::now();
        state.apply(Change::ReplaceServices(s));
        let t1 = t.elapsed();
        state.apply(Change::ReplaceSlices(l));
        println!("replace services {t1:?}, with slices {:?}", t.elapsed());
        let (s, l): (Vec<_>, Vec<_>) = (0..n).map(|i| (svc(i), sl(i, e))).unzip();
        let t = Instant::now();
        assert!(state.apply(Change::ReplaceServices(s)).is_empty());
        assert!(state.apply(Change::ReplaceSlices(l)).is_empty());
        println!("same again {:?}", t.elapsed());
        let slices: Vec<_> = (0..n).map(|i| sl((i * 7919) % n, e - 1)).collect();
        let t = Instant::now();
        for s in slices {
            assert!(!state.apply(Change::ApplySlice(s)).is_empty());
        }
        println!("ApplySlice {:?} each, mean of {n}", t.elapsed() / n);
        let slices: Vec<_> = (0..1000).map(|i| sl(1, 1000 - i % 2)).collect();
        let t = Instant::now();
        for s in slices {
            state.apply(Change::ApplySlice(s));
        }
        println!("ApplySlice of 1000 endpoints {:?} each", t.elapsed() / 1000);
        let t = Instant::now();
        state.apply(Change::ApplyNode(Node { zone: Some("a".into()) }));
        println!("ApplyNode without hints {:?}", t.elapsed());
    } else {
        for i in 0..n {
            state.apply(Change::ApplyService(svc(i)));
            state.apply(Change::ApplySlice(sl(i, e)));
        }
        let grown = rss() - base;
        println!("{n}x{e}: {grown} kB, {:.0} B per service", grown * 1024.0 / f64::from(n));
    }
}
