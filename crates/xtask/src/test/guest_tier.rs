//! The tiers that run in the test kernel.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Context as _;

use super::libtest::{ENDED, Results, STARTS};
use super::tally::Report;
use super::unit;
use guest::api_server::{self, ApiServer};
use guest::go::{clients, control_plane, prometheus};
use guest::workspace::{self, TestBinary};
use guest::{Guest, Kernel, TIMED_OUT, quoted};

/// How long a tier may take: emulated, on a machine that has other work too.
const TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// All `kernel_…` targets in one boot.
pub(super) fn kernel(kernel: &Kernel, names: &[String]) -> Report {
    tier("kernel_", kernel, names, |_| Ok(()))
}

/// The `api_…` targets: those named `api_node…` in one boot of the test kernel, with an API server in
/// reach; the others here, where each starts servers of its own.
pub(super) fn api(kernel: &Kernel, names: &[String]) -> Report {
    let mut report = without_node(names);
    report.extend(tier("api_node", kernel, names, with_api_server));
    report
}

/// The `peer_node…` targets, with an API server in reach and the real kube-proxy beside kube-ipvs.
pub(super) fn peer(kernel: &Kernel, names: &[String]) -> Report {
    tier("peer_node", kernel, names, |guest| {
        let kube_proxy = control_plane::kube_proxy()?;
        guest.files.push(kube_proxy.clone());
        guest.env.push(("KUBE_PROXY_BIN".into(), kube_proxy.into()));
        let prom2json = prometheus::prom2json()?;
        guest.files.push(prom2json.clone());
        guest.env.push(("PROM2JSON_BIN".into(), prom2json.into()));
        with_api_server(guest)
    })
}

fn with_api_server(guest: &mut Guest) -> anyhow::Result<Option<ApiServer>> {
    api_server::equip(guest, &workspace::lab()?)
}

fn without_node(names: &[String]) -> Report {
    let run = || {
        let mut tests = workspace::test_binaries("api_")?;
        tests.retain(|test| !test.name.contains("/api_node"));
        let tests = with_tests_named(tests, names)?;
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script(&tests, names));
        shell.env("KUBEBUILDER_ASSETS", control_plane::ensure()?);
        shell.env("KUBE_IPVS_TEST_CLIENTS", clients::MODULE.built()?);
        shell.env("PROMTOOL_BIN", prometheus::promtool()?);
        unit::run(&mut shell)
    };
    run().unwrap_or_else(|error| Report::failure(format!("{error:#}")))
}

/// Runs the targets whose name starts with `prefix`, after `equip` has given the guest what they
/// need beside. What it returns is kept until they are through.
pub(super) fn tier<T>(
    prefix: &str,
    kernel: &Kernel,
    names: &[String],
    equip: impl FnOnce(&mut Guest) -> anyhow::Result<T>,
) -> Report {
    // What is missing is told before anything is built.
    if let Err(error) = kernel.prepare() {
        return Report::skip(format!("{error:#}"));
    }
    let built = || {
        let tests = with_tests_named(workspace::test_binaries(prefix)?, names)?;
        anyhow::Ok((tests, workspace::daemon()?))
    };
    let (tests, daemon) = match built() {
        Ok(built) => built,
        Err(error) => return Report::failure(format!("{error:#}")),
    };
    if tests.is_empty() {
        return Report::default();
    }
    let mut guest = Guest { timeout: TIMEOUT, ..Guest::new(kernel.clone()) };
    guest.env.push(("KUBE_IPVS_BIN".into(), daemon.clone().into()));
    guest.files = files(&tests, &daemon);
    let _equipment = match equip(&mut guest) {
        Ok(equipment) => equipment,
        Err(error) => return Report::skip(format!("{error:#}")),
    };

    let results = Mutex::new(Results::default());
    let feed = |piece: &[u8]| {
        if let Ok(mut results) = results.lock() {
            results.feed(piece);
        }
    };
    let ended = guest.run_tapped(&["sh".into(), "-c".into(), script(&tests, names)], &feed);
    let mut report = results.into_inner().unwrap_or_default().finish();
    match ended {
        Ok(0) => {}
        Ok(TIMED_OUT) => report.failed.push(format!("the tier took more than {} s", TIMEOUT.as_secs())),
        Ok(code) => report.failed.push(format!("the tier ended with code {code}")),
        Err(error) => report.failed.push(format!("{error:#}")),
    }
    report
}

/// Those of the binaries that have a test whose name contains one of `names`, or all if there are none. The
/// others would only print that they run nothing.
fn with_tests_named(tests: Vec<TestBinary>, names: &[String]) -> anyhow::Result<Vec<TestBinary>> {
    let mut found = Vec::new();
    for test in tests {
        let mut list = Command::new(&test.executable);
        list.args(["--list", "--format=terse", "--include-ignored"]).args(names);
        let output = list.output().with_context(|| format!("starting {}", test.executable.display()))?;
        if !output.stdout.is_empty() {
            found.push(test);
        }
    }
    Ok(found)
}

/// The binaries, and what they may read: test data, manifests, the documents whose commands are tried.
fn files(tests: &[TestBinary], daemon: &Path) -> Vec<std::path::PathBuf> {
    let read = ["manifests", "docs", "README.md"].map(|path| workspace::root().join(path));
    let mut files = vec![daemon.to_owned()];
    files.extend(read);
    for test in tests {
        files.extend([test.executable.clone(), test.directory.join("tests")]);
    }
    files.sort();
    files.dedup();
    files
}

/// A shell script that runs one binary after the other, each where cargo would run it: the tests whose
/// name contains one of `names`, or all if there are none. One test at a
/// time: a kernel message is then next to the test that caused it, and emulated processors gain
/// little from more.
fn script(tests: &[TestBinary], names: &[String]) -> OsString {
    let mut script = OsString::new();
    for TestBinary { name, directory, executable } in tests {
        let (directory, executable) = (quoted(directory.as_os_str()), quoted(executable.as_os_str()));
        script.push("cd ");
        script.push(&directory);
        script.push(format!("\necho '{STARTS}{name}'\nCARGO_MANIFEST_DIR="));
        script.push(&directory);
        script.push(" ");
        script.push(&executable);
        script.push(" --include-ignored --test-threads=1 --show-output");
        for name in names {
            script.push(" ");
            script.push(quoted(name.as_ref()));
        }
        script.push("\n");
        // A crash leaves an unfinished line behind.
        script.push(format!("printf '\\n{ENDED}%s\\n' $?\n"));
    }
    script
}
