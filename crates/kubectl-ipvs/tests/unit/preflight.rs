//! `kubectl ipvs preflight`: a Job on each node, of which nothing is left.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{calls, command, kubectl_ipvs, programs};

const IMAGE: &str = "--image=registry.test/kube-ipvs:1";
const REMOVAL: &str =
    "jobs,serviceaccounts,clusterroles,clusterrolebindings --selector k8s-app=kube-ipvs-preflight";

/// A kubectl of a cluster with the nodes `one` and `two`. The pods of their Jobs have these states and logs.
fn cluster(states: [&Value; 2], logs: [&str; 2]) -> TempDir {
    cluster_but("", states, logs)
}

/// What kubectl does if its arguments match.
fn when(arguments: &str, script: &str) -> String {
    format!("case \"$*\" in {arguments}) {script} ;; esac\n")
}

/// The same cluster, but kubectl runs this first.
fn cluster_but(first: &str, states: [&Value; 2], logs: [&str; 2]) -> TempDir {
    let pod = |node: &str, state: &Value| {
        let phase = if state["terminated"].is_null() { "Pending" } else { "Failed" };
        let status = json!({ "phase": phase, "containerStatuses": [{ "state": state }] });
        json!({ "items": [{ "metadata": { "name": format!("pod-{node}") }, "status": status }] })
    };
    programs(&format!(
        "{first}case \"$*\" in\n\
         *' get nodes '*) echo 'one   True'; echo 'two   False' ;;\n\
         *' apply '*) cat > \"$0.permissions\" ;;\n\
         *' create '*) job=$(cat); node=${{job##*'\"nodeName\":\"'}}; node=${{node%%'\"'*}}\n\
             echo \"$job\" > \"$0.job.$node\"; echo job.batch/preflight-$node ;;\n\
         *' get pods --selector job-name=preflight-one '*) echo '{}' ;;\n\
         *' get pods '*) echo '{}' ;;\n\
         *' logs pod-one') echo '{}' ;;\n\
         *' logs pod-two') echo '{}' ;;\n\
         esac\n",
        pod("one", states[0]),
        pod("two", states[1]),
        logs[0],
        logs[1],
    ))
}

fn terminated(code: u8) -> Value {
    json!({ "terminated": { "exitCode": code, "reason": "Error" } })
}

/// What `kube-ipvs preflight -o json` prints with this verdict.
fn report(verdict: &str) -> String {
    let alike = json!({ "verdict": "ok", "subject": "kernel", "what": "Linux 6.12.0", "remedy": null });
    let own = json!({ "verdict": verdict, "subject": "port 10256", "what": "it is taken", "remedy": null });
    json!({ "node": "n", "verdict": verdict, "findings": [alike, own] }).to_string()
}

/// Everything is removed at the end.
fn assert_removed(programs: &TempDir) {
    let calls = calls(programs);
    let deletes: Vec<_> = calls.iter().filter(|call| call.contains(" delete ")).collect();
    let delete =
        |what: &str| format!("--namespace kube-system delete {what} --ignore-not-found --wait=false");
    assert_eq!(deletes, [&delete(REMOVAL)]);
    assert_eq!(calls.last(), Some(&delete(REMOVAL)));
}

#[test]
fn each_node_has_a_job_and_the_reports_are_one_text_by_their_differences() {
    let (note, warning) = (report("note"), report("warning"));
    let programs = cluster([&terminated(0), &terminated(1)], [&note, &warning]);
    let output = kubectl_ipvs(&programs, &["preflight", IMAGE]);
    let expected = "\
all 2 nodes:
  ok       kernel: Linux 6.12.0

two:
  warning  port 10256: it is taken

one:
  note     port 10256: it is taken
";
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(1), String::new()));
    for node in ["one", "two"] {
        let job = fs::read(programs.path().join(format!("kubectl.job.{node}"))).unwrap();
        let job: Value = serde_json::from_slice(&job).unwrap();
        let image = &job["spec"]["template"]["spec"]["containers"][0]["image"];
        assert_eq!(image, "registry.test/kube-ipvs:1");
    }
    assert!(programs.path().join("kubectl.permissions").exists());
    assert_removed(&programs);
}

