//! The file system of a QEMU guest: the host's own files at the host's own paths, the kernel's
//! modules, and an init.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    ffi::OsString,
    fs,
    fs::File,
    io::{BufWriter, Read as _, Write as _},
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::{Component, Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

use super::cpio::Archive;
use crate::files;

/// ELF files from this size on are stripped of debugging information: a test binary shrinks to a
/// tenth.
const STRIP_FROM: u64 = 4 << 20;

/// A file tree to be. The host's symbolic links come along as they are (`/lib` → `usr/lib`,
/// `iptables` → `/etc/alternatives/iptables`), so every path means in the guest what it means on
/// the host.
#[derive(Default)]
pub(super) struct Tree {
    /// By path, without symbolic links in its directories; parents sort before their children.
    nodes: BTreeMap<PathBuf, Node>,
}

enum Node {
    Directory,
    /// A file of the host.
    Host(PathBuf),
    /// A file made here.
    Text {
        permissions: u32,
        text: Vec<u8>,
    },
    Symlink(PathBuf),
    /// `/dev/console`.
    Console,
}

// From stat(2).
const S_IFDIR: u32 = 0o040_000;
const S_IFCHR: u32 = 0o020_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

impl Node {
    /// The mode, and what is in it.
    fn read(&self) -> anyhow::Result<(u32, Cow<'_, [u8]>)> {
        Ok(match self {
            Self::Directory => (S_IFDIR | 0o755, Cow::default()),
            Self::Console => (S_IFCHR | 0o600, Cow::default()),
            Self::Symlink(target) => (S_IFLNK | 0o777, target.as_os_str().as_bytes().into()),
            Self::Text { permissions, text } => (S_IFREG | permissions, text.into()),
            Self::Host(source) => {
                let meta = fs::metadata(source).with_context(|| source.display().to_string())?;
                let is_large = meta.len() >= STRIP_FROM && is_elf(source);
                let stripped = if is_large { stripped(source) } else { None };
                let data = stripped.map_or_else(|| files::bytes(source), Ok)?;
                (S_IFREG | meta.permissions().mode() & 0o777, data.into())
            }
        })
    }
}

impl Tree {
    /// Adds a file or a whole directory of the host, programs with their shared libraries.
    pub(super) fn add(&mut self, path: &Path) -> anyhow::Result<()> {
        let place = self.resolve(path)?;
        let meta = fs::metadata(&place).with_context(|| place.display().to_string())?;
        if self.nodes.contains_key(&place) && !meta.is_dir() {
            return Ok(());
        }
        if meta.is_dir() {
            self.nodes.insert(place.clone(), Node::Directory);
            for entry in files::list(&place)? {
                // Sockets and the like cannot be copied; a dangling link is not worth a failure.
                if entry.metadata().is_ok_and(|meta| meta.is_dir() || meta.is_file()) {
                    self.add(&entry)?;
                }
            }
        } else {
            self.nodes.insert(place.clone(), Node::Host(place.clone()));
            // A library's own needs are among those of the program that is linked with it.
            if meta.permissions().mode() & 0o111 != 0 && is_elf(&place) {
                for library in libraries(&place)? {
                    let library = self.resolve(&library)?;
                    self.nodes.insert(library.clone(), Node::Host(library));
                }
            }
        }
        Ok(())
    }

    /// Adds what is in a root file system that is in a directory, at its own paths.
    pub(super) fn add_root(&mut self, root: &Path) -> anyhow::Result<()> {
        self.add_below(root, root)
    }

    fn add_below(&mut self, root: &Path, directory: &Path) -> anyhow::Result<()> {
        for path in files::list(directory)? {
            let place = Path::new("/").join(path.strip_prefix(root)?);
            let kind = path.symlink_metadata().with_context(|| path.display().to_string())?.file_type();
            if kind.is_symlink() {
                self.nodes.insert(place, Node::Symlink(fs::read_link(&path)?));
            } else if kind.is_dir() {
                self.nodes.insert(place, Node::Directory);
                self.add_below(root, &path)?;
            } else if kind.is_file() {
                self.nodes.insert(place, Node::Host(path));
            }
        }
        Ok(())
    }

    /// Adds a symbolic link.
    pub(super) fn link(&mut self, path: &str, target: &str) {
        self.nodes.insert(PathBuf::from(path), Node::Symlink(PathBuf::from(target)));
    }

    /// Adds the host's file `source` at another path.
    pub(super) fn add_at(&mut self, path: &Path, source: PathBuf) -> anyhow::Result<()> {
        let place = self.resolve(path)?;
        self.nodes.insert(place, Node::Host(source));
        Ok(())
    }

    /// Adds a file with the contents given.
    pub(super) fn text(
        &mut self,
        path: &str,
        permissions: u32,
        text: impl Into<Vec<u8>>,
    ) -> anyhow::Result<()> {
        let place = self.resolve(Path::new(path))?;
        self.nodes.insert(place, Node::Text { permissions, text: text.into() });
        Ok(())
    }

    /// Adds `/dev/console`.
    pub(super) fn console(&mut self) -> anyhow::Result<()> {
        let place = self.resolve(Path::new("/dev/console"))?;
        self.nodes.insert(place, Node::Console);
        Ok(())
    }

    /// Follows `path` through the host's symbolic links, adding them and the directories on the
    /// way. Returns where it ends: a path without links, which need not exist.
    fn resolve(&mut self, path: &Path) -> anyhow::Result<PathBuf> {
        // As many as the kernel follows.
        let mut links_left = 40;
        let mut place = PathBuf::from("/");
        let mut rest = components(path)?;
        while let Some(name) = rest.pop() {
            if name == ".." {
                place.pop();
                continue;
            }
            let next = place.join(&name);
            if let Ok(target) = fs::read_link(&next) {
                links_left -= 1;
                if links_left == 0 {
                    bail!("{}: too many symbolic links", path.display());
                }
                if target.is_absolute() {
                    place = PathBuf::from("/");
                }
                rest.extend(components(&target)?);
                self.nodes.insert(next, Node::Symlink(target));
            } else {
                if !rest.is_empty() {
                    self.nodes.entry(next.clone()).or_insert(Node::Directory);
                }
                place = next;
            }
        }
        Ok(place)
    }

    /// Writes the tree as a cpio archive and returns its size in bytes.
    pub(super) fn write(&self, to: &Path) -> anyhow::Result<u64> {
        let file = fs::File::create(to).with_context(|| format!("creating {}", to.display()))?;
        let mut archive = Archive::new(BufWriter::with_capacity(1 << 20, file));
        for (path, node) in &self.nodes {
            let name = path.strip_prefix("/").unwrap_or(path).as_os_str().as_bytes();
            if name.is_empty() {
                continue;
            }
            let device = if matches!(node, Node::Console) { (5, 1) } else { (0, 0) };
            let adding = || format!("adding {} to the initramfs", path.display());
            let (mode, data) = node.read().with_context(adding)?;
            archive.add(name, mode, &data, device).with_context(adding)?;
        }
        let mut file = archive.finish().context("writing the initramfs")?;
        file.flush().context("writing the initramfs")?;
        Ok(file.get_ref().metadata()?.len())
    }
}

/// The parts of a path, last one first.
fn components(path: &Path) -> anyhow::Result<Vec<OsString>> {
    let mut parts = Vec::new();
    for component in path.components().rev() {
        match component {
            Component::Normal(name) => parts.push(name.to_owned()),
            Component::ParentDir => parts.push("..".into()),
            Component::CurDir | Component::RootDir => {}
            Component::Prefix(_) => bail!("{}: not a path of this system", path.display()),
        }
    }
    Ok(parts)
}

/// The file without debugging information, but with the symbols a backtrace needs. None if that
/// does not work out: then the guest gets the file as it is.
fn stripped(source: &Path) -> Option<Vec<u8>> {
    let copy = tempfile::NamedTempFile::new().ok()?.into_temp_path();
    let mut strip = Command::new("strip");
    // It says so of a program for another processor.
    strip.arg("--strip-debug").arg("-o").arg(&copy).arg(source).stderr(Stdio::null());
    if strip.status().ok()?.success() { fs::read(&copy).ok() } else { None }
}

/// Whether the file at `path` is an ELF file.
pub(super) fn is_elf(path: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok_and(|()| magic == *b"\x7fELF")
}

/// The shared libraries `program` needs, the dynamic loader among them; none for a static program.
pub(super) fn libraries(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).env("LC_ALL", "C").output().context("starting ldd")?;
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

/// Takes the paths from lines like `libc.so.6 => /lib/libc.so.6 (0x…)` and
/// `/lib64/ld-linux-x86-64.so.2 (0x…)`.
fn parse(ldd: &str) -> Vec<PathBuf> {
    ldd.lines()
        .filter_map(|line| {
            let found = line.split_once("=>").map_or(line, |(_, found)| found);
            found.split_whitespace().next().filter(|path| path.starts_with('/')).map(PathBuf::from)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_on_the_way_to_a_file_come_along_and_it_is_stored_once() {
        let host = tempfile::tempdir().unwrap();
        let root = host.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("usr/lib")).unwrap();
        fs::write(root.join("usr/lib/real.so"), "x").unwrap();
        symlink("usr/lib", root.join("lib")).unwrap();
        symlink(root.join("lib/real.so"), root.join("usr/lib/alias.so")).unwrap();

        let mut tree = Tree::default();
        tree.add(&root.join("lib/alias.so")).unwrap();

        let below = |path: &str| tree.nodes.get(&root.join(path));
        assert!(matches!(below("lib"), Some(Node::Symlink(to)) if to == Path::new("usr/lib")));
        assert!(matches!(below("usr/lib/alias.so"), Some(Node::Symlink(_))));
        assert!(matches!(below("usr/lib/real.so"), Some(Node::Host(_))));
        assert!(below("lib/real.so").is_none());
    }

    #[test]
    fn a_link_that_leads_to_itself_is_an_error() {
        let host = tempfile::tempdir().unwrap();
        symlink("loop", host.path().join("loop")).unwrap();
        assert!(Tree::default().add(&host.path().join("loop")).is_err());
    }

    #[test]
    fn libraries_are_the_absolute_paths_that_ldd_names() {
        let dynamic = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibnl-3.so.200 => /lib/x86_64-linux-gnu/libnl-3.so.200 (0x0)\n\
                       \tlibgone.so => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let paths = ["/lib/x86_64-linux-gnu/libnl-3.so.200", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(parse(dynamic), paths.map(PathBuf::from));
        assert!(parse("\tstatically linked\n").is_empty());
        assert!(parse("\tnot a dynamic executable\n").is_empty());
    }
}
