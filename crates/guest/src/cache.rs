//! Where downloads and builds are kept between runs: outside the repository, so that a fresh
//! clone finds them.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use tempfile::TempDir;

/// The directory `name` in the user's cache, made if it is not there:
/// `$XDG_CACHE_HOME/kube-ipvs/NAME`, or `~/.cache/kube-ipvs/NAME`.
pub(crate) fn directory(name: &str) -> anyhow::Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME says where the user's cache is")?;
    let directory = base.join("kube-ipvs").join(name);
    std::fs::create_dir_all(&directory).with_context(|| format!("creating {}", directory.display()))?;
    Ok(directory)
}

/// What is made once and kept in the directory `cache` of the user's cache under this name: it is there, or `make`
/// makes it in the place given and returns where.
///
/// Another xtask that makes something for the same directory is waited for.
pub fn made_once(
    cache: &str,
    name: &str,
    make: impl FnOnce(&Path) -> anyhow::Result<PathBuf>,
) -> anyhow::Result<PathBuf> {
    let cache = directory(cache)?;
    let _lock = locked(&cache)?;
    let finished = cache.join(name);
    if !finished.exists() {
        let place = workplace(&cache)?;
        let made = make(place.path())?;
        std::fs::rename(&made, &finished)
            .with_context(|| format!("moving {} to {}", made.display(), finished.display()))?;
    }
    Ok(finished)
}

/// The lock of a directory in the cache.
pub(crate) fn locked(directory: &Path) -> anyhow::Result<File> {
    let lock = File::create(directory.join("lock")).context("creating a lock file")?;
    if lock.try_lock().is_err() {
        eprintln!("xtask: waiting for another xtask that fills {}", directory.display());
        lock.lock().context("waiting for another xtask")?;
    }
    Ok(lock)
}

/// A place to unpack or build in, which is gone when dropped, below `directory`, whose lock the caller has. A
/// run that was stopped leaves its own behind, with gigabytes in it: those are removed first.
pub(crate) fn workplace(directory: &Path) -> anyhow::Result<TempDir> {
    for entry in std::fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            let path = entry.path();
            std::fs::remove_dir_all(&path).with_context(|| format!("removing {}", path.display()))?;
        }
    }
    tempfile::Builder::new()
        .prefix(".unfinished-")
        .tempdir_in(directory)
        .with_context(|| format!("making a directory in {}", directory.display()))
}

/// A name for what is made from these texts; other texts give another name.
pub fn fingerprint(texts: &[&str]) -> String {
    format!("{:016x}", fnv_1a(texts.iter().flat_map(|text| text.bytes())))
}

/// FNV-1a, 64 bits: the same for the same text in every version of Rust, which the standard
/// library's hashers do not promise.
fn fnv_1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

    use super::*;

    #[test]
    fn what_a_stopped_run_left_is_removed_and_what_is_finished_stays() {
        let cache = tempfile::tempdir().unwrap();
        let place = |name: &str| cache.path().join(name);
        for name in [".unfinished-old", "finished"] {
            std::fs::create_dir(place(name)).unwrap();
        }
        let fresh = workplace(cache.path()).unwrap();
        assert!(fresh.path().is_dir() && place("finished").is_dir());
        assert!(!place(".unfinished-old").exists());
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        // The test vectors of draft-eastlake-fnv, appendix C.
        assert_eq!(fnv_1a(b"".iter().copied()), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv_1a(b"foobar".iter().copied()), 0x8594_4171_f739_67e8);
    }
}
