//! `cargo xtask package`: packages for Debian and distributions made of it, and for Fedora, SUSE and theirs. nfpm makes them
//! of packaging/nfpm.yaml.

use std::{
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result};
use guest::{
    files,
    go::NFPM,
    platform::{self, Platform},
    programs,
    source::Source,
    workspace,
};

use crate::{image::Platforms, usr_share};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Builds the packages in target/package.
pub(crate) fn run(platforms: &Platforms) -> Result<ExitCode> {
    let source = Source::here().context("git does not know these sources, and packages have their time")?;
    let directory = workspace::root().join("target/package");
    files::make_anew(&directory)?;
    let usr_share = usr_share::make()?;
    // Of two builds the later one is the newer one, and a release is newer than both.
    let release = format!("0.{}", source.time.replace(|letter: char| !letter.is_ascii_digit(), ""));
    let version = Version { version: VERSION, release: &release };
    for &platform in platforms.chosen() {
        platform::build_program(platform)?;
        write(version, platform, &source, usr_share.path(), &directory)?;
    }
    for file in files::list(&directory)? {
        println!("{}", file.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// A version, and which package of it this is: `0.1.0-1` is the first.
#[derive(Clone, Copy)]
pub(crate) struct Version<'a> {
    version: &'a str,
    release: &'a str,
}

impl<'a> Version<'a> {
    /// The first package of a version that is released.
    pub(crate) fn released(version: &'a str) -> Self {
        Self { version, release: "1" }
    }
}

/// Writes the `.deb` and the `.rpm` of a platform, under the names that both families give such files.
pub(crate) fn write(
    version: Version<'_>,
    platform: Platform,
    source: &Source,
    usr_share: &Path,
    directory: &Path,
) -> Result<()> {
    let nfpm = NFPM.program("nfpm")?;
    let (deb, rpm) = names(version, platform);
    for (format, name) in [("deb", deb), ("rpm", rpm)] {
        let mut command = Command::new(&nfpm);
        command
            .current_dir(workspace::root().join("packaging"))
            .args(["package", "--config", "nfpm.yaml", "--packager", format, "--target"])
            .arg(directory.join(name))
            .env("VERSION", version.version)
            .env("RELEASE", version.release)
            .env("ARCHITECTURE", platform.architecture())
            .env("PROGRAM", platform::built_program(platform))
            .env("USR_SHARE", usr_share)
            .env("SOURCE_DATE_EPOCH", source.seconds.to_string());
        programs::run(&mut command)?;
    }
    Ok(())
}

/// The files' names, with the words for the processor that each family has.
fn names(Version { version, release }: Version<'_>, platform: Platform) -> (String, String) {
    let (deb, rpm) = match platform {
        Platform::Amd64 => ("amd64", "x86_64"),
        Platform::Arm64 => ("arm64", "aarch64"),
    };
    (format!("kube-ipvs_{version}-{release}_{deb}.deb"), format!("kube-ipvs-{version}-{release}.{rpm}.rpm"))
}
