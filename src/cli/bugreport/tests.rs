use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Read,
    net::IpAddr,
    sync::Arc,
    time::SystemTime,
};

use flate2::read::GzDecoder;
use reconciler::{JournalPage, VirtualServerOwner};
use service::{AddressExplanation, AddressQuery, Explanation, ObjectName};
use tokio::runtime::Runtime;

use super::{
    super::{parse, status::tests::sample},
    *,
};
use crate::{
    config::Settings,
    logging::Level,
    process::Build,
    serve::{
        control::{self, Control, ControlServer, DaemonStatus, Difference, Resynced},
        health::{Health, UnknownNode},
        metrics::{Metrics, MetricsPages, TrafficMetrics},
    },
};

/// The files of an archive, and all of its bytes unpacked.
fn unpacked(archive: &[u8]) -> (BTreeMap<String, String>, Vec<u8>) {
    let mut bytes = Vec::new();
    GzDecoder::new(archive).read_to_end(&mut bytes).unwrap();
    let mut files = BTreeMap::new();
    for file in tar::Archive::new(&bytes[..]).entries().unwrap() {
        let mut file = file.unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        files.insert(file.path().unwrap().display().to_string(), text);
    }
    (files, bytes)
}

fn written(items: &[Item]) -> (BTreeMap<String, String>, Vec<u8>) {
    let mut archive = Vec::new();
    write_archive(&mut archive, "report", Timestamp::UNIX_EPOCH, items).unwrap();
    unpacked(&archive)
}

#[test]
fn what_cannot_be_had_is_a_file_that_says_why() {
    let long = "line\n".repeat(10_000);
    let (files, _) = written(&[
        Item { name: "list.txt", content: Ok(long.clone()) },
        Item { name: "top.json", content: Err("the kernel has no IPVS".to_owned()) },
    ]);
    let expected =
        [("report/list.txt", long.as_str()), ("report/top.json.error.txt", "the kernel has no IPVS\n")];
    assert_eq!(files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect::<Vec<_>>(), expected);
}

const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.c2VjcmV0.c2lnbmF0dXJl";

/// A daemon's answers, with a configuration that names this kubeconfig.
struct Fixed(Arc<MetricsPages>);

impl Fixed {
    fn with_kubeconfig(path: &Path) -> Self {
        let kubeconfig = format!("--kubeconfig={}", path.display());
        let flags = parse(["kube-ipvs", "--hostname-override=node-1", &kubeconfig].map(Into::into)).unwrap();
        let settings = Settings::resolve(flags.flags().unwrap()).unwrap();
        let health = Health::new(BTreeSet::new(), settings.timing.sync_period, UnknownNode::Eligible);
        let metrics =
            Metrics::new(&BTreeSet::new(), SystemTime::now(), &health, [], None, Path::new("/nonexistent"));
        let pages =
            MetricsPages::new(Arc::new(metrics), TrafficMetrics::default(), &settings.effective).unwrap();
        Self(Arc::new(pages))
    }
}

impl Control for Fixed {
    type Error = String;

    fn bug_report(&self) -> Result<control::BugReport, String> {
        Ok(control::BugReport::new(&self.0))
    }

    fn diff(&self) -> Result<Difference, String> {
        Ok(Difference { plan: watcher::Plan::default(), troubles: Vec::new() })
    }

    fn history(&self, _: Option<&ObjectName>, _: u64) -> Result<JournalPage, String> {
        Err("no history".to_owned())
    }

    fn log_level(&self, _: Option<Level>) -> Result<String, String> {
        Ok("kube_ipvs=info".to_owned())
    }

    fn status(&self) -> Result<DaemonStatus, String> {
        Ok(sample::status())
    }

    fn checked_status(&self) -> Result<DaemonStatus, String> {
        not_asked()
    }

    fn explain(&self, _: &ObjectName, _: Option<IpAddr>) -> Result<Explanation, String> {
        not_asked()
    }

    fn explain_address(&self, _: &AddressQuery, _: Option<IpAddr>) -> Result<AddressExplanation, String> {
        not_asked()
    }

    fn owners(&self) -> Result<Vec<VirtualServerOwner>, String> {
        not_asked()
    }

    fn resync(&self) -> Result<Resynced, String> {
        not_asked()
    }

    fn version(&self) -> Result<Build, String> {
        not_asked()
    }
}

fn not_asked<T>() -> Result<T, String> {
    Err("not asked for".to_owned())
}

/// The daemon at this socket.
fn at(socket: &Path) -> Daemon {
    Daemon { control_socket: socket.to_owned() }
}

#[test]
fn what_the_daemon_tells_is_there_and_nothing_of_its_credentials() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig.conf");
    let user =
        format!("users: [{{name: proxy, user: {{token: {TOKEN}, client-key-data: UHJpdmF0ZUtleQ==}}}}]");
    fs::write(&kubeconfig, user).unwrap();
    let socket = directory.path().join("run/control.sock");
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(async { ControlServer::bind(&socket) }).unwrap();
    let handler = Fixed::with_kubeconfig(&kubeconfig);
    runtime.spawn(async move { server.serve(handler).await });

    let answers = Answers::ask(&at(&socket));
    assert_eq!(answers.node(), "node-1");
    let (files, bytes) = written(&answers.items());
    let has = |name: &str, text: &str| {
        let file =
            files.get(&format!("report/{name}")).unwrap_or_else(|| panic!("{name} is not in {files:#?}"));
        assert!(file.contains(text), "{text} is not in {name}: {file}");
    };
    has("configuration.json", &kubeconfig.display().to_string());
    has("metrics.txt", "kube_ipvs_build_info{");
    has("limits.txt", "Max open files");
    has("log-level.txt", "kube_ipvs=info");
    has("status.txt", "synced:          no, syncs have been failing for 42 s");
    has("status.json", "\"standing\": \"failing\"");
    has("diff.json", "\"operations\": []");
    assert_eq!(files["report/diff.txt"], "");
    for secret in [TOKEN, "UHJpdmF0ZUtleQ=="] {
        let is_there = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!is_there, "{secret} is in the archive");
    }
}

#[test]
fn without_a_daemon_the_node_has_the_hosts_name_and_each_answer_is_missing() {
    let answers = Answers::ask(&at(Path::new("/nonexistent/control.sock")));
    assert!(!answers.node().is_empty() && !answers.node().contains('/'), "{}", answers.node());
    let items = answers.items();
    let why = "no daemon answers at /nonexistent/control.sock: is kube-ipvs running on this node?";
    assert_eq!(items.len(), 8);
    for Item { name, content } in items {
        assert_eq!(content, Err(why.to_owned()), "{name}");
    }
}
