//! The tier **release**: what `cargo xtask release` makes of this commit, taken apart as those who install it do.
//!
//! It works in clones below `target/try-release`, because the changelog has to have the version.

mod clones;
mod files;
mod keys;
mod registry;

use std::fs;

use anyhow::{Context as _, Result, ensure};
use guest::{programs::run as run_program, source::Source, workspace};
use keys::Keys;

use super::summary::Report;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs all of it in order, up to the first that fails, whose files stay.
pub(super) fn run() -> Report {
    Report::of_steps(try_steps)
}

fn try_steps(report: &mut Report) -> Result<()> {
    let source = Source::here().context("git does not know these sources")?;
    ensure!(source.is_clean, "there are changes that are not committed: what is tried is a commit");
    let place = workspace::root().join("target/try-release");
    guest::files::make_anew(&place)?;

    let mut step = |name: &str, try_out: &dyn Fn() -> Result<()>| {
        println!("--- {name}");
        try_out().with_context(|| name.to_owned())?;
        report.passed += 1;
        anyhow::Ok(())
    };
    let clone = place.join("clone");
    clones::make(&workspace::root(), &clone)?;
    step("a version that the changelog does not have is refused", &|| {
        clones::is_refused(&clone, "99.0.0", "no section")
    })?;
    let commit = clones::name_the_version(&clone)?;
    guest::files::write(&clone.join("new"), "")?;
    step("changed sources are refused", &|| clones::is_refused(&clone, VERSION, "not committed"))?;
    fs::remove_file(clone.join("new")).context("removing a file")?;
    clones::note_gate(&clone, &commit)?;

    let release = clone.join(format!("target/release-{VERSION}"));
    let keys = Keys::make(&place)?;
    step("a release is made", &|| {
        let mut release = clones::xtask(&clone);
        release.args(["release", VERSION]);
        run_program(&mut keys.with_keys(release)?)
    })?;
    step("every file is there and has its checksum, and no other", &|| files::is_whole(&release))?;
    step("archives and packages have the program of their platform", &|| {
        files::programs_are_of_their_platforms(&release)
    })?;
    step("minisign verifies the checksums", &|| keys.minisign_verifies(&release))?;
    step("cosign verifies the checksums", &|| keys.cosign_verifies(&release))?;
    step("the archive has the program, its manual and its completions", &|| {
        files::archive_is_whole(&release, &place)
    })?;
    step("dpkg and rpm find the same files in their packages", &|| files::packages_are_alike(&release))?;
    step("systemd understands the unit, and finds it hardened", &|| {
        files::unit_is_hardened(&release, &place)
    })?;
    step("Helm renders the chart", &|| files::helm_renders(&release))?;
    step("a registry has the image, and what is said of it", &|| {
        registry::has_what_is_said_of_images(&release)
    })?;
    step("the crates that are for others can be published", &|| clones::can_be_published(&clone))?;
    step("the crates that are for others keep what they promise", &|| {
        clones::keep_what_they_promise(&clone)
    })?;
    step("another release is the same, bit for bit", &|| clones::is_equal(&clone, &commit, &place))?;
    fs::remove_dir_all(&place).with_context(|| format!("removing {}", place.display()))
}
