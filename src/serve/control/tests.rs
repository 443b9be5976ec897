use std::{
    fs,
    io::{Read, Write},
    net::Shutdown,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::PathBuf,
    pin::pin,
    sync::{Arc, Condvar, Mutex, OnceLock, mpsc::channel},
    time::{Duration, Instant},
};

use reconciler::{KernelDifference, SyncReport, Trigger};
use service::{Options, State};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream as AsyncStream,
    runtime::Runtime,
    task::spawn_blocking,
    time::timeout,
};
use watcher::Plan;

use super::*;
use crate::{
    finding::{Cause, Finding},
    serve::liveness::AnswersSummary,
};

/// Answers without a daemon behind it.
struct Fixed {
    log_level: String,
    /// Is called by each request that a daemon's writer thread answers.
    writer: Box<dyn Fn() + Send + Sync>,
}

fn fixed() -> Fixed {
    Fixed { log_level: "info".to_owned(), writer: Box::new(|| {}) }
}

/// A daemon whose writer does this before each answer.
fn with_writer(writer: impl Fn() + Send + Sync + 'static) -> Fixed {
    Fixed { writer: Box::new(writer), ..fixed() }
}

fn status() -> DaemonStatus {
    let programmed = reconciler::SyncStatus {
        synced: true,
        virtual_servers: 2,
        real_servers: 3,
        vips: 1,
        ..Default::default()
    };
    let advice = Finding::warning("cni0", "it is off").cause(Cause::Bridge).remedy("switch it on");
    let about = DaemonInfo {
        version: "0.1.0".to_owned(),
        node: "node".to_owned(),
        uptime: Duration::from_secs(60),
        source: SourceInfo::Manifests { directory: "/etc/services".into() },
        kernel: None,
    };
    let counted =
        vec![CountedPackets { verdict: "drop".to_owned(), reason: "tunnel".to_owned(), packets: 2 }];
    let packets = RecentPackets { window: Duration::from_secs(60), counted };
    DaemonStatus {
        daemon: about,
        programmed,
        packets,
        advice: vec![advice],
        endpoints: AnswersSummary::default(),
    }
}

fn resynced() -> Resynced {
    let report = SyncReport {
        full: true,
        done: 12,
        failures: vec!["a\nb".to_owned()],
        failed: 1,
        took: Duration::from_millis(34),
        ..SyncReport::empty(Trigger::Forced)
    };
    Resynced { report, troubles: vec!["a".to_owned()] }
}

impl Fixed {
    fn by_writer<T>(&self, answer: T) -> T {
        (self.writer)();
        answer
    }
}

impl Control for Fixed {
    type Error = String;

    fn bug_report(&self) -> Result<BugReport, String> {
        let [configuration, metrics, limits] = ["{}", "up 1", "none"].map(str::to_owned);
        Ok(BugReport { configuration, metrics, limits })
    }

    fn diff(&self) -> Result<Difference, String> {
        Ok(self.by_writer(Difference { plan: Plan::default(), troubles: vec!["a".to_owned()] }))
    }

    fn explain(&self, service: &ObjectName, _: Option<IpAddr>) -> Result<Explanation, String> {
        Ok(self.by_writer(State::new(Options::new("node")).explain(service)))
    }

    fn explain_address(&self, query: &AddressQuery, _: Option<IpAddr>) -> Result<AddressExplanation, String> {
        Ok(self.by_writer(State::new(Options::new("node")).explain_address(query)))
    }

    fn history(&self, _: Option<&ObjectName>, _: u64) -> Result<JournalPage, String> {
        let began = std::time::UNIX_EPOCH;
        Ok(self.by_writer(JournalPage { entries: Vec::new(), last: 0, began, incomplete: false }))
    }

    fn log_level(&self, _: Option<Level>) -> Result<String, String> {
        Ok(self.log_level.clone())
    }

    fn owners(&self) -> Result<Vec<VirtualServerOwner>, String> {
        Ok(self.by_writer(Vec::new()))
    }

