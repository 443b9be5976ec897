//! In the test kernel: a node with the Services of docs/examples, and clients that use them.

use std::{
    fs, iter,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZero,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use guest::workspace;
use testkit::{
    daemon::{Daemon, binary},
    lab::Host,
};

use super::screen::Screen;
use crate::stage::{self, Stage, objects};

/// The Services of docs/examples.
const EXAMPLES: [&str; 4] = ["web.yaml", "shop.yaml", "bank.yaml", "dns.yaml"];

const fn vip(last: u8, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 96, 0, last)), port)
}

/// The Services by TCP, and how long each of their clients waits between two requests.
const ASKED: [(SocketAddr, Duration); 3] = [
    (vip(10, 80), Duration::from_millis(40)),
    (vip(20, 80), Duration::from_millis(110)),
    (vip(30, 80), Duration::from_millis(350)),
];

/// Their name server, asked by UDP.
const DNS: (SocketAddr, Duration) = (vip(53, 53), Duration::from_millis(60));

/// How many connections are held.
const HELD: [(SocketAddr, usize); 2] = [(vip(10, 80), 12), (vip(20, 80), 5)];

/// How long they are used: `top` has seen enough by then.
const USED: Duration = Duration::from_secs(14);

/// When `top` is looked at: its numbers are those of the last two seconds.
const LOOKED: Duration = Duration::from_secs(9);

/// What `top` is shown on.
const TERMINAL: Screen = Screen { width: NonZero::new(104).unwrap(), height: NonZero::new(18).unwrap() };

/// Draws what `status` and `top` show.
pub(super) fn draw(directory: &Path) -> Result<()> {
    let mut stage = Stage::new(2)?;
    let _other_node = stage.lab.add_pod_on_another_node("eth1", "another-node", objects::POD_PORT)?;
    for service in EXAMPLES {
        let file = workspace::root().join("docs/examples").join(service);
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        for object in serde_saphyr::from_multiple(&text)? {
            stage.server.apply(&object)?;
        }
    }
    let daemon = stage.daemon(&[])?;
    stage::has_synced(&daemon, &stage.lab)?;
    let node = &stage.lab.node;
    let top = in_use(&stage.lab.client, || TERMINAL.of_program(node, &words(&daemon, "top")?, LOOKED))?;
    write(directory, "top", &top)?;
    let status = daemon.ask(node, "status")?;
    write(directory, "status", &Screen::of_text("kube-ipvs status", &status, TERMINAL.width)?)
}

/// Does something while a client uses the Services.
fn in_use<T>(client: &Host, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let held = HELD.into_iter().flat_map(|(service, connections)| iter::repeat_n(service, connections));
    let _held: Vec<_> = held.map(|service| client.connect(service)).collect::<Result<_>>()?;
    let end = Instant::now() + USED;
    thread::scope(|scope| {
        for (service, pause) in ASKED {
            scope.spawn(move || use_until(end, pause, || client.ask(service).map(drop)));
        }
        scope.spawn(move || use_until(end, DNS.1, || client.ask_udp(DNS.0).map(drop)));
        work()
    })
}

/// The program with one of its commands.
fn words(daemon: &Daemon, command: &str) -> Result<String> {
    Ok(format!("{} {command} --control-socket {}", binary()?.display(), daemon.socket().display()))
}

/// Asks again and again. What is lost is nobody's business here.
fn use_until(end: Instant, pause: Duration, ask: impl Fn() -> Result<()>) {
    while Instant::now() < end {
        drop(ask());
        thread::sleep(pause);
    }
}

fn write(directory: &Path, name: &str, picture: &str) -> Result<()> {
    let file = directory.join(name).with_extension("svg");
    fs::write(&file, picture).with_context(|| file.display().to_string())
}
