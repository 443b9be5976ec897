//! The programs that set up and cross-check.

use std::{
    io::Write,
    process::{Command, Stdio},
};

/// Runs a program in the thread's network namespace and returns what it prints; it must succeed.
pub(crate) fn run(command: &str) -> String {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command}: {out}{err}");
    out.into_owned()
}

/// Feeds a script to nft.
pub(crate) fn nft(script: &str) {
    let mut child = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{script}");
}

/// What the counter with this comment counted, in what nft lists.
pub(crate) fn packets(listed: &str, comment: &str) -> u32 {
    let line = listed.lines().find(|line| line.contains(&format!("\"{comment}\""))).unwrap();
    line.split("packets ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
}
