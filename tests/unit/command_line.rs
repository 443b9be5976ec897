//! The program's output for command lines, configuration files and kubeconfigs, good and bad, before it touches the
//! kernel. None of this needs root.

mod configuration;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use tempfile::TempDir;

/// Runs the program.
fn kube_ipvs(arguments: &[&str]) -> Output {
    crate::kube_ipvs().args(arguments).output().unwrap()
}

/// The first line of what it says on standard error, having failed with this exit code.
fn complaint(code: i32, arguments: &[&str]) -> String {
    let output = kube_ipvs(arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?} said:\n{said}");
    assert!(output.stdout.is_empty(), "{arguments:?} printed to standard output");
    said.lines().next().unwrap_or_default().to_owned()
}

/// A directory with one file, and that file's path.
fn file(name: &str, content: &str) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    fs::write(&path, content).unwrap();
    (directory, path)
}

#[test]
fn the_version_is_printed() {
    let output = kube_ipvs(&["--version"]);
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        concat!("kube-ipvs ", env!("CARGO_PKG_VERSION"), "\n")
    );
}

#[test]
fn version_succeeds_without_a_daemon_and_says_why_there_is_no_other_version() {
    let output = kube_ipvs(&["version", "--control-socket=/nonexistent/control.sock"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let [ours, daemon] = &said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert!(ours.starts_with(concat!("kube-ipvs: ", env!("CARGO_PKG_VERSION"), ", linux/")), "{said}");
    assert!(daemon.starts_with("daemon:    no daemon answers at /nonexistent/control.sock"), "{said}");
}

#[test]
fn the_help_names_every_command() {
    let output = kube_ipvs(&["--help"]);
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).unwrap();
    for command in [
        "run",
        "preflight",
        "list",
        "top",
        "trace",
        "probe",
        "diff",
        "explain",
        "resync",
        "status",
        "log-level",
        "completion",
        "bugreport",
        "config",
        "cleanup",
        "version",
    ] {
        assert!(help.contains(&format!("\n  {command}")), "{command} in:\n{help}");
    }
}

#[test]
fn the_daemons_flags_are_in_the_help_of_run_and_taken_without_it_too() {
    let help = |arguments: &[&str]| String::from_utf8(kube_ipvs(arguments).stdout).unwrap();
    let (root, run) = (help(&["--help"]), help(&["run", "--help"]));
    for flag in ["--proxy-mode", "--cluster-cidr", "--vip-binding"] {
        assert!(!root.contains(flag) && run.contains(flag), "{flag} in:\n{root}\n{run}");
    }
    assert!(root.contains("kube-ipvs run --help") && root.lines().count() < 60, "{root}");
    let written = tempfile::tempdir().unwrap();
    for (number, run) in [&[][..], &["run"]].into_iter().enumerate() {
        let path = written.path().join(number.to_string());
        let path = format!("--write-config-to={}", path.display());
        let output = kube_ipvs(&[run, &["--proxy-mode=ipvs", "--cluster-cidr=10.1.0.0/16", &path]].concat());
        assert!(output.status.success(), "{run:?}: {output:?}");
    }
    let [one, other] = ["0", "1"].map(|name| fs::read_to_string(written.path().join(name)).unwrap());
    assert!(one.contains("10.1.0.0/16") && one == other, "{one}\n{other}");
}

/// Those that kube-proxy lets go before the file, and those it does not have. `--config` explains the mark.
#[test]
fn the_help_marks_the_flags_that_go_before_the_file() {
    let output = kube_ipvs(&["run", "--help"]);
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).unwrap();
    let text = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let marked: Vec<_> = text
        .split(" --")
        .skip(1)
        .filter(|flag| flag.contains(" *"))
        .filter_map(|flag| flag.split([' ', ',', '<', '[']).next())
        .collect();
    assert_eq!(
        marked,
        [
            "config",
            "hostname-override",
            "v",
            "logging-format",
            "master",
            "service-metrics",
            "vip-binding",
            "external-forwarding-method",
            "tunnel",
            "external-ip-policy",
            "drain-timeout",
            "eject",
            "weights-by-distance",
            "untracked-services",
            "host-firewall",
            "foreign-virtual-servers",
            "manifests",
            "init-only",
            "write-config-to"
        ],
        "{help}"
    );
}

