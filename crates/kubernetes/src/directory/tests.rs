use std::{os::unix::fs::symlink, sync::mpsc as blocking};

use service::{EndpointSlice, Event, Node, Service};
use tempfile::TempDir;
use testkit::log::Log;

use super::*;

const WEB: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.7, ports: [{port: 80}]}
";

const WEB_SLICE: &str = "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.0.5]}, {addresses: [10.244.0.6]}]
";

const NODE: &str = "
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}], phase: Pending}
";

fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

type Read = (Vec<Service>, Vec<EndpointSlice>, Option<Node>);

fn read(files: &[(&str, &str)]) -> Result<Read, Error> {
    let mut changes = read_once(directory(files).path(), "n1")?;
    let (Some(Change::Slices(Event::Replace(slices))), Some(Change::Services(Event::Replace(services)))) =
        (changes.pop(), changes.pop())
    else {
        panic!("not two replacements at last")
    };
    let Some(Change::Peers(Event::Replace(_))) = changes.pop() else { panic!("no other Nodes before them") };
    let node = changes.pop().map(|change| match change {
        Change::Node(Some(node)) => node,
        other => panic!("not a Node: {other:?}"),
    });
    Ok((services, slices, node))
}

fn names(services: &[Service]) -> Vec<String> {
    services.iter().map(|service| service.name.to_string()).collect()
}

/// The error's file name and what follows.
fn refused(files: &[(&str, &str)]) -> String {
    let text = read(files).unwrap_err().to_string();
    text.rsplit_once('/').unwrap().1.to_owned()
}

#[test]
fn several_documents_lists_and_json_are_read() {
    let list = r#"{"apiVersion":"v1","kind":"List","items":[
        {"apiVersion":"v1","kind":"Service","metadata":{"name":"a","namespace":"shop"},"spec":{"clusterIP":"10.96.0.8"}},
        {"apiVersion":"v1","kind":"Node","metadata":{"name":"n2","labels":{"topology.kubernetes.io/zone":"z2"}}},
        {"apiVersion":"v1","kind":"Node","metadata":{"name":"n1","labels":{"topology.kubernetes.io/zone":"z1"}}}
    ]}"#;
    let service_list = "
apiVersion: v1
kind: ServiceList
items:
- metadata: {name: b, namespace: shop}
  spec: {clusterIP: 10.96.0.9}
";
    let files =
        [("web.yaml", &*format!("{WEB}---{WEB_SLICE}")), ("list.json", list), ("more.yml", service_list)];
    let (services, slices, node) = read(&files).unwrap();
    assert_eq!(names(&services), ["default/web", "shop/a", "shop/b"]);
    assert_eq!(slices.len(), 1);
    assert_eq!(node.unwrap().zone.as_deref(), Some("z1"));
}

#[test]
fn the_node_comes_before_the_lists_at_first_and_later() {
    let files = [("web.yaml", WEB), ("slice.yaml", WEB_SLICE), ("z-node.yaml", NODE)];
    let changes = read_once(directory(&files).path(), "n1").unwrap();
    assert!(
        matches!(
            &changes[..],
            [
                Change::Node(Some(_)),
                Change::Peers(Event::Replace(_)),
                Change::Services(Event::Replace(_)),
                Change::Slices(Event::Replace(_))
            ]
        ),
        "{changes:?}"
    );

    let all = files.map(|(_, text)| text).join("---");
    let contents = |text: &str| {
        let mut directory = Directory::empty(Path::new(""), "n1");
        directory.take("all.yaml".into(), text.as_bytes()).unwrap();
        directory.contents()
    };
    let later = contents(&all).since(&contents(""));
    assert!(
        matches!(
            &later[..],
            [Change::Node(Some(_)), Change::Slices(Event::Apply(_)), Change::Services(Event::Apply(_))]
        ),
        "{later:?}"
    );
}

#[test]
fn what_the_api_server_would_fill_in_is_filled_in() {
    let (services, slices, _) = read(&[("web.yaml", WEB), ("slice.yaml", WEB_SLICE)]).unwrap();
    assert_eq!(names(&services), ["default/web"]);
    assert_eq!(slices[0].service.to_string(), "default/web");
    assert_eq!((&*slices[0].ports[0].name, slices[0].ports[0].port), ("", 8080));
    assert_eq!(slices[0].problems, Vec::<String>::new());
}

