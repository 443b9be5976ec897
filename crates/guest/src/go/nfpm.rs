//! nfpm, which makes packages for distributions of Linux, for `cargo xtask release`.

use std::path::PathBuf;

use super::Module;

/// The program.
pub const MODULE: Module = Module {
    name: "nfpm",
    tags: "",
    cgo: false,
    programs: &[(NFPM, "github.com/goreleaser/nfpm/v2/cmd/nfpm", "github.com/goreleaser/nfpm/v2")],
};

const NFPM: &str = "nfpm";

/// Where it is.
pub fn program() -> anyhow::Result<PathBuf> {
    Ok(MODULE.built()?.join(NFPM))
}
