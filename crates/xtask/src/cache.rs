//! Where downloads and builds are kept between runs: outside the repository, so that a fresh
//! clone finds them.

use std::path::PathBuf;

use anyhow::Context as _;

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
