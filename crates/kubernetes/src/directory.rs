//! A directory of manifests as source: for demos, tests and static nodes.
//!
//! All `*.yaml`, `*.yml` and `*.json` files of the directory are read, in the order of their names, each with
//! any number of documents and lists. Services, EndpointSlices and this node's Node are used; other
//! kinds are ignored. Fields that the API server would fill in are filled in, as far as the proxy needs them:
//! the namespace `default`, and the empty name of a slice's only port.

mod contents;
mod file;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    ffi::OsStr,
    fs,
    hash::{BuildHasher, BuildHasherDefault},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use notify::{
    EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode},
};
use rustc_hash::FxHasher;
use service::{Change, ObjectName, one_line};
use tokio::{
    sync::{mpsc, watch as watched},
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use self::{
    contents::{Contents, gather},
    file::Manifests,
};
use crate::problem_log::ProblemLog;

/// How long the directory must be quiet before it is read: a file is often written in several steps.
const SETTLE: Duration = Duration::from_millis(50);
/// After how long the directory is read although it is not quiet.
const LONGEST_SETTLE: Duration = Duration::from_secs(1);
/// How often the directory is read without a notification: a link's target, or the directory behind a mount,
/// can change unnoticed.
const REREAD: Duration = Duration::from_secs(10);

/// Why manifests could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory itself could not be read.
    #[error("cannot read the directory {}", path.display())]
    ReadDirectory {
        /// The directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// One of the files in it could not be read.
    #[error("cannot read {}", path.display())]
    ReadFile {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file is not YAML, or not JSON.
    #[error("{}:{line}:{column}: {message}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The column in the line, counted from 1.
        column: u64,
        /// The parser's message.
        message: String,
    },
    /// The system does not notify of changes in the directory.
    #[error("cannot watch the directory {} for changes", path.display())]
    Watch {
        /// The directory.
        path: PathBuf,
        /// The system's answer.
        source: notify::Error,
    },
}

/// The present problems of the files of a directory, one line each. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Problems(watched::Sender<Vec<String>>);

impl Problems {
    /// How many are listed.
    const MOST: usize = 20;

    /// Lists them.
    pub fn all(&self) -> Vec<String> {
        self.0.borrow().clone()
    }

    fn set(&self, problems: Vec<String>) {
        self.0.send_replace(problems);
    }
}

/// Reads the directory once, as [`watch`] does at first.
pub fn read_once(directory: &Path, node_name: &str) -> Result<Vec<Change>, Error> {
    Ok(Directory::open(directory, node_name)?.contents().all())
}

/// Reads a directory whose only file has this name and text.
pub fn read_text(name: &Path, text: &[u8], node_name: &str) -> Result<Vec<Change>, Error> {
    let mut directory = Directory::empty(Path::new(""), node_name);
    directory.take(name.to_owned(), text)?;
    Ok(directory.contents().all())
}

/// Reads the directory and sends its objects; then sends each difference, for ever.
///
/// A file that cannot be read or parsed at first is an error, before anything is sent. Later its
/// last good objects stay. One bad object in a good file is skipped alone. Both are logged, and are among the problems
/// as long as they last.
pub async fn watch(
    directory: &Path,
    node_name: &str,
    problems: &Problems,
    send: impl Fn(Change),
) -> Result<Infallible, Error> {
    // Watched before it is read: no change falls between.
    let (mut watcher, mut events) = notifications(directory)?;
    let mut source = Directory::open(directory, node_name)?;
    let mut contents = source.contents();
    problems.set(source.problems());
    contents.all().into_iter().for_each(&send);
    loop {
        tokio::select! {
            _ = events.recv() => settle(&mut events).await,
            () = sleep(REREAD) => {
                // The path may lead to another directory by now; the same one is not watched twice.
                _ = watcher.watch(directory, RecursiveMode::NonRecursive);
            }
        }
        // A few local files: not worth a thread of their own.
        source.refresh();
        let now = source.contents();
        problems.set(source.problems());
        now.since(&contents).into_iter().for_each(&send);
        contents = now;
    }
}

/// Watches the directory, and sends a message when something changed. The channel holds one message.
fn notifications(directory: &Path) -> Result<(RecommendedWatcher, mpsc::Receiver<()>), Error> {
    let (changed, events) = mpsc::channel(1);
    let failed = |source| Error::Watch { path: directory.to_owned(), source };
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Reading a file is an event too, but no change. An error may stand for lost events.
        let only_read = |event: &notify::Event| {
            matches!(event.kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
        };
        if !event.is_ok_and(|event| only_read(&event)) {
            // Full: the message in it means the same.
            _ = changed.try_send(());
        }
    })
    .map_err(failed)?;
    match watcher.watch(directory, RecursiveMode::NonRecursive) {
        Ok(()) => Ok((watcher, events)),
        // The same error as from reading it, which says why.
        Err(error) => Err(fs::read_dir(directory).map_or_else(
            |source| Error::ReadDirectory { path: directory.to_owned(), source },
            |_| failed(error),
        )),
    }
}

