//! kube-ipvs and the real kube-proxy, each on a node of its own, at one API server: after every change
//! of every script in `peer/scripts` their virtual servers, real servers and VIPs are compared.
//!
//! Each script is a test. Which there are is known when this runs, not when it is compiled, so this is a
//! program of its own that prints what a test program prints.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

mod peer;

use std::{path::Path, process::ExitCode};

use peer::{play::Stage, script::Script};

const IGNORED: &str =
    "ignored, needs root, ip_vs, kube-apiserver and kube-proxy: cargo xtask test --tier peer";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wants_all =
        arguments.iter().any(|argument| argument == "--include-ignored" || argument == "--ignored");
    let names: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();

    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peer/scripts");
    let mut scripts = Script::all(&directory).unwrap();
    let all = scripts.len();
    scripts.retain(|script| names.is_empty() || names.iter().any(|name| script.name.contains(*name)));
    let filtered = all - scripts.len();

    println!("\nrunning {} tests", scripts.len());
    let (mut passed, mut failed, mut ignored) = (0, 0, 0);
    if wants_all {
        (passed, failed) = play(&scripts);
    } else {
        ignored = scripts.len();
        for script in &scripts {
            println!("test {} ... {IGNORED}", script.name);
        }
    }
    println!(
        "\ntest result: {}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; \
         {filtered} filtered out",
        if failed == 0 { "ok" } else { "FAILED" }
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plays them and returns how many passed and how many failed.
fn play(scripts: &[Script]) -> (usize, usize) {
    let Some(mut stage) = Stage::new().unwrap() else { return (0, 0) };
    let mut failed = 0;
    for script in scripts {
        println!("{} {}", script.name, script.flags.join(" "));
        match stage.play(script) {
            Ok(()) => println!("test {} ... ok", script.name),
            Err(error) => {
                failed += 1;
                println!("{error:#}\ntest {} ... FAILED", script.name);
            }
        }
    }
    let steps = || scripts.iter().flat_map(|script| &script.steps);
    let differ = steps().filter(|step| step.difference.len() > 0).count();
    println!(
        "\n{} scripts, {} steps, {differ} of them with a declared difference",
        scripts.len(),
        steps().count()
    );
    (scripts.len() - failed, failed)
}
