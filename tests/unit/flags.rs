//! docs/flags.md names each flag that the program takes without effect, and explains flags that there are.

use std::collections::BTreeSet;

use clap::CommandFactory as _;
use kube_ipvs::cli::CommandLine;

use crate::{kube_ipvs, support::documents};

/// What the row of a table is about.
fn name(row: &str) -> Option<&str> {
    row.strip_prefix("| `")?.split('`').next()
}

/// The section of docs/flags.md with this heading.
fn section(heading: &str) -> String {
    let document = documents::read("docs/flags.md");
    let section = document.text.split(&format!("\n## {heading}\n")).nth(1).unwrap();
    section.split("\n## ").next().unwrap().to_owned()
}

#[test]
fn what_differs_from_kube_proxy_is_about_flags_of_the_program() {
    let command = CommandLine::command();
    let run = command.find_subcommand("run").unwrap();
    let mut flags: BTreeSet<_> =
        run.get_arguments().filter_map(|flag| Some(format!("--{}", flag.get_long()?))).collect();
    flags.insert("-v".to_owned());
    let section = section("What differs from kube-proxy");
    let named: Vec<_> = section.lines().filter_map(name).collect();
    assert!(named.len() > 10, "{named:?}");
    for flag in named {
        assert!(flags.contains(flag), "{flag}");
    }
}

/// Those that are taken without effect are named as such, and a warning says so of each.
#[test]
fn what_the_page_calls_without_effect_is_what_the_program_warns_of() {
    let section = section("Accepted without effect");
    let idle: Vec<&str> =
        section.split('`').filter(|name| name.starts_with("--") && !name.ends_with("-id-file")).collect();
    assert!(idle.len() > 10, "{idle:?}");
    let value = |flag: &str| match flag {
        "--iptables-localhost-nodeports" => "false",
        "--profiling" | "--log-json-split-stream" | "--log-text-split-stream" => "true",
        "--config-sync-period" | "--log-flush-frequency" => "77s",
        "--iptables-min-sync-period" => "2s",
        "--iptables-sync-period" => "78s",
        "--vmodule" => "proxier=4",
        "--show-hidden-metrics-for-version" => "1.35",
        "--kube-api-content-type" => "application/json",
        _ => "7",
    };
    let output = kube_ipvs()
        .args(idle.iter().map(|flag| format!("{flag}={}", value(flag))))
        .args(["--logging-format=text", "--kubeconfig=/nonexistent"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let warning = said.lines().find(|line| line.contains("accepted without effect")).unwrap_or(&said);
    let named = warning.split("accepted without effect").nth(1).unwrap_or_default();
    let missing: Vec<_> = idle.iter().filter(|flag| !named.contains(**flag)).collect();
    assert!(missing.is_empty(), "{missing:?} are not in {warning}");
}