#[test]
fn other_kinds_and_other_files_are_ignored() {
    let knative = WEB.replace("apiVersion: v1", "apiVersion: serving.knative.dev/v1");
    let files = [
        ("pod.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"),
        ("knative.yaml", &knative),
        ("README.md", "# {not yaml"),
        (".hidden.yaml", "{not yaml"),
        ("empty.yaml", "# nothing\n---\n---\n"),
    ];
    assert_eq!(read(&files).unwrap(), (vec![], vec![], None));
}

#[test]
fn malformed_yaml_names_the_file_and_the_place() {
    let text = format!("{WEB}---\nmetadata:\n  name: x\n bad indent: [\n");
    let line = text.lines().count();
    assert_eq!(
        refused(&[("a.yaml", WEB), ("b.yaml", &text)]),
        format!("b.yaml:{line}:2: while parsing a block mapping, did not find expected key")
    );
    assert_eq!(
        refused(&[("a.yaml", "kind: A\nkind: B\n")]),
        "a.yaml:2:1: duplicate mapping key: kind not allowed here"
    );
}

#[test]
fn malformed_json_names_the_file_and_the_place() {
    assert_eq!(refused(&[("a.json", "{\n \"kind\": \"List\",\n}")]), "a.json:3:1: trailing comma");
}

#[test]
fn text_that_is_not_utf8_names_the_place() {
    let directory = directory(&[]);
    fs::write(directory.path().join("a.yaml"), b"kind: x\nname: \xff\n").unwrap();
    let message = read_once(directory.path(), "n1").unwrap_err().to_string();
    assert!(message.ends_with("a.yaml:2:7: not UTF-8"), "{message}");
}

#[test]
fn a_missing_directory_is_an_error() {
    let error = read_once(Path::new("/nonexistent/manifests"), "n1").unwrap_err();
    assert_eq!(error.to_string(), "cannot read the directory /nonexistent/manifests");
}

#[test]
fn a_malformed_object_is_skipped_alone() {
    let text =
        format!("{WEB}---\napiVersion: v1\nkind: Service\nmetadata: 5\n---\njust text\n---{WEB_SLICE}");
    let (services, slices, _) = read(&[("a.yaml", &text)]).unwrap();
    assert_eq!((services.len(), slices.len()), (1, 1));
}

#[test]
fn the_last_file_wins_where_an_object_is_there_twice() {
    let other = WEB.replace("10.96.0.7", "10.96.0.99");
    let (services, ..) = read(&[("b.yaml", &other), ("a.yaml", WEB)]).unwrap();
    assert_eq!(services.len(), 1);
    assert_eq!(services[0].cluster_ips[0].to_string(), "10.96.0.99");
}

#[test]
fn a_file_may_hold_thousands_of_objects() {
    let web = |i| WEB.replace("web", &format!("web-{i}"));
    let text = (0..3000).map(web).collect::<Vec<_>>().join("---");
    assert_eq!(read(&[("many.yaml", &text)]).unwrap().0.len(), 3000);
}

/// A directory that is being watched.
struct Watched {
    directory: TempDir,
    problems: Problems,
    changes: blocking::Receiver<Change>,
    _runtime: tokio::runtime::Runtime,
}

