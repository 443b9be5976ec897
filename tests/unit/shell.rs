//! Completions load in bash and complete, those of zsh and fish are printed; every command has its manual page.

#[allow(dead_code, reason = "the program of `cargo xtask man`, of which the test calls all but `main`")]
#[path = "../../examples/man.rs"]
mod man;

use std::{fs, process::Command};

fn kube_ipvs(arguments: &[&str]) -> String {
    let output = crate::kube_ipvs().args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What bash offers for the last of these words, with the script loaded as the help says.
fn offered(words: &[&str]) -> Vec<String> {
    let script = r#"
        set -eu
        source <("$PROGRAM" completion bash)
        # Of `complete -F FUNCTION … kube-ipvs`.
        registered=$(complete -p kube-ipvs)
        function=${registered#*-F }
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        set +eu
        "${function%% *}" kube-ipvs "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let output = Command::new("bash")
        .env("PROGRAM", env!("CARGO_BIN_EXE_kube-ipvs"))
        .args(["--norc", "-c", script, "bash"])
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    assert_eq!(offered(&["kube-ipvs", "st"]), ["status"]);
    assert_eq!(offered(&["kube-ipvs", "list", "--conn"]), ["--connections"]);
    assert_eq!(offered(&["kube-ipvs", "diff", "-o", ""]), ["text", "json", "yaml"]);
    assert_eq!(offered(&["kube-ipvs", "top", "--sort", "b"]), ["bytes"]);
    assert_eq!(offered(&["kube-ipvs", "--cluster-c"]), ["--cluster-cidr"]);
    assert!(offered(&["kube-ipvs", ""]).contains(&"explain".to_owned()));
}

#[test]
fn scripts_for_zsh_and_fish_are_printed() {
    for (shell, start) in [("zsh", "#compdef kube-ipvs"), ("fish", "complete -c kube-ipvs")] {
        let script = kube_ipvs(&["completion", shell]);
        assert!(script.lines().any(|line| line.starts_with(start)), "{shell}:\n{script}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let pages = tempfile::tempdir().unwrap();
    man::write(pages.path()).unwrap();
    let commands = kube_ipvs::cli::command();
    let commands: Vec<_> = commands.get_subcommands().map(clap::Command::get_name).collect();
    assert!(commands.contains(&"top"), "{commands:?}");
    for command in &commands {
        let page = pages.path().join(format!("kube-ipvs-{command}.1"));
        let text = fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        assert!(text.contains(&format!("kube\\-ipvs\\-{}", command.replace('-', "\\-"))), "{text}");
        assert!(text.contains(".SH SYNOPSIS") && text.contains(".SH OPTIONS"), "{text}");
    }
    let plugin = fs::read_to_string(pages.path().join("kubectl-ipvs-status.1")).unwrap();
    assert!(plugin.contains("\\-\\-context"), "{plugin}");
    let run = fs::read_to_string(pages.path().join("kube-ipvs-run.1")).unwrap();
    assert!(run.contains("\\-\\-cluster\\-cidr"), "the daemon's flags are there");
}
