//! `cargo xtask demo`: shows the main job.
//!
//! This half runs on the host: it builds the daemon and runs this same program again in the test
//! kernel, where [`tell`] shows what kube-ipvs does, step by step.

mod faults;
mod feed;

use std::{
    collections::BTreeSet,
    ffi::OsString,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use feed::Feed;
use guest::{
    Guest, KernelArgs,
    platform::{self, Platform},
    workspace,
};
use testkit::{
    daemon::{Daemon, ipvsadm_shows},
    lab::{Host, Lab},
};

/// The command line of `cargo xtask demo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    kernel: KernelArgs,
    /// The processor; another than this machine's is emulated by QEMU
    #[arg(long, value_enum, default_value_t = Platform::HERE)]
    arch: Platform,
    /// Feed the daemon from a real kube-apiserver instead of files
    #[arg(long)]
    api: bool,
    /// Tell the story here and now: what the test kernel runs
    #[arg(long, hide = true)]
    inside: bool,
}

/// Shows the main job; fails with the step that failed.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.inside {
        tell(args.api)?;
        return Ok(ExitCode::SUCCESS);
    }
    // What is missing is reported before anything is built.
    let kernel = args.kernel.choose_for(args.arch);
    kernel.prepare()?;
    eprintln!("xtask: building kube-ipvs");
    let (daemon, inside) = programs(kernel.platform())?;
    let myself = workspace::myself()?;
    let mut guest = Guest { timeout: Duration::from_secs(600), ..Guest::new(kernel) };
    guest.env.push(("KUBE_IPVS_BIN".into(), daemon.clone().into()));
    guest.files = vec![daemon, inside.clone(), workspace::root().join("manifests")];
    let mut command: Vec<OsString> = vec![inside.into(), "demo".into(), "--inside".into()];
    // The server, where it runs on the host, lives until the demo has ended.
    let _server = if args.api {
        command.push("--api".into());
        guest::api_server::equip(&mut guest, &myself)?
    } else {
        None
    };
    eprintln!("xtask: the demo runs on {}", guest.kernel);
    let code = guest.run(&command)?;
    Ok(ExitCode::from(code))
}

/// The daemon, and this program, for the processor of the guest.
fn programs(platform: Platform) -> anyhow::Result<(PathBuf, PathBuf)> {
    if platform.is_here() {
        return Ok((workspace::daemon()?, workspace::myself()?));
    }
    // Emulated, the optimised one is worth the wait for it.
    Ok((platform::build_program(platform)?, platform.program("kube-ipvs-lab", "lab")?))
}

const WEB: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 0, 10)), 80);
const DNS: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 0, 53)), 53);

/// The line of `manifests/demo/web.yaml` that is taken out.
const SECOND_ENDPOINT: &str = "10.244.2.2";

/// What the demo ends with.
const NEXT: &str = "  docs/try.md              a throw-away node to explore, and a kind cluster
  docs/commands.md         what status, explain, trace, history and top print
  docs/install.md          preflight on your nodes, which changes nothing; then one node
  docs/services.md         schedulers, weights, ejection and limits of one Service
";

/// Runs every step; the error names the one that failed.
fn tell(api: bool) -> Result<()> {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    say(&format!("Linux {}: a node, two pods and a client outside, each a network namespace", kernel.trim()));
    let lab = Lab::new(2, 8080).context("step 0: network namespaces")?;
    let feed = if api { Feed::api() } else { Feed::directory() }.context("step 0: the source of Services")?;
    feed.reach_from(&lab.node).context("step 0: the source of Services")?;
    feed.put("node.yaml").context("step 0: the Node")?;

    let daemon = first_service(&lab, &feed).context("step 1: a Service in the kernel")?;
    requests(&lab, WEB).context("step 2: requests")?;
    endpoint_goes(&lab, &feed).context("step 3: an endpoint goes")?;
    resync(&lab, &daemon).context("step 4: resync after ipvsadm -C")?;
    faults::pod_goes_silent(&lab, &feed, &daemon).context("step 5: a silent pod")?;
    faults::rule_drops(&lab, &daemon).context("step 6: a rule that drops")?;
    daemon.kill().context("step 7: stopping the daemon")?;
    schedulers(&lab, &feed).context("step 7: other schedulers")?;
    say("What to look at next");
    print!("{NEXT}");
    println!("demo: ok");
    Ok(())
}

fn first_service(lab: &Lab, feed: &Feed) -> Result<Daemon> {
    step(1, "the daemon runs; a Service with two endpoints is applied");
    feed.put("web.yaml")?;
    let daemon = feed.daemon(&lab.node, &[])?;
    let table = ipvsadm_shows(&lab.node, "the Service with both endpoints", |table| {
        table.contains("TCP  10.96.0.10:80 rr") && table.matches("-> 10.244").count() == 2
    })
    .with_context(|| format!("kube-ipvs said:\n{}", daemon.log()))?;
    show("ipvsadm -Ln", &table);
    Ok(daemon)
}