    fn resync(&self) -> Result<Resynced, String> {
        Ok(self.by_writer(resynced()))
    }

    fn status(&self) -> Result<DaemonStatus, String> {
        Ok(self.by_writer(status()))
    }

    fn checked_status(&self) -> Result<DaemonStatus, String> {
        let mut checked = status();
        checked.programmed.difference = Some(KernelDifference::default());
        Ok(self.by_writer(checked))
    }

    fn version(&self) -> Result<Build, String> {
        Ok(Build::this())
    }
}

/// A daemon's control socket in a directory that did not exist.
struct Daemon {
    _runtime: Runtime,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

fn daemon() -> Daemon {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run/control.sock");
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(async { ControlServer::bind(&path) }).unwrap();
    runtime.spawn(async move { server.serve(fixed()).await });
    Daemon { _runtime: runtime, path, _directory: directory }
}

/// Says something to the daemon and returns its answer.
fn say(daemon: &Daemon, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(&daemon.path).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn each_request_gets_its_answer() {
    let daemon = daemon();
    let client = Client::new(&daemon.path);
    assert_eq!(client.status().unwrap(), status());
    let checked = client.checked_status().unwrap().programmed;
    assert_eq!(checked.difference, Some(KernelDifference::default()));
    assert_eq!(client.resync().unwrap(), resynced());
    assert_eq!(client.version().unwrap(), Build::this());
    assert_eq!(client.diff().unwrap().troubles, ["a"]);
    assert_eq!(client.log_level(Some(Level::Start)).unwrap(), "info");
    assert_eq!(client.owners().unwrap(), []);
    assert_eq!(client.bug_report().unwrap().metrics, "up 1");
    let web = ObjectName::new("default", "web");
    assert_eq!(client.explain(&web, None).unwrap().service, web);
    let query = AddressQuery { ip: Some([192, 0, 2, 1].into()), port: Some(80), protocol: None };
    let explained = client.explain_address(&query, Some([192, 0, 2, 2].into())).unwrap();
    assert_eq!((explained.ip, explained.port, explained.uses), (query.ip, query.port, Vec::new()));
}

/// Another version sends and expects the same: docs/versions.md.
#[test]
fn the_names_of_requests_and_answers_stay() {
    let daemon = daemon();
    for (request, answer) in [
        (r#""bugreport""#, "bugreport"),
        (r#""diff""#, "difference"),
        (r#""explain","service":"default/web""#, "explanation"),
        (r#""explainaddress","ip":"192.0.2.1""#, "addressexplanation"),
        (r#""loglevel""#, "loglevel"),
        (r#""holders""#, "holders"),
        (r#""resync""#, "resynced"),
        (r#""status""#, "status"),
        (r#""version""#, "version"),
    ] {
        let answered = say(&daemon, format!("{{\"command\":{request}}}\n").as_bytes());
        assert!(answered.starts_with(&format!("{{\"{answer}\":")), "{request}: {answered}");
    }
}

#[test]
fn a_request_is_one_line_that_a_person_can_type() {
    let answer = say(&daemon(), b"{\"command\":\"status\"}\n");
    assert_eq!(decode_answer(answer.as_bytes()).unwrap(), Ok(status()));
    assert_eq!(answer.lines().count(), 1);
    let advice = r#"{"severity":"warning","cause":"bridge","subject":"cni0","what":"it is off","remedy":"switch it on"}"#;
    assert!(answer.contains(r#""synced":true"#) && answer.contains(advice), "{answer}");
}

#[test]
fn nonsense_is_answered_with_an_error_and_the_next_client_is_heard() {
    let daemon = daemon();
    for nonsense in [&b"hello\n"[..], b"{\"command\":\"dance\"}\n", b"\n", b"\xff\xfe\n"] {
        let answer = say(&daemon, nonsense);
        assert!(answer.starts_with("{\"error\":\"malformed request: "), "{answer}");
    }
    Client::new(&daemon.path).status().unwrap();
}

#[test]
fn an_endless_request_is_cut_off() {
    let answer = say(&daemon(), &vec![b' '; 4096]);
    assert!(answer.starts_with("{\"error\":\"malformed request: "), "{answer}");
}

#[test]
fn clients_that_say_nothing_do_not_keep_others_out() {
    let daemon = daemon();
    let silent: Vec<_> = (0..4).map(|_| UnixStream::connect(&daemon.path).unwrap()).collect();
    let asked = Instant::now();
    Client::new(&daemon.path).status().unwrap();
    assert!(asked.elapsed() < Duration::from_secs(4), "it waited for those that say nothing");
    drop(silent);
}

/// More than a socket holds.
const LONG: usize = 4 << 20;

/// As many clients as are heard at a time do this and nothing else; then one more asks, and gets all of its answer. The
/// time is tokio's, which jumps ahead whenever everybody waits.
async fn a_full_house(first_words: &[u8]) -> (Vec<AsyncStream>, Duration) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let server = ControlServer::bind(&path).unwrap();
    let talkative = Fixed { log_level: "x".repeat(LONG), ..fixed() };
    tokio::spawn(async move { server.serve(talkative).await });
    let mut others = Vec::new();
    for _ in 0..server::CLIENTS {
        let mut client = AsyncStream::connect(&path).await.unwrap();
        client.write_all(first_words).await.unwrap();
        others.push(client);
    }
    let asked = tokio::time::Instant::now();
    let mut last = AsyncStream::connect(&path).await.unwrap();
    last.write_all(b"{\"command\":\"loglevel\"}\n").await.unwrap();
    let mut answer = Vec::new();
    last.read_to_end(&mut answer).await.unwrap();
    assert!(answer.len() > LONG, "cut off after {} bytes", answer.len());
    (others, asked.elapsed())
}

/// Long enough for those clients to have had their time; a client that waits has waited no longer than this.
const ONCE_PATIENT: Duration = Duration::from_secs(6);

#[tokio::test(start_paused = true)]
async fn a_house_full_of_clients_that_say_nothing_is_cleared() {
    let (others, waited) = a_full_house(b"").await;
    assert!(waited < ONCE_PATIENT, "{waited:?}");
    for mut other in others {
        assert_eq!(other.read(&mut [0; 1]).await.unwrap(), 0, "it is not hung up on");
    }
}

#[tokio::test(start_paused = true)]
async fn a_house_full_of_clients_that_never_finish_their_request_is_cleared() {
    let (_, waited) = a_full_house(b"{\"command\":").await;
    assert!(waited < ONCE_PATIENT, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_house_full_of_clients_that_never_read_their_answer_is_cleared() {
    let (_, waited) = a_full_house(b"{\"command\":\"loglevel\"}\n").await;
    assert!(waited < ONCE_PATIENT, "{waited:?}");
}

#[test]
fn the_log_level_can_be_set_beside_a_hanging_writer_and_lost_clients_free_slots() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let runtime = Runtime::new().unwrap();
    let (writer, hangs) = channel::<()>();
    let hangs = Mutex::new(hangs);
    let hanging = with_writer(move || _ = hangs.lock().unwrap().recv());
    let server = runtime.block_on(async { ControlServer::bind(&path) }).unwrap();
    runtime.spawn(async move { server.serve(hanging).await });
    let asks_for_status = || {
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(b"{\"command\":\"status\"}\n").unwrap();
        client
    };

    let waiting: Vec<_> = (0..server::CLIENTS - 1).map(|_| asks_for_status()).collect();
    Client::new(&path).log_level(None).unwrap();
    drop(waiting);
    // As many again, which would wait in the queue for ever if those had kept their places.
    let mut waiting: Vec<_> = (0..server::CLIENTS - 1).map(|_| asks_for_status()).collect();
    Client::new(&path).log_level(None).unwrap();

    // The writer goes on: each client that still waits is answered, also one that will say nothing more.
    let mut last = waiting.pop().unwrap();
    last.shutdown(Shutdown::Write).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    drop(writer);
    let mut answer = String::new();
    last.read_to_string(&mut answer).unwrap();
    assert_eq!(decode_answer(answer.as_bytes()).unwrap(), Ok(status()));
}

/// The answers that wait for the writer, until it is let go.
#[derive(Default)]
struct Waiting {
    wait: usize,
    most: usize,
    writer_goes_on: bool,
}

impl Waiting {
    /// One more answer waits.
    fn wait((answers, changed): &(Mutex<Self>, Condvar)) {
        let mut now = answers.lock().unwrap();
        now.wait += 1;
        now.most = now.most.max(now.wait);
        changed.notify_all();
        changed.wait_while(now, |now| !now.writer_goes_on).unwrap().wait -= 1;
    }
}

#[test]
fn however_many_ask_no_more_than_eight_answers_wait_for_the_writer() {
    const EIGHT: usize = 8;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(async { ControlServer::bind(&path) }).unwrap();
    let waiting = Arc::new((Mutex::new(Waiting::default()), Condvar::new()));
    let counting = with_writer({
        let waiting = Arc::clone(&waiting);
        move || Waiting::wait(&waiting)
    });
    runtime.spawn(async move { server.serve(counting).await });
    let asks_for_status = || {
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(b"{\"command\":\"status\"}\n").unwrap();
        client
    };
    let mut clients: Vec<_> = (0..server::CLIENTS - 1).map(|_| asks_for_status()).collect();
    let (answers, changed) = &*waiting;
    let (now, late) = changed
        .wait_timeout_while(answers.lock().unwrap(), Duration::from_secs(20), |now| now.wait < EIGHT)
        .unwrap();
    assert!(!late.timed_out(), "only {} wait", now.wait);
    drop(now);
    // A client that asks now is answered after all of those have been heard, and by a later thread than theirs.
    for _ in 0..100 {
        Client::new(&path).log_level(None).unwrap();
    }
    answers.lock().unwrap().writer_goes_on = true;
    changed.notify_all();
    for client in &mut clients {
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(decode_answer(answer.as_bytes()).unwrap(), Ok(status()));
    }
    assert_eq!(answers.lock().unwrap().most, EIGHT);
}

#[test]
fn a_client_that_asks_and_is_gone_harms_no_other() {
    let daemon = daemon();
    for _ in 0..100 {
        UnixStream::connect(&daemon.path).unwrap().write_all(b"{\"command\":\"resync\"}\n").unwrap();
    }
    Client::new(&daemon.path).status().unwrap();
}

#[test]
fn an_answer_that_comes_before_the_question_is_heard() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let refuses = std::thread::spawn(move || {
        for _ in 0..100 {
            listener.accept().unwrap().0.write_all(b"{\"error\":\"no\"}\n").unwrap();
        }
    });
    for _ in 0..100 {
        let refused = Client::new(&path).status().unwrap_err();
        assert!(matches!(&refused, AskError::Refused(reason) if reason == "no"), "{refused:?}");
    }
    refuses.join().unwrap();
}

#[test]
fn a_daemon_that_does_not_answer_for_seconds_is_reported_with_the_time_limit() {
    static SAID: OnceLock<Duration> = OnceLock::new();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let slow = std::thread::spawn(move || {
        let mut client = listener.accept().unwrap().0;
        let waits = *SAID.wait();
        client.write_all(&encode_answer("resynced", Ok(resynced())).unwrap()).unwrap();
        waits
    });
    let asked = Instant::now();
    let client = Client::new(&path).on_wait(|waits| SAID.set(waits).unwrap());
    assert_eq!(client.resync().unwrap(), resynced());
    assert!(asked.elapsed() >= Duration::from_secs(3), "{:?}", asked.elapsed());
    assert_eq!(slow.join().unwrap(), Duration::from_secs(120));
}

#[test]
fn a_daemon_of_another_version_gives_one_line_and_no_answer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let other = std::thread::spawn(move || {
        for line in ["{\"error\":\"malformed request: unknown variant\"}\n", "{\"state\":{}}\n"] {
            listener.accept().unwrap().0.write_all(line.as_bytes()).unwrap();
        }
    });
    let client = Client::new(&path);
    let [refused, unknown] = [(); 2].map(|()| service::one_line(&client.status().unwrap_err()));
    assert_eq!(refused, "the daemon says: malformed request: unknown variant");
    assert!(unknown.starts_with("unexpected response from the daemon at "), "{unknown}");
    assert!(unknown.contains("which may be of another version: missing field `daemon`"), "{unknown}");
    other.join().unwrap();
}

#[test]
fn only_the_owner_can_reach_the_socket() {
    let daemon = daemon();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&daemon.path), 0o600);
    assert_eq!(mode(daemon.path.parent().unwrap()), 0o700);
}

#[test]
fn a_second_daemon_is_refused_and_the_first_one_keeps_its_socket() {
    let daemon = daemon();
    let second = Runtime::new().unwrap().block_on(async { ControlServer::bind(&daemon.path) }).unwrap_err();
    assert!(second.to_string().starts_with("another kube-ipvs runs on this node"), "{second}");
    Client::new(&daemon.path).status().unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiting_daemon_has_the_socket_as_soon_as_the_other_one_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let first = ControlServer::bind(&path).unwrap();
    let mut second = pin!(ControlServer::bind_in_turn(&path));
    let waited = timeout(Duration::from_secs(3600), &mut second).await;
    assert!(waited.is_err(), "it has not waited: {waited:?}");
    tokio::time::resume();
    drop(first);
    let second = timeout(Duration::from_secs(20), second).await.expect("it has not taken over").unwrap();
    tokio::spawn(async move { second.serve(fixed()).await });
    let answer = spawn_blocking({
        let path = path.clone();
        move || Client::new(&path).status()
    })
    .await
    .unwrap();
    assert_eq!(answer.unwrap(), status());
}

#[test]
fn the_socket_of_a_dead_daemon_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "a dead process leaves its socket");

    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(async { ControlServer::bind(&path) }).unwrap();
    runtime.spawn(async move { server.serve(fixed()).await });
    Client::new(&path).status().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_socket_that_cannot_be_made_ends_nothing_and_is_there_as_soon_as_it_can() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    fs::write(&path, "precious").unwrap();
    let server = ControlServer::bind(&path).unwrap();
    assert!(matches!(server.refused(), Some(NoSocket::InTheWay { .. })), "{:?}", server.refused());
    let mut serves = pin!(server.serve(fixed()));
    assert!(timeout(Duration::from_secs(3600), &mut serves).await.is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious", "what is in its place is not removed");

    fs::remove_file(&path).unwrap();
    assert!(timeout(Duration::from_secs(15), &mut serves).await.is_err());
    let mut client = AsyncStream::connect(&path).await.unwrap();
    client.write_all(b"{\"command\":\"status\"}\n").await.unwrap();
    let mut answer = Vec::new();
    tokio::select! {
        () = serves => {}
        read = client.read_to_end(&mut answer) => drop(read.unwrap()),
    }
    assert_eq!(decode_answer(&answer).unwrap(), Ok(status()));
}

#[tokio::test]
async fn a_daemon_that_never_had_the_socket_leaves_what_is_in_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    fs::write(&path, "precious").unwrap();
    drop(ControlServer::bind(&path).unwrap());
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn without_a_daemon_the_error_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let absent = directory.path().join("absent.sock");
    let dead = directory.path().join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    for path in [absent, dead] {
        let expected = format!("no daemon answers at {}: is kube-ipvs running on this node?", path.display());
        assert_eq!(Client::new(&path).status().unwrap_err().to_string(), expected);
    }
}
