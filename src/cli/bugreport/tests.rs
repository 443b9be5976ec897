use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Read,
    sync::Arc,
    time::SystemTime,
};

use flate2::read::GzDecoder;
use tokio::runtime::Runtime;

use super::{
    super::{parse, status::sample},
    *,
};
use crate::{
    config::Settings,
    serve::{
        control::{ControlServer, Difference, Request, RequestHandler, Response},
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
    archive::write(&mut archive, "report", Timestamp::UNIX_EPOCH, items).unwrap();
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
        let health = Health::new(BTreeSet::new(), settings.sync_period, UnknownNode::Eligible);
        let metrics =
            Metrics::new(&BTreeSet::new(), SystemTime::now(), &health, [], None, Path::new("/nonexistent"));
        let pages =
            MetricsPages::new(Arc::new(metrics), TrafficMetrics::default(), &settings.effective).unwrap();
        Self(Arc::new(pages))
    }
}

impl RequestHandler for Fixed {
    fn handle(&self, request: Request) -> Response {
        match request {
            Request::BugReport => Response::BugReport(Box::new(control::BugReport::new(&self.0))),
            Request::LogLevel { .. } => Response::LogLevel("kube_ipvs=info".to_owned()),
            Request::Status => Response::Status(Box::new(sample::status())),
            Request::Diff => {
                let (plan, troubles) = (watcher::Plan::default(), Vec::new());
                Response::Difference(Difference { plan, troubles })
            }
            _ => Response::Error("not asked for".to_owned()),
        }
    }
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

    let daemon = Daemon::ask(&socket);
    assert_eq!(daemon.node(), "node-1");
    let (files, bytes) = written(&daemon.items());
    let has = |name: &str, text: &str| {
        let file =
            files.get(&format!("report/{name}")).unwrap_or_else(|| panic!("{name} is not in {files:#?}"));
        assert!(file.contains(text), "{text} is not in {name}: {file}");
    };
    has("configuration.json", &kubeconfig.display().to_string());
    has("metrics.txt", "kube_ipvs_build_info{");
    has("limits.txt", "Max open files");
    has("log-level.txt", "kube_ipvs=info");
    has("status.txt", "synced:          no, something fails for 42 s");
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
    let daemon = Daemon::ask(Path::new("/nonexistent/control.sock"));
    assert!(!daemon.node().is_empty() && !daemon.node().contains('/'), "{}", daemon.node());
    let items = daemon.items();
    let why = "no daemon answers at /nonexistent/control.sock: is kube-ipvs running on this node?";
    assert_eq!(items.len(), 8);
    for Item { name, content } in items {
        assert_eq!(content, Err(why.to_owned()), "{name}");
    }
}
