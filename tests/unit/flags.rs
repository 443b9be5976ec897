//! docs/flags.md has every flag and every field of the configuration file, with its default.

use std::{collections::BTreeMap, fs};

use clap::CommandFactory as _;
use kube_ipvs::cli::CommandLine;
use serde_json::Value;

use crate::{kube_ipvs, support::documents};

/// The names with their defaults, of the rows whose name is wanted.
fn rows(is_wanted: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
    let document = documents::read("docs/flags.md");
    let mut rows = BTreeMap::new();
    for line in document.text.lines() {
        let cells: Vec<&str> = line.split(" | ").collect();
        let (Some(name), Some(default)) = (cells.first().and_then(|cell| name(cell)), cells.get(1)) else {
            continue;
        };
        if is_wanted(name) {
            let former = rows.insert(name.to_owned(), default.trim_matches('`').to_owned());
            assert!(former.is_none(), "{name} is there twice");
        }
    }
    rows
}

/// What the row of a table is about.
fn name(cell: &str) -> Option<&str> {
    let name = cell.strip_prefix("| `")?;
    name.split('`').next()
}

/// A dash for what has no default.
fn or_dash(default: &str) -> String {
    if default.is_empty() { "–".to_owned() } else { default.to_owned() }
}

#[test]
fn every_flag_of_the_program_is_explained_with_its_default_and_no_other() {
    let command = CommandLine::command();
    let run = command.find_subcommand("run").unwrap();
    let flags = run.get_arguments().filter_map(|flag| {
        let name = flag.get_long().map(|long| format!("--{long}"));
        let name = name.or_else(|| flag.get_short().map(|short| format!("-{short}")))?;
        let defaults: Vec<_> = flag.get_default_values().iter().map(|it| it.to_string_lossy()).collect();
        Some((if name == "--v" { "-v".to_owned() } else { name }, or_dash(&defaults.join(","))))
    });
    let flags: BTreeMap<_, _> = flags.filter(|(name, _)| name != "--help").collect();
    assert!(flags.len() > 60, "{flags:?}");
    compare(&rows(|name| name.starts_with('-')), &flags);
}

#[test]
fn exactly_the_fields_of_the_configuration_file_are_explained_with_their_defaults() {
    let directory = tempfile::tempdir().unwrap();
    let [empty, written] = ["empty", "written"].map(|name| directory.path().join(name));
    fs::write(
        &empty,
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nhostnameOverride: node\n",
    )
    .unwrap();
    let output =
        kube_ipvs().arg("--config").arg(&empty).arg("--write-config-to").arg(&written).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut fields = BTreeMap::new();
    let file: Value = serde_saphyr::from_str(&fs::read_to_string(&written).unwrap()).unwrap();
    collect("", &file, &mut fields);
    for not_a_field in ["apiVersion", "kind"] {
        assert!(fields.remove(not_a_field).is_some());
    }
    // The host's name, where nothing else is said.
    fields.insert("hostnameOverride".to_owned(), or_dash(""));
    assert!(fields.len() > 50, "{fields:?}");
    compare(&rows(|name| !name.starts_with('-')), &fields);
}

/// The leaves of a file, by their path. What holds nothing is a leaf.
fn collect(path: &str, value: &Value, fields: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(inside) if !inside.is_empty() => {
            for (name, value) in inside {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                collect(&path, value, fields);
            }
        }
        Value::Object(_) | Value::Array(_) | Value::Null => drop(fields.insert(path.to_owned(), or_dash(""))),
        Value::String(text) => drop(fields.insert(path.to_owned(), or_dash(text))),
        Value::Number(number) => drop(fields.insert(path.to_owned(), number.as_f64().unwrap().to_string())),
        Value::Bool(switch) => drop(fields.insert(path.to_owned(), switch.to_string())),
    }
}

/// `--config` explains the mark.
#[test]
fn the_page_marks_the_flags_that_the_help_marks() {
    let document = documents::read("docs/flags.md");
    let command = CommandLine::command();
    let run = command.find_subcommand("run").unwrap();
    for flag in run.get_arguments().filter(|flag| !flag.is_hide_set()) {
        let (Some(long), Some(help)) = (flag.get_long(), flag.get_help()) else { continue };
        let name = if long == "v" { "| `-v`".to_owned() } else { format!("| `--{long}`") };
        let row = document.text.lines().find(|line| line.starts_with(&name)).unwrap_or_default();
        let is_marked = long == "config" || help.to_string().ends_with('*');
        assert_eq!(row.starts_with(&format!("{name} \\* |")), is_marked, "{row}: {help}");
    }
}

/// Fails with what differs, line by line.
fn compare(documented: &BTreeMap<String, String>, actual: &BTreeMap<String, String>) {
    let names = documented.keys().chain(actual.keys());
    let mut wrong: Vec<_> = names
        .filter(|name| documented.get(*name) != actual.get(*name))
        .map(|name| {
            format!("{name}: docs/flags.md {:?}, program {:?}", documented.get(name), actual.get(name))
        })
        .collect();
    wrong.dedup();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Those that are taken without effect are named as such, and a warning says so of each.
#[test]
fn what_the_page_calls_without_effect_is_what_the_program_warns_of() {
    let document = documents::read("docs/flags.md");
    let section = document.text.split("\n## Taken without effect\n").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let idle: Vec<&str> =
        section.lines().filter_map(name).filter(|flag| !flag.ends_with("-id-file")).collect();
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
