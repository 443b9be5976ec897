//! Archives and checksums that say nothing of this machine or of now: the same files give the same bytes.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};

/// tar's options for that. Everybody may read, whatever the umask was here.
const NEUTRAL: [&str; 7] = [
    "--format=gnu",
    "--sort=name",
    "--mtime=@0",
    "--owner=0",
    "--group=0",
    "--numeric-owner",
    "--mode=go+rX,go-w",
];

/// What is in a directory, without the directory itself, as a tar archive.
pub fn tar(directory: &Path) -> anyhow::Result<Vec<u8>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<Vec<_>>>()?;
    names.sort();
    let command = &mut Command::new("tar");
    filter(command.arg("--create").arg("--directory").arg(directory).args(NEUTRAL).args(names), &[])
}

/// These bytes, as small as gzip gets them.
pub fn gzip(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    // Without -n the time and the name would be in it.
    filter(Command::new("gzip").args(["-9", "-n"]), bytes)
}

/// The SHA-256 of these bytes, in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> anyhow::Result<String> {
    let printed = String::from_utf8(filter(&mut Command::new("sha256sum"), bytes)?)?;
    printed.split_whitespace().next().map(str::to_owned).context("sha256sum prints nothing")
}

/// Gives a program these bytes; what it prints.
fn filter(command: &mut Command, input: &[u8]) -> anyhow::Result<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {name}"))?;
    let mut stdin = child.stdin.take().context("a child without stdin")?;
    // It prints before it has read everything.
    let (output, written) = std::thread::scope(|scope| {
        let writer = scope.spawn(move || stdin.write_all(input));
        (child.wait_with_output(), writer.join())
    });
    let output = output.with_context(|| format!("waiting for {name}"))?;
    ensure!(output.status.success(), "{name} failed ({})", output.status);
    match written {
        Ok(written) => written.with_context(|| format!("writing to {name}"))?,
        Err(_) => anyhow::bail!("writing to {name} panicked"),
    }
    Ok(output.stdout)
}
