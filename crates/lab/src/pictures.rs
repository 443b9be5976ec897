//! `cargo xtask pictures`: the pictures of the documents, in docs/pictures.
//!
//! What a terminal shows is what the program printed there, on a node in a test kernel with the Services of
//! docs/examples and traffic to them. [`tour`] records one in use. The way of a packet is drawn by Graphviz.

mod clients;
mod recording;
mod svg;
mod tour;

use std::{
    ffi::OsString,
    fs,
    io::{Read as _, Write as _},
    iter,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZero,
    path::Path,
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use guest::{Guest, KernelArgs, api_server, needs::GRAPHVIZ, programs, workspace};
use testkit::{
    daemon::{Daemon, binary},
    lab::Host,
};
use vt100::Parser;

use crate::stage::{Stage, objects};

/// The command line of `cargo xtask pictures`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    kernel: KernelArgs,
    /// Draw the terminals here and now: what the test kernel runs
    #[arg(long, hide = true)]
    inside: bool,
}

/// Draws all of them.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let directory = workspace::root().join("docs/pictures");
    if args.inside {
        draw(&directory)?;
        return Ok(ExitCode::SUCCESS);
    }
    let kernel = args.kernel.choose_for_tests();
    kernel.prepare()?;
    let (daemon, myself) = (workspace::daemon()?, workspace::myself()?);
    let mut guest = Guest { timeout: Duration::from_secs(300), memory: 4096, ..Guest::new(kernel) };
    guest.env.push(("KUBE_IPVS_BIN".into(), daemon.clone().into()));
    guest.files = vec![daemon, myself.clone(), workspace::root().join("docs/examples")];
    guest.share = Some(directory.clone());
    let _api_server = api_server::equip(&mut guest, &myself)?;
    let command: [OsString; 3] = [myself.into(), "pictures".into(), "--inside".into()];
    ensure!(guest.run(&command)? == 0, "the terminals were not drawn");
    let mut dot = Command::new(GRAPHVIZ.name);
    dot.arg("-Tsvg").arg("-o").arg(directory.join("packet.svg"));
    programs::run(dot.arg(workspace::root().join("crates/lab/src/pictures/packet.dot")))?;
    for picture in fs::read_dir(&directory).context("reading docs/pictures")? {
        println!("{}", picture?.path().display());
    }
    Ok(ExitCode::SUCCESS)
}

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
fn draw(directory: &Path) -> Result<()> {
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
    stage.has_synced(&daemon)?;
    let node = &stage.lab.node;
    let top = in_use(&stage.lab.client, || TERMINAL.of_program(node, &words(&daemon, "top")?, LOOKED))?;
    write(directory, "top", &top)?;
    let status = daemon.ask(node, "status")?;
    write(directory, "status", &Screen::of_text("kube-ipvs status", &status, TERMINAL.width)?)?;
    drop(daemon);
    let tour = tour::record()?;
    write(directory, "tour", &tour.playing())?;
    write(directory, "tour-still", &tour.still())
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

/// Asks again and again. Losses do not matter here.
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

/// What a program sends when it gives the terminal back.
const GIVEN_BACK: &[u8] = b"\x1b[?1049l";

/// The size of a terminal, in cells.
#[derive(Clone, Copy)]
struct Screen {
    width: NonZero<u16>,
    height: NonZero<u16>,
}

impl Screen {
    /// A picture of what a program of a host shows on the whole terminal after some time: `r` shows its real servers,
    /// and `q` ends it.
    fn of_program(self, host: &Host, words: &str, time: Duration) -> Result<String> {
        let Self { width, height } = self;
        let command = format!("stty cols {width} rows {height} && exec {words}");
        let mut terminal = host.command("script");
        terminal.args(["--quiet", "--flush", "--return", "--command", &command, "/dev/null"]);
        terminal.env("TERM", "xterm-256color").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = terminal.spawn().context("starting script")?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (mut stdin, mut stdout) = (stdin.context("no input")?, stdout.context("no output")?);
        let reader = thread::spawn(move || {
            let mut bytes = Vec::new();
            stdout.read_to_end(&mut bytes).map(|_| bytes)
        });
        stdin.write_all(b"r").context("pressing r")?;
        thread::sleep(time);
        stdin.write_all(b"q").context("pressing q")?;
        ensure!(child.wait().context("waiting for script")?.success(), "{words} failed");
        let mut bytes = reader.join().ok().context("reading what it shows panicked")??;
        let end = bytes.windows(GIVEN_BACK.len()).rposition(|part| part == GIVEN_BACK);
        bytes.truncate(end.with_context(|| format!("{words} did not use the whole terminal"))?);
        Ok(self.picture(&bytes))
    }

    /// A picture of a command and what it has printed, on a terminal of this width that is as high as need be.
    fn of_text(command: &str, printed: &str, width: NonZero<u16>) -> Result<String> {
        let text = format!("$ {command}\n{}", printed.trim_end());
        let rows = |line: &str| line.chars().count().div_ceil(width.get().into()).max(1);
        let height = NonZero::try_from(u16::try_from(text.lines().map(rows).sum::<usize>())?)?;
        Ok(Self { width, height }.picture(text.replace('\n', "\r\n").as_bytes()))
    }

    fn picture(self, bytes: &[u8]) -> String {
        let mut parser = Parser::new(self.height, self.width, 0);
        parser.process(bytes);
        svg::draw(parser.screen())
    }
}