#[test]
fn it_succeeds_if_no_node_has_more_than_notes_and_programs_get_the_reports() {
    let note = report("note");
    let programs = cluster([&terminated(0), &terminated(0)], [&note, &note]);
    let output = kubectl_ipvs(&programs, &["preflight", IMAGE, "-l", "pool=a", "-o", "json"]);
    assert_eq!(output.status.code(), Some(0));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let report: Value = serde_json::from_str(&note).unwrap();
    let node = |name: &str| json!({ "node": name, "pod": "", "in_order": true, "complaint": null, "answer": report });
    assert_eq!(printed, json!({ "nodes": [node("one"), node("two")] }));
    let columns = "NAME:.metadata.name,READY:.status.conditions[?(@.type==\"Ready\")].status";
    let get = format!("--namespace kube-system get nodes --no-headers --output custom-columns={columns}");
    assert!(calls(&programs).contains(&format!("{get} --selector pool=a")));

    _ = kubectl_ipvs(&programs, &["preflight", IMAGE, "--node", "one", "--node", "two"]);
    assert!(calls(&programs).contains(&format!("{get} one two")));
    let both = kubectl_ipvs(&programs, &["preflight", IMAGE, "--node", "one", "-l", "pool=a"]);
    assert_eq!(both.status.code(), Some(64));
}

#[test]
fn a_node_whose_job_has_no_report_says_why_and_is_not_waited_for_in_vain() {
    let pulls =
        json!({ "waiting": { "reason": "ImagePullBackOff", "message": "registry.test: no such host" } });
    let programs = cluster([&pulls, &terminated(64)], ["", "kube-ipvs: unexpected argument"]);
    let started = Instant::now();
    let output = kubectl_ipvs(&programs, &["preflight", IMAGE]);
    assert!(started.elapsed() < Duration::from_secs(60));
    let expected = "\
NODE  ANSWER
one   no answer: its container cannot start: ImagePullBackOff: registry.test: no such host
two   no answer: kube-ipvs exited with 64: Error: kube-ipvs: unexpected argument
";
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    assert_eq!(output.status.code(), Some(1));
    assert_removed(&programs);

    let creates = json!({ "waiting": { "reason": "ContainerCreating" } });
    let programs = cluster([&creates, &terminated(0)], ["", &report("ok")]);
    let output = kubectl_ipvs(&programs, &["preflight", IMAGE, "--timeout", "1"]);
    let said = String::from_utf8(output.stdout).unwrap();
    let why = "one     no answer: timed out after 1 s: its pod is Pending, ContainerCreating\n";
    assert!(said.contains(why) && said.contains("1 node  above"), "{said}");
    assert_removed(&programs);
}

