//! The crates that are for others.

use std::{path::Path, process::Command};

use anyhow::Result;
use guest::{cargo_tool::CargoTool, earlier, programs::run, workspace};

const PACKAGES: [&str; 4] = ["--package", "kube-ipvs-netlink", "--package", "linux-ipvs"];

/// What says whether a change breaks those who use a crate.
const SEMVER_CHECKS: CargoTool = CargoTool { name: "cargo-semver-checks", version: "0.51.0", arguments: &[] };

pub(super) fn can_be_published(clone: &Path) -> Result<()> {
    let mut publish = workspace::cargo();
    run(publish.current_dir(clone).args(["publish", "--dry-run", "--quiet"]).args(PACKAGES))
}

/// Fails if they changed more since the version before than their own versions say.
pub(super) fn keep_what_they_promise(clone: &Path) -> Result<()> {
    let mut check = Command::new(SEMVER_CHECKS.installed()?);
    check.current_dir(clone).args(["semver-checks", "--baseline-rev", &earlier::version()?]).args(PACKAGES);
    run(&mut check)
}