#[test]
fn a_usage_error_of_a_flag_is_one_clear_line_and_exit_code_64() {
    for (arguments, expected) in [
        (&["--no-such-flag"][..], "kube-ipvs: unexpected argument '--no-such-flag' found"),
        (&["run", "--no-such-flag"], "kube-ipvs: unexpected argument '--no-such-flag' found"),
        (&["dance"], "kube-ipvs: unrecognized subcommand 'dance'"),
        (
            &["--ipvs-scheduler=ROUND"],
            "kube-ipvs: --ipvs-scheduler: \"ROUND\" cannot be an IPVS scheduler: \
             a name has 1 to 15 lower-case letters, digits, - or _",
        ),
        (
            &["--cluster-cidr=10.244.0.0/99"],
            "kube-ipvs: --cluster-cidr: invalid value \"10.244.0.0/99\": expected a CIDR such as 10.244.0.0/16 or fd00::/48",
        ),
        (
            &["--external-ip-policy=203.0.113.7"],
            "kube-ipvs: --external-ip-policy: invalid value \"203.0.113.7\": expected a CIDR such as 10.244.0.0/16 or fd00::/48",
        ),
        (
            &["run", "--ipvs-exclude-cidrs=10.0.0.0/8,here"],
            "kube-ipvs: --ipvs-exclude-cidrs: invalid value \"here\": expected a CIDR such as 10.244.0.0/16 or fd00::/48",
        ),
        (
            &["--proxy-mode=iptables"],
            "kube-ipvs: --proxy-mode: mode \"iptables\" is not supported: \
             kube-ipvs supports only mode ipvs",
        ),
        (
            &["--ipvs-sync-period=30"],
            "kube-ipvs: invalid value '30' for '--ipvs-sync-period <DURATION>': \
             invalid duration \"30\": expected for example 30s, 1m30s or 500ms",
        ),
        (
            &["--conntrack-max-per-core=many"],
            "kube-ipvs: invalid value 'many' for '--conntrack-max-per-core <COUNT>': \
             invalid digit found in string",
        ),
        (
            &["--nodeport-addresses=primary,10.0.0.0/8,primary"],
            "kube-ipvs: --nodeport-addresses: \"primary\" is given twice",
        ),
        (
            &["run", "--bind-address=eth0"],
            "kube-ipvs: --bind-address: invalid value \"eth0\": expected an IP address",
        ),
        (
            &["--feature-gates=AllowServiceExternalIPs"],
            "kube-ipvs: invalid value 'AllowServiceExternalIPs' for '--feature-gates <NAME=BOOL,...>': \
             invalid feature gate \"AllowServiceExternalIPs\": expected NAME=true or NAME=false",
        ),
        (
            &["--drain-timeout=10"],
            "kube-ipvs: invalid value '10' for '--drain-timeout <DURATION>': \
             invalid duration \"10\": expected for example 30s, 1m30s or 500ms",
        ),
        (
            &["--eject=dead"],
            "kube-ipvs: invalid value 'dead' for '--eject <FAILING>': expected off, silent, refusing or silent,refusing",
        ),
        (
            &["--weights-by-distance=node=100,zone=10"],
            "kube-ipvs: invalid value 'node=100,zone=10' for '--weights-by-distance <FACTORS>': \
             expected off or node=N,zone=N,other=N with numbers between 1 and 1000",
        ),
        (&["--host-firewall=open"], "kube-ipvs: invalid value 'open' for '--host-firewall <HOW>'"),
        (
            &["--oom-score-adj", "-2000"],
            "kube-ipvs: --oom-score-adj: invalid value -2000: expected an OOM score adjustment from -1000 to 1000",
        ),
        (
            &["--healthz-bind-address=10256"],
            "kube-ipvs: --healthz-bind-address: invalid value \"10256\": expected an address with a port from 1 to 65535, \
             such as 0.0.0.0:10256 or [::]:10256",
        ),
        (
            &["--conntrack-udp-timeout=-1s"],
            "kube-ipvs: --conntrack-udp-timeout: invalid value -1s: expected 0 or more",
        ),
        (
            &["--metrics-bind-address=", "--write-config-to=/nonexistent/config.conf"],
            "kube-ipvs: metricsBindAddress: a file cannot disable this address, \
             since empty means the default there: use the flag",
        ),
    ] {
        assert_eq!(complaint(64, arguments), expected, "{arguments:?}");
    }
}

