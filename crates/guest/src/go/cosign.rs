//! cosign, which signs and verifies by a key, for the tier release.

use std::path::PathBuf;

use super::Module;

/// The program.
pub const MODULE: Module = Module {
    name: "cosign",
    tags: "",
    cgo: false,
    programs: &[("cosign", "github.com/sigstore/cosign/v3/cmd/cosign", "github.com/sigstore/cosign/v3")],
};

/// The directory that it is in.
pub fn directory() -> anyhow::Result<PathBuf> {
    MODULE.built()
}