impl Watched {
    /// Starts to watch and swallows what is there at first, of which the slices come last.
    fn new(directory: TempDir) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (send, changes) = blocking::channel();
        let path = directory.path().to_owned();
        let problems = Problems::default();
        let shared = problems.clone();
        runtime.spawn(
            async move { watch(&path, "n1", &shared, move |change| send.send(change).unwrap()).await },
        );
        let watched = Self { directory, problems, changes, _runtime: runtime };
        while !matches!(watched.next(), Change::Slices(Event::Replace(_))) {}
        watched
    }

    fn next(&self) -> Change {
        self.changes.recv_timeout(Duration::from_secs(5)).expect("no change within five seconds")
    }

    /// Makes sure that no change comes, for long enough that one would have been seen.
    fn nothing_more(&self) {
        let change = self.changes.recv_timeout(SETTLE * 8);
        assert!(change.is_err(), "unexpected: {change:?}");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

#[test]
fn a_change_of_a_file_sends_the_difference_only() {
    let watched = Watched::new(directory(&[("web.yaml", WEB), ("slice.yaml", WEB_SLICE)]));
    fs::write(watched.path("slice.yaml"), WEB_SLICE.replace(", {addresses: [10.244.0.6]}", "")).unwrap();
    let Change::Slices(Event::Apply(slice)) = watched.next() else { panic!("not a slice") };
    assert_eq!(slice.endpoints.len(), 1);
    watched.nothing_more();
}

#[test]
fn a_file_that_is_gone_takes_its_objects_along() {
    let watched = Watched::new(directory(&[("web.yaml", WEB), ("slice.yaml", WEB_SLICE)]));
    fs::remove_file(watched.path("web.yaml")).unwrap();
    assert_eq!(watched.next(), Change::Services(Event::Delete("default/web".parse().unwrap())));
    watched.nothing_more();
}

#[test]
fn what_is_wrong_with_an_object_is_logged_again_when_its_file_has_been_away() {
    let odd = WEB.replace("{clusterIP: 10.96.0.7, ports: [{port: 80}]}", "none");
    let directory = directory(&[("odd.yaml", &odd)]);
    let file = directory.path().join("odd.yaml");
    let log = Log::start().unwrap();
    let mut source = Directory::open(directory.path(), "n1").unwrap();
    for (is_there, times) in [(true, 1), (true, 1), (false, 1), (true, 2), (true, 2)] {
        if is_there {
            fs::write(&file, &odd).unwrap();
        } else {
            fs::remove_file(&file).unwrap();
        }
        source.refresh();
        source.contents();
        let lines = log.lines().unwrap();
        let logged = lines.iter().filter(|line| line.contains("Service default/web: in part: spec")).count();
        assert_eq!(logged, times, "{lines:#?}");
    }
}

#[test]
fn an_atomically_renamed_file_is_read() {
    let watched = Watched::new(directory(&[("web.yaml", WEB)]));
    fs::write(watched.path("web.yaml.tmp"), WEB.replace("80", "81")).unwrap();
    fs::rename(watched.path("web.yaml.tmp"), watched.path("web.yaml")).unwrap();
    let Change::Services(Event::Apply(service)) = watched.next() else { panic!("not a Service") };
    assert_eq!(service.ports[0].port, 81);
}

#[test]
fn a_configmap_volume_that_swaps_its_link_is_read() {
    let volume = directory(&[]);
    let at = |name: &str| volume.path().join(name);
    for (version, text) in [("..1", WEB.to_owned()), ("..2", WEB.replace("80", "82"))] {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("web.yaml"), text).unwrap();
    }
    symlink("..1", at("..data")).unwrap();
    symlink("..data/web.yaml", at("web.yaml")).unwrap();

    let watched = Watched::new(volume);
    symlink("..2", watched.path("..data_tmp")).unwrap();
    fs::rename(watched.path("..data_tmp"), watched.path("..data")).unwrap();
    let Change::Services(Event::Apply(service)) = watched.next() else { panic!("not a Service") };
    assert_eq!(service.ports[0].port, 82);
}

#[test]
fn a_file_that_becomes_malformed_keeps_its_last_good_objects() {
    let watched = Watched::new(directory(&[("web.yaml", WEB)]));
    fs::write(watched.path("web.yaml"), "kind: [").unwrap();
    watched.nothing_more();
    let [problem] = &watched.problems.all()[..] else { panic!("{:?}", watched.problems) };
    assert!(problem.contains("/web.yaml:1:"), "{problem}");
    assert!(problem.ends_with("; its last valid objects are kept"), "{problem}");
    fs::write(watched.path("web.yaml"), WEB.replace("80", "83")).unwrap();
    let Change::Services(Event::Apply(service)) = watched.next() else { panic!("not a Service") };
    assert_eq!(service.ports[0].port, 83);
    assert_eq!(watched.problems.all(), [""; 0], "it is good again");
}