#[test]
fn a_usage_error_of_a_command_is_one_clear_line_and_exit_code_64() {
    for (arguments, expected) in [
        (
            &["list", "10.96.0.0/16"][..],
            "kube-ipvs: invalid value '10.96.0.0/16' for '[WHICH]': expected NAMESPACE, NAMESPACE/NAME, or an address \
             such as 10.96.0.10, 10.96.0.10:80 or [fd00::a]:80",
        ),
        (
            &["list", "-c", "--services"],
            "kube-ipvs: the argument '--connections' cannot be used with '--services'",
        ),
        (&["list", "-o", "xml"], "kube-ipvs: invalid value 'xml' for '--output <FORMAT>'"),
        (
            &["cleanup", "--hand-over", "--wait=-1s"],
            "kube-ipvs: invalid value '-1s' for '--wait <DURATION>': expected 0 or more",
        ),
        (
            &["cleanup", "--hand-over", "--dry-run", "--yes"],
            "kube-ipvs: the argument '--dry-run' cannot be used with '--yes'",
        ),
    ] {
        assert_eq!(complaint(64, arguments), expected, "{arguments:?}");
    }
}

/// With the least address space in which the program comes as far as its own code, found by bisection: there is no room for the
/// threads. With less there is no room for the program itself, which only the system can report.
#[test]
fn threads_that_cannot_be_started_are_one_line_and_no_panic() {
    let server = "clusters: [{name: c, cluster: {server: 'http://nowhere.invalid:6443'}}]\n\
                  contexts: [{name: c, context: {cluster: c, user: ''}}]\ncurrent-context: c\n";
    let (_directory, kubeconfig) = file("kubeconfig", server);
    let without_daemon = format!("explain a/b -- --kubeconfig={}", kubeconfig.display());
    for arguments in ["--kubeconfig=/nonexistent", &without_daemon] {
        let (mut too_little, mut enough) = (20_000, 2_000_000);
        let mut refused = String::new();
        while enough - too_little > 500 {
            let kilobytes = u32::midpoint(too_little, enough);
            match with_address_space(kilobytes, arguments) {
                Some(said) => (enough, refused) = (kilobytes, said),
                None => too_little = kilobytes,
            }
        }
        let threads = "kube-ipvs: cannot start the threads of the runtime: Resource temporarily unavailable (os error 11)";
        assert_eq!(refused.lines().last(), Some(threads), "{arguments}: {refused}");
    }
}

