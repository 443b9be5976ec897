//! Packages for Debian and its kin, and for Fedora, SUSE and theirs. nfpm makes them of packaging/nfpm.yaml.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use guest::go::nfpm;
use guest::image_program::{self, Platform};
use guest::programs::run;
use guest::source::Source;
use guest::workspace;

/// Writes the `.deb` and the `.rpm` of a platform, under the names that both families give such files.
pub(super) fn write(
    version: &str,
    platform: Platform,
    source: &Source,
    documents: &Path,
    directory: &Path,
) -> Result<()> {
    let nfpm = nfpm::program()?;
    for format in ["deb", "rpm"] {
        let mut command = Command::new(&nfpm);
        command
            .current_dir(workspace::root().join("packaging"))
            .args(["package", "--config", "nfpm.yaml", "--packager", format, "--target"])
            .arg(directory)
            .env("VERSION", version)
            .env("ARCHITECTURE", platform.architecture())
            .env("PROGRAM", image_program::built(platform))
            .env("DOCUMENTS", documents)
            .env("SOURCE_DATE_EPOCH", source.seconds.to_string());
        run(&mut command)?;
    }
    Ok(())
}