#[test]
fn a_directory_that_cannot_be_read_is_a_problem_until_it_can() {
    let directory = directory(&[("web.yaml", WEB)]);
    let (path, away) = (directory.path().join("manifests"), directory.path().join("away"));
    fs::create_dir(&path).unwrap();
    let log = Log::start().unwrap();
    let mut source = Directory::open(&path, "n1").unwrap();
    for (from, to, problems) in [
        (
            &path,
            &away,
            vec![format!(
                "cannot read the directory {}: No such file or directory (os error 2); its last valid objects are kept",
                path.display()
            )],
        ),
        (&away, &path, Vec::new()),
    ] {
        fs::rename(from, to).unwrap();
        for _ in 0..2 {
            source.refresh();
            source.contents();
            assert_eq!(source.problems(), problems);
        }
    }
    let lines = log.lines().unwrap();
    let [warning, end] = &lines[..] else { panic!("{lines:#?}") };
    assert!(warning.starts_with("WARN cannot read the directory"), "{warning}");
    assert!(end.starts_with("INFO resolved: cannot read the directory"), "{end}");
}

#[test]
fn what_is_skipped_is_a_problem_as_long_as_it_is_there() {
    let unusable = "apiVersion: v1\nkind: Service\nmetadata: 5\n---\njust text\n---\n\
                   apiVersion: v1\nkind: List\nitems: 7\n";
    let directory = directory(&[("a.yaml", unusable), ("b.yaml", WEB), ("c.yaml", WEB)]);
    let at = |what: &str| format!("{}/a.yaml, document {what}", directory.path().display());
    let mut source = Directory::open(directory.path(), "n1").unwrap();
    source.contents();
    assert_eq!(
        source.problems(),
        [
            at("2: not an object with apiVersion and kind; it is skipped"),
            at("3: items of the List is not a list; it is skipped"),
            "Service /: the whole object is skipped: metadata: 5 is not an object; it has no valid name or namespace"
                .to_owned(),
            "Service default/web is defined twice: the one in the last file counts".to_owned(),
        ]
    );
    for gone in ["a.yaml", "c.yaml"] {
        fs::remove_file(directory.path().join(gone)).unwrap();
    }
    source.refresh();
    source.contents();
    assert_eq!(source.problems(), [""; 0]);
}

#[test]
fn of_very_many_problems_the_first_are_listed() {
    let documents = vec!["just text"; 1000].join("\n---\n");
    let directory = directory(&[("a.yaml", &documents)]);
    let mut source = Directory::open(directory.path(), "n1").unwrap();
    source.contents();
    assert_eq!(source.problems().len(), Problems::MOST);
}

#[test]
fn a_broken_file_does_not_hold_up_the_others() {
    let watched = Watched::new(directory(&[]));
    fs::write(watched.path("a.yaml"), "kind: [").unwrap();
    fs::write(watched.path("web.yaml"), WEB).unwrap();
    assert!(matches!(watched.next(), Change::Services(Event::Apply(_))));
}

#[test]
fn rewriting_the_same_content_sends_nothing() {
    let watched = Watched::new(directory(&[("web.yaml", WEB)]));
    fs::write(watched.path("web.yaml"), WEB).unwrap();
    watched.nothing_more();
}

#[test]
fn only_the_zone_and_the_addresses_of_a_node_are_a_change() {
    let watched = Watched::new(directory(&[("node.yaml", NODE)]));
    fs::write(watched.path("node.yaml"), NODE.replace("Pending", "Running")).unwrap();
    watched.nothing_more();
    fs::write(watched.path("node.yaml"), NODE.replace("192.0.2.1", "192.0.2.2")).unwrap();
    let Change::Node(Some(node)) = watched.next() else { panic!("not a Node") };
    let ips = vec!["192.0.2.2".parse().unwrap()];
    assert_eq!(node, Node { name: "n1".into(), ips, ..Node::default() });
}

#[test]
fn a_malformed_file_at_the_start_sends_nothing() {
    let directory = directory(&[("a.yaml", "kind: ["), ("web.yaml", WEB)]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let sent = |change| panic!("sent {change:?}");
    let outcome = runtime.block_on(watch(directory.path(), "n1", &Problems::default(), sent));
    assert!(matches!(outcome, Err(Error::Malformed { .. })));
}
