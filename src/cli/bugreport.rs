//! `kube-ipvs bugreport`: one archive with what a bug report needs.
//!
//! It has no secrets because it reads no source of any: no kubeconfig, no token, no Secret, no environment. In the
//! configuration, which comes from the daemon, a kubeconfig is a path.

mod kernel;

use std::{
    fs,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, ensure};
use flate2::{Compression, write::GzEncoder};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use service::one_line;
use tar::{Builder, Header};

use super::{
    diff,
    output::{self, print},
    question::Daemon,
    status,
};
use crate::{
    files,
    serve::control::{self, Control as _, DaemonStatus, Difference},
};

/// The arguments of `bugreport`.
#[derive(clap::Args, Debug)]
pub(super) struct BugReport {
    /// Archive to create (.tar.gz); `-` is standard output. The default is a new name in the current directory
    file: Option<PathBuf>,
    #[command(flatten)]
    daemon: Daemon,
}

/// A file of the archive: its content, or why there is none.
struct Item {
    name: &'static str,
    content: Result<String, String>,
}

/// Writes the archive. In place of an item that cannot be obtained, a file has the reason.
pub(super) fn bugreport(BugReport { file, daemon }: &BugReport) -> anyhow::Result<ExitCode> {
    let answers = Answers::ask(daemon);
    let now = Timestamp::now();
    let directory = format!("kube-ipvs-bugreport-{}-{}", answers.node(), now.strftime("%Y%m%dT%H%M%SZ"));
    let path = file.clone().unwrap_or_else(|| format!("{directory}.tar.gz").into());
    if path == Path::new("-") {
        let out = io::stdout().lock();
        ensure!(!out.is_terminal(), "standard output is a terminal: redirect the archive to a file");
        write_archive(out, &directory, now, &items(&answers, daemon)).context("standard output")?;
    } else {
        let cannot = || format!("cannot write {} (- is standard output)", path.display());
        let out = files::create_private(&path).with_context(cannot)?;
        write_archive(out, &directory, now, &items(&answers, daemon)).with_context(cannot)?;
        print(&format!("{}\n", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn items(answers: &Answers, daemon: &Daemon) -> Vec<Item> {
    let version = Item { name: "version.txt", content: Ok(format!("{}\n", env!("CARGO_PKG_VERSION"))) };
    let mut items = vec![version];
    items.extend(answers.items());
    items.extend(kernel::items(daemon));
    items.extend(kernel::files(Path::new("/")));
    items
}

/// The result, or in one line why there is none.
fn known<T>(result: Result<T, impl Into<anyhow::Error>>) -> Result<T, String> {
    result.map_err(|error| one_line(error.into().as_ref()))
}

/// An item in two forms: as text and as JSON.
fn both<T>(
    names: [&'static str; 2],
    thing: &Result<T, String>,
    text: impl FnOnce(&T) -> String,
    json: impl FnOnce(&T) -> anyhow::Result<String>,
) -> [Item; 2] {
    let [text_name, json_name] = names;
    let thing = || thing.as_ref().map_err(Clone::clone);
    [
        Item { name: text_name, content: thing().map(text) },
        Item { name: json_name, content: thing().and_then(|thing| known(json(thing))) },
    ]
}

/// As `-o json` prints it.
fn as_json(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(output::json(value)?)
}

/// Writes the items as files of one directory. For one that cannot be obtained there is `NAME.error.txt`.
fn write_archive(out: impl Write, directory: &str, now: Timestamp, items: &[Item]) -> io::Result<()> {
    let mut archive = Builder::new(GzEncoder::new(out, Compression::default()));
    for Item { name, content } in items {
        let added = match content {
            Ok(text) => add(&mut archive, &format!("{directory}/{name}"), now, text),
            Err(why) => add(&mut archive, &format!("{directory}/{name}.error.txt"), now, &format!("{why}\n")),
        };
        added?;
    }
    archive.into_inner()?.finish()?.flush()
}

fn add(archive: &mut Builder<impl Write>, path: &str, now: Timestamp, text: &str) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_mode(0o644);
    header.set_mtime(now.as_second().try_into().unwrap_or_default());
    header.set_size(text.len().try_into().unwrap_or(u64::MAX));
    archive.append_data(&mut header, path, text.as_bytes())
}

/// The daemon's answers, or why there are none.
struct Answers {
    status: Result<DaemonStatus, String>,
    difference: Result<Difference, String>,
    level: Result<String, String>,
    inside: Result<control::BugReport, String>,
}

impl Answers {
    /// Asks for everything. A daemon that does not answer with its status gets no longer requests.
    fn ask(daemon: &Daemon) -> Self {
        let client = daemon.client();
        let inside = known(client.bug_report());
        let level = known(client.log_level(None));
        let status = known(client.status());
        let difference = status.as_ref().map_err(Clone::clone).and_then(|_| known(client.diff()));
        Self { status, difference, level, inside }
    }

    /// The node's name: the daemon's, or else the host's.
    fn node(&self) -> String {
        let host = || fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = self.status.as_ref().map_or_else(|_| host(), |status| status.daemon.node.clone());
        name.trim().replace(|letter: char| !letter.is_ascii_alphanumeric() && !"-.".contains(letter), "_")
    }

    fn items(&self) -> Vec<Item> {
        let inside = |part: fn(&control::BugReport) -> &String| {
            self.inside.as_ref().map(|inside| part(inside).clone()).map_err(Clone::clone)
        };
        let mut items = vec![
            Item { name: "log-level.txt", content: self.level.clone().map(|level| format!("{level}\n")) },
            Item { name: "configuration.json", content: inside(|inside| &inside.configuration) },
            Item { name: "metrics.txt", content: inside(|inside| &inside.metrics) },
            Item { name: "limits.txt", content: inside(|inside| &inside.limits) },
        ];
        items.extend(both(["status.txt", "status.json"], &self.status, status::text, as_json));
        let text = |difference: &Difference| difference.plan.to_string();
        items.extend(both(["diff.txt", "diff.json"], &self.difference, text, diff::json));
        items
    }
}

#[cfg(test)]
mod tests;
