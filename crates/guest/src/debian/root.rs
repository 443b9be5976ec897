//! A root file system of the distribution's newest suite: a node of a cluster, and what is in a container.

use std::{path::PathBuf, process::Command};

use anyhow::ensure;

use super::apt::{self, Suite};
use crate::{
    cache,
    needs::MMDEBSTRAP,
    platform::Platform,
    programs::{self, printed, run},
};

/// A node and a container do without them.
const LEFT_OUT: [&str; 3] = ["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*"];

/// The directory with the essential packages and these: from the cache, or made now. Nothing may be changed in it.
///
/// Needs root. What was made once is not looked up again; removing the directory makes it of the newest packages.
pub fn ensure(packages: &[&str]) -> anyhow::Result<PathBuf> {
    make(packages, Platform::HERE, &["--variant=minbase"])
}

/// The same for a processor that may be another. The packages are unpacked, and no script of theirs has run: what they
/// set up, such as the links of alternatives, is not there.
pub(crate) fn unpacked(packages: &[&str], platform: Platform) -> anyhow::Result<PathBuf> {
    ensure!(
        platform.is_here() || apt::has_every_platform()?,
        "this distribution has packages for {} on other mirrors: not supported",
        platform.architecture()
    );
    make(packages, platform, &["--variant=extract", "--architectures", platform.architecture()])
}

fn make(packages: &[&str], platform: Platform, variant: &[&str]) -> anyhow::Result<PathBuf> {
    let source = apt::source(&Suite::Newest)?;
    let listed = packages.join(",");
    let name = cache::fingerprint(&[&[listed.as_str(), &source.name], variant].concat());
    cache::made_once("root", &name, |place| {
        ensure!(programs::is_root(), "making a root file system needs root");
        programs::ensure(&[MMDEBSTRAP])?;
        let architecture = platform.architecture();
        eprintln!("xtask: making a root file system of {} for {architecture} (mmdebstrap)", source.name);
        let root = place.join("root");
        let mut mmdebstrap = Command::new(MMDEBSTRAP.name);
        mmdebstrap
            .args(["--quiet", "--mode=root", "--format=directory"])
            .args(variant)
            .arg(format!("--include={listed}"))
            .args(LEFT_OUT.map(|path| format!("--dpkgopt=path-exclude={path}")))
            .args(settings()?.iter().map(|setting| format!("--aptopt={setting}")))
            .arg(&source.name)
            .arg(&root)
            .arg(format!("deb [signed-by={}] {} {} main", source.keyring, source.mirror, source.name));
        run(&mut mmdebstrap)?;
        Ok(root)
    })
}

/// How this machine's apt reaches the archive and judges its age; mmdebstrap does not read that.
fn settings() -> anyhow::Result<Vec<String>> {
    let dump = printed(Command::new("apt-config").arg("dump"))?;
    let matter = ["Acquire::http", "Acquire::https", "Acquire::Check-"];
    let lines = dump.lines().filter(|line| matter.iter().any(|prefix| line.starts_with(prefix)));
    Ok(lines.map(|line| line.trim_end_matches(';').to_owned()).collect())
}
