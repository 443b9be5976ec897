//! crane, which is a registry of container images in memory, and looks into one, for the tier release.

use std::path::PathBuf;

use super::Module;

/// The program.
pub const MODULE: Module = Module {
    name: "crane",
    tags: "",
    cgo: false,
    programs: &[(
        CRANE,
        "github.com/google/go-containerregistry/cmd/crane",
        "github.com/google/go-containerregistry",
    )],
};

const CRANE: &str = "crane";

/// Where it is.
pub fn program() -> anyhow::Result<PathBuf> {
    Ok(MODULE.built()?.join(CRANE))
}