#[test]
fn a_failed_request_is_repeated_until_the_timeout() {
    let first = when(
        "*' get pods '*|*' logs '*",
        "[ -e \"$0.$3.$4.$6\" ] || { touch \"$0.$3.$4.$6\"; echo 'the server is down' >&2; exit 1; }",
    );
    let note = report("note");
    let programs = cluster_but(&first, [&terminated(0), &terminated(0)], [&note, &note]);
    let output = kubectl_ipvs(&programs, &["preflight", IMAGE]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    let failed = ["get.pods.job-name=preflight-one", "logs.pod-two."];
    assert!(failed.iter().all(|failed| programs.path().join(format!("kubectl.{failed}")).exists()));

    let always = when("*' get pods '*", "echo 'the server is down' >&2; exit 1");
    let programs = cluster_but(&always, [&terminated(0), &terminated(0)], [&note, &note]);
    let output = kubectl_ipvs(&programs, &["preflight", IMAGE, "--timeout", "1"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("timed out after 1 s: kubectl get pods: the server is down\n"), "{said}");
    assert_removed(&programs);
}

#[test]
fn a_node_whose_kubelet_does_not_report_is_not_asked() {
    let nodes = when("*' get nodes '*", "echo 'one   True'; echo 'two   Unknown'; exit");
    let programs = cluster_but(&nodes, [&terminated(0), &Value::Null], [&report("ok"), ""]);
    let output = kubectl_ipvs(&programs, &["preflight", IMAGE]);
    let said = String::from_utf8(output.stdout).unwrap();
    let why = "two     no answer: NotReady, not asked: its kubelet does not report\n";
    assert!(said.contains(why) && said.contains("1 node  above"), "{said}");
    assert_eq!(output.status.code(), Some(1));
    assert!(!calls(&programs).iter().any(|call| call.contains("preflight-two")));
    assert_removed(&programs);
}

#[test]
fn a_node_whose_job_gets_no_pod_has_the_job_controller_s_reason() {
    let event = |message: &str| json!({ "items": [{ "reason": "FailedCreate", "message": message }] });
    let (forbidden, failed) = (
        "Error creating: pods \"p\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces",
        "Error creating: Internal error occurred: failed calling webhook",
    );
    let of = |node: &str| format!("*' get events --field-selector involvedObject.name=preflight-{node},'*");
    let print = |json: &Value| format!("printf '%s' '{json}'; exit");
    let cases = [
        when("*' get pods '*", &print(&json!({ "items": [] }))),
        when(&of("one"), &print(&event(forbidden))),
        when(&of("two"), &print(&event(failed))),
    ];
    let programs = cluster_but(&cases.concat(), [&Value::Null, &Value::Null], ["", ""]);
    let output = kubectl_ipvs(&programs, &["preflight", IMAGE, "--timeout", "1"]);
    let said = String::from_utf8(output.stdout).unwrap();
    let one = format!("one   no answer: its Job preflight-one has no pod: {forbidden}\n");
    let two = format!("two   no answer: timed out after 1 s: its Job preflight-two has no pod: {failed}\n");
    assert!(said.contains(&one) && said.contains(&two), "{said}");
    assert_removed(&programs);
}

#[test]
fn ctrl_c_does_not_end_the_removal() {
    let remove = when("*' delete '*", "touch \"$0.removing\"; sleep 1; touch \"$0.removed\"; exit");
    let note = report("note");
    let programs = cluster_but(&remove, [&terminated(0), &terminated(0)], [&note, &note]);
    let mut plugin = command(&programs, &["preflight", IMAGE]);
    let plugin = plugin.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn().unwrap();
    wait_for(&programs.path().join("kubectl.removing"));
    // As a terminal does: the signal reaches the whole process group.
    let kill = Command::new("kill").args(["-INT", "--", &format!("-{}", plugin.id())]).status().unwrap();
    assert!(kill.success());
    let output = plugin.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "kubectl ipvs: interrupted\n");
    assert!(programs.path().join("kubectl.removed").exists());
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    let creates = json!({ "waiting": { "reason": "ContainerCreating" } });
    let programs = cluster([&creates, &creates], ["", ""]);
    let mut plugin = command(&programs, &["preflight", IMAGE]);
    let plugin = plugin.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for(&programs.path().join("kubectl.job.two"));
    let kill = Command::new("kill").args(["-INT", &plugin.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let output = plugin.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "kubectl ipvs: interrupted\n");
    assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(1), true));
    assert_removed(&programs);
}

#[test]
fn beside_another_run_no_job_is_made() {
    let programs = super::programs(
        "case \"$*\" in *' get nodes '*) echo one True ;; *' get jobs '*) echo job.batch/a ;; esac\n",
    );
    let output = kubectl_ipvs(&programs, &["preflight", IMAGE]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("another run is under way") && output.status.code() == Some(1), "{said}");
    let calls = calls(&programs);
    assert!(
        !calls.iter().any(|call| [" apply ", " create ", " delete "].iter().any(|it| call.contains(it))),
        "{calls:?}"
    );
}

fn wait_for(file: &Path) {
    let started = Instant::now();
    while !file.exists() {
        assert!(started.elapsed() < Duration::from_secs(60), "{} is missing", file.display());
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn without_an_image_or_permissions_no_job_is_made() {
    let programs = cluster([&terminated(0), &terminated(0)], ["", ""]);
    let output = kubectl_ipvs(&programs, &["preflight"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("registry.example/kube-ipvs:") && said.contains("--image"), "{said}");
    assert!(!programs.path().join("kubectl.calls").exists());

    let refused = super::programs(
        "case \"$*\" in *' get nodes '*) echo one True ;; *' apply '*) echo 'error: forbidden' >&2; exit 1 ;; esac\n",
    );
    let output = kubectl_ipvs(&refused, &["preflight", IMAGE]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, "kubectl ipvs: creating the permissions: error: forbidden\n");
    assert_eq!(output.status.code(), Some(1));
    assert_removed(&refused);
}
