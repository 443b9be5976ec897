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

/// A name for what is made from these texts; other texts give another name.
pub(crate) fn fingerprint(texts: &[&str]) -> String {
    format!("{:016x}", fnv_1a(texts.iter().flat_map(|text| text.bytes())))
}

/// FNV-1a, 64 bits: the same for the same text in every version of Rust, which the standard
/// library's hashers do not promise.
fn fnv_1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        // The test vectors of draft-eastlake-fnv, appendix C.
        assert_eq!(fnv_1a(b"".iter().copied()), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv_1a(b"foobar".iter().copied()), 0x8594_4171_f739_67e8);
    }
}