/// Waits until no more changes come.
async fn settle(events: &mut mpsc::Receiver<()>) {
    let deadline = Instant::now() + LONGEST_SETTLE;
    while Instant::now() < deadline && timeout(SETTLE, events.recv()).await.is_ok() {}
}

/// The files as last read.
struct Directory {
    path: PathBuf,
    node_name: String,
    files: BTreeMap<PathBuf, File>,
    problem_log: ProblemLog,
    /// The errors of the last reading, one line each. Each is logged once.
    errors: Vec<String>,
    duplicates: BTreeSet<(&'static str, ObjectName)>,
}

/// One file's last good state.
struct File {
    /// The hash of the text: a text that has not changed is not parsed again.
    hash: u64,
    manifests: Manifests,
}

impl Directory {
    /// A directory of which nothing has been read.
    fn empty(path: &Path, node_name: &str) -> Self {
        Self {
            path: path.to_owned(),
            node_name: node_name.to_owned(),
            files: BTreeMap::new(),
            problem_log: ProblemLog::default(),
            errors: Vec::new(),
            duplicates: BTreeSet::new(),
        }
    }

    /// Reads everything. A file that cannot be read is an error.
    fn open(path: &Path, node_name: &str) -> Result<Self, Error> {
        let mut directory = Self::empty(path, node_name);
        match directory.read().into_iter().next() {
            Some(error) => Err(error),
            None => Ok(directory),
        }
    }

    /// Reads everything again. A file that cannot be read keeps its last content.
    fn refresh(&mut self) {
        let errors = self.read().into_iter();
        let errors: Vec<_> =
            errors.map(|error| format!("{}; its last valid objects are kept", one_line(&error))).collect();
        errors.iter().filter(|error| !self.errors.contains(error)).for_each(|error| warn!("{error}"));
        self.errors
            .iter()
            .filter(|error| !errors.contains(error))
            .for_each(|error| info!("resolved: {error}"));
        self.errors = errors;
    }

    /// Reads the files that have changed, and returns the errors.
    fn read(&mut self) -> Vec<Error> {
        let paths = match manifests_in(&self.path) {
            Ok(paths) => paths,
            Err(source) => return vec![Error::ReadDirectory { path: self.path.clone(), source }],
        };
        self.files.retain(|path, _| paths.contains(path));
        paths.into_iter().filter_map(|path| self.read_file(path).err()).collect()
    }

    fn read_file(&mut self, path: PathBuf) -> Result<(), Error> {
        let Some(text) = file::read(&path)? else {
            self.files.remove(&path);
            return Ok(());
        };
        self.take(path, &text)
    }

    fn take(&mut self, path: PathBuf, text: &[u8]) -> Result<(), Error> {
        let hash = BuildHasherDefault::<FxHasher>::default().hash_one(text);
        if self.files.get(&path).is_none_or(|file| file.hash != hash) {
            let manifests = file::parse(&path, text)?;
            manifests.skipped.iter().for_each(|skipped| warn!("{skipped}"));
            self.files.insert(path, File { hash, manifests });
        }
        Ok(())
    }

    /// Puts the objects of all files together.
    fn contents(&mut self) -> Contents {
        let Self { files, problem_log, node_name, .. } = self;
        let mut duplicates = BTreeSet::new();
        problem_log.list_begins();
        let manifests = || files.values().map(|file| &file.manifests);
        let nodes = gather(manifests().flat_map(|file| &file.nodes), problem_log, &mut duplicates);
        let (mut this, peers): (BTreeMap<_, _>, _) =
            nodes.into_iter().partition(|(name, _)| name.name() == &**node_name);
        let contents = Contents {
            services: gather(manifests().flat_map(|file| &file.services), problem_log, &mut duplicates),
            slices: gather(manifests().flat_map(|file| &file.slices), problem_log, &mut duplicates),
            peers,
            node: this.pop_last().map(|(_, node)| node),
        };
        problem_log.list_ends();
        duplicates.difference(&self.duplicates).for_each(|duplicate| warn!("{}", defined_twice(duplicate)));
        self.duplicates = duplicates;
        contents
    }

    /// Lists the problems of the last reading.
    fn problems(&self) -> Vec<String> {
        let no_objects = self.files.values().flat_map(|file| &file.manifests.skipped);
        let objects: BTreeSet<_> = self.problem_log.skipped().collect();
        let twice = self.duplicates.iter().map(defined_twice);
        let problems = self.errors.iter().chain(no_objects).chain(objects).cloned().chain(twice);
        problems.take(Problems::MOST).collect()
    }
}

fn defined_twice((kind, name): &(&'static str, ObjectName)) -> String {
    format!("{kind} {name} is defined twice: the one in the last file counts")
}

/// The manifest files of the directory. Hidden files are left out: editors and ConfigMap volumes keep
/// their own files there. So is everything but regular files: reading a pipe would never end.
fn manifests_in(directory: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let mut paths = BTreeSet::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        let extension = path.extension().and_then(OsStr::to_str);
        let manifest = matches!(extension, Some("yaml" | "yml" | "json"));
        if manifest && !hidden && path.is_file() {
            paths.insert(path);
        }
    }
    Ok(paths)
}