fn requests(lab: &Lab, service: SocketAddr) -> Result<()> {
    step(2, &format!("requests to {service}, from the client and from the node itself"));
    for host in [&lab.client, &lab.node] {
        let mut previous = String::new();
        let mut line = format!("  {}:", host.name);
        for _ in 0..4 {
            let answer = host.ask(service)?;
            ensure!(answer.from != previous, "{} answered twice in a row: not round robin", answer.from);
            line.extend([" ", &answer.from, " (saw ", &answer.seen_as.to_string(), ")"]);
            previous = answer.from;
        }
        println!("{line}");
    }
    Ok(())
}

fn endpoint_goes(lab: &Lab, feed: &Feed) -> Result<()> {
    step(3, &format!("the endpoint {SECOND_ENDPOINT} is taken out of the slice"));
    feed.put_changed("web.yaml", |text| {
        let kept = text.lines().filter(|line| !line.contains(SECOND_ENDPOINT));
        kept.flat_map(|line| [line, "\n"]).collect()
    })?;
    // The connections of step 2 are closing: until the last has ended its endpoint has weight 0.
    let table = ipvsadm_shows(&lab.node, "no new connection for the endpoint", |table| {
        !table.contains(SECOND_ENDPOINT)
            || table.contains(&format!("{SECOND_ENDPOINT}:8080              Masq    0"))
    })?;
    show("ipvsadm -Ln", &table);
    let answers = who_answers(&lab.client, 4)?;
    ensure!(answers == BTreeSet::from(["pod-1".to_owned()]), "these answered: {answers:?}");
    println!("  client: only pod-1 answers; waiting for the last connection to end");
    let table = testkit::daemon::eventually_within(
        std::time::Duration::from_secs(150),
        "the endpoint gone from the kernel",
        || {
            let table = lab.node.run("ipvsadm", &["-Ln"])?;
            ensure!(!table.contains(SECOND_ENDPOINT), "ipvsadm -Ln shows:\n{table}");
            Ok(table)
        },
    )?;
    show("ipvsadm -Ln", &table);
    feed.put("web.yaml")?;
    ipvsadm_shows(&lab.node, "the endpoint back", |table| table.contains("10.244.2.2:8080"))?;
    println!("  the endpoint is put back: it is there again");
    Ok(())
}

fn resync(lab: &Lab, daemon: &Daemon) -> Result<()> {
    step(4, "ipvsadm -C clears the table behind the daemon's back; kube-ipvs resync restores it");
    let before = lab.node.run("ipvsadm", &["-Sn"])?;
    lab.node.run("ipvsadm", &["-C"])?;
    show("kube-ipvs resync", &daemon.ask(&lab.node, "resync")?);
    let after = lab.node.run("ipvsadm", &["-Sn"])?;
    ensure!(sorted(&before) == sorted(&after), "before:\n{before}after:\n{after}");
    show("ipvsadm -Ln", &lab.node.run("ipvsadm", &["-Ln"])?);
    who_answers(&lab.client, 2)?;
    Ok(())
}

fn schedulers(lab: &Lab, feed: &Feed) -> Result<()> {
    step(7, "a second Service, and other schedulers: changed in place, nothing is deleted");
    feed.put("dns.yaml")?;
    for scheduler in ["wrr", "lc", "sh"] {
        let daemon = feed.daemon(&lab.node, &["--ipvs-scheduler", scheduler])?;
        let table = ipvsadm_shows(&lab.node, "both Services with the scheduler", |table| {
            let listed = |prefix: &str| table.contains(&format!("{prefix} {scheduler}"));
            listed("TCP  10.96.0.10:80") && listed("UDP  10.96.0.53:53") && listed("TCP  10.96.0.53:53")
        })
        .with_context(|| format!("kube-ipvs --ipvs-scheduler={scheduler} said:\n{}", daemon.log()))?;
        let virtual_servers = table.lines().filter(|line| line.contains(scheduler));
        let virtual_servers: Vec<_> = virtual_servers.map(str::trim_end).collect();
        let answer = lab.client.ask_udp(DNS)?;
        println!(
            "  --ipvs-scheduler={scheduler}: {}; {DNS} is answered by {}",
            virtual_servers.join(", "),
            answer.from
        );
        daemon.kill()?;
    }
    Ok(())
}

/// Asks the web Service several times, and says who answered.
fn who_answers(host: &Host, times: usize) -> Result<BTreeSet<String>> {
    (0..times).map(|_| Ok(host.ask(WEB)?.from)).collect()
}

fn sorted(lines: &str) -> Vec<&str> {
    let mut lines: Vec<_> = lines.lines().collect();
    lines.sort_unstable();
    lines
}

fn step(number: u8, what: &str) {
    say(&format!("{number}. {what}"));
}

fn say(what: &str) {
    println!("\n== {what}");
}

fn show(what: &str, text: &str) {
    println!("  $ {what}");
    for line in text.lines() {
        println!("  {line}");
    }
}