/// What the program says within this much address space, if it comes as far as its own code. Before that the loader or the
/// allocator ends it by a signal, or Rust's library panics, which has no room for its handler of overflows.
fn with_address_space(kilobytes: u32, arguments: &str) -> Option<String> {
    let limited = format!("ulimit -v {kilobytes}; exec timeout 5 \"$0\" {arguments}");
    let output =
        Command::new("bash").args(["-c", &limited, env!("CARGO_BIN_EXE_kube-ipvs")]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let before_main =
        output.status.code().is_none() && said.contains("failed to allocate an alternative stack");
    assert!(before_main || !said.contains("panicked"), "{arguments}, {kilobytes} kB: {said}");
    matches!(output.status.code(), Some(1 | 124)).then_some(said)
}

#[test]
fn a_missing_kubeconfig_is_named() {
    assert_eq!(
        complaint(1, &["--kubeconfig=/nonexistent/kubeconfig"]),
        "kube-ipvs: kubeconfig /nonexistent/kubeconfig: No such file or directory (os error 2)"
    );
}

#[test]
fn a_malformed_kubeconfig_is_named_with_the_place() {
    let (_directory, path) = file("kubeconfig", "clusters:\n- [\n");
    let complaint = complaint(1, &["--kubeconfig", path.to_str().unwrap()]);
    assert!(complaint.starts_with(&format!("kube-ipvs: kubeconfig {}:", path.display())), "{complaint}");
}

#[test]
fn a_kubeconfig_whose_context_does_not_exist_is_named() {
    let (_directory, path) =
        file("kubeconfig", "current-context: gone\nclusters: []\ncontexts: []\nusers: []\n");
    let complaint = complaint(1, &["--kubeconfig", path.to_str().unwrap()]);
    assert!(complaint.starts_with(&format!("kube-ipvs: kubeconfig {}: ", path.display())), "{complaint}");
    assert!(complaint.contains("gone"), "{complaint}");
}

#[test]
fn neither_a_kubeconfig_nor_a_pod_is_said_so() {
    assert_eq!(
        complaint(1, &[]),
        "kube-ipvs: not in a pod: give --kubeconfig, --master or --manifests: \
         failed to read an incluster environment variable: environment variable not found"
    );
}

#[test]
fn the_daemon_s_commands_say_when_there_is_no_daemon() {
    for command in [&["resync"][..], &["status"], &["list", "default/web"]] {
        assert_eq!(
            complaint(1, &[command, &["--control-socket=/nonexistent/control.sock"]].concat()),
            "kube-ipvs: no daemon answers at /nonexistent/control.sock: is kube-ipvs running on this node?"
        );
    }
}

/// docs/commands.md has the table. Whatever the command: nothing was tried.
#[test]
fn a_command_line_or_configuration_that_cannot_be_used_is_64_for_every_command() {
    let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    let (_directory, malformed) = file("malformed.conf", &format!("{head}ipvs: [\n"));
    let (_directory, other) = file("other.conf", "apiVersion: v1\nkind: ConfigMap\n");
    let (_directory, bad) = file("bad.conf", &format!("{head}ipvs: {{scheduler: ROUND}}\n"));
    let [malformed, other, bad] = [malformed, other, bad].map(|path| format!("--config={}", path.display()));
    let configurations = ["--config=/nonexistent/config.conf", &malformed, &other, &bad];

    for command in [
        &[][..],
        &["run"],
        &["preflight"],
        &["list"],
        &["diff"],
        &["explain", "default/web"],
        &["resync"],
        &["status"],
        &["top"],
        &["probe", "default/web"],
        &["trace", "default/web"],
        &["completion", "bash"],
        &["log-level"],
        &["bugreport"],
        &["config", "convert"],
        &["cleanup"],
        &["version"],
    ] {
        complaint(64, &[command, &["--bogus"]].concat());
    }
    for command in [&["diff"][..], &["explain", "default/web"]] {
        for flag in [
            "--bogus",
            "--cleanup",
            "--init-only",
            "--write-config-to=/tmp/x",
            "status",
            "--ipvs-scheduler=ROUND",
        ] {
            complaint(64, &[command, &["--", flag]].concat());
        }
        for configuration in configurations {
            complaint(64, &[command, &["--", configuration]].concat());
        }
        let machine = if command == ["diff"] { 2 } else { 1 };
        complaint(machine, &[command, &["--control-socket=/nonexistent/control.sock"]].concat());
        complaint(machine, &[command, &["--", "--kubeconfig=/nonexistent/kubeconfig"]].concat());
    }
    for flag in ["--bogus", "--cleanup", "--init-only", "status"] {
        complaint(64, &["preflight", "--", flag]);
    }
    for configuration in configurations {
        for command in [&[][..], &["run"], &["--init-only"]] {
            complaint(64, &[command, &[configuration]].concat());
        }
        assert_eq!(
            kube_ipvs(&["preflight", "--", configuration]).status.code(),
            Some(2),
            "it is the first problem"
        );
    }
    // Of a cleanup the ranges alone count. Nothing is removed: the last argument cannot be.
    for configuration in &configurations[..3] {
        for command in ["cleanup", "--cleanup"] {
            complaint(64, &[command, configuration, "--control-socket=/dev/null/control.sock"]);
        }
    }
}

#[test]
fn a_malformed_rust_log_is_said() {
    let output = crate::kube_ipvs().env("RUST_LOG", "info,reconciler=loud").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let line = said.lines().next().unwrap_or_default();
    assert!(line.contains("RUST_LOG is ignored and -v sets the level: "), "{said}");
    assert!(line.contains("WARN") && line.contains("info,reconciler=loud"), "{said}");
}

/// What these print has no text of others, or is escaped there.
const PRINTERS: [&str; 6] = [
    "crates/operator/src/output.rs",
    "crates/operator/src/terminal.rs",
    "src/cli/bugreport.rs",
    "src/cli/list.rs",
    "src/cli/top.rs",
    "src/logging.rs",
];

/// `operator::output` escapes what acts on a terminal, and so does the log.
#[test]
fn nothing_is_printed_but_where_it_is_escaped() {
    let printing = ["println!(", "print!(", "io::stdout", "io::stderr"];
    let programs = ["src", "crates/operator/src", "crates/kubectl-ipvs/src"];
    let mut pending: Vec<_> =
        programs.map(|sources| Path::new(env!("CARGO_MANIFEST_DIR")).join(sources)).into();
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let name = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let prints = printing.iter().any(|printing| text.contains(printing));
        assert!(!prints || PRINTERS.contains(&name), "{name} prints by itself");
    }
}
