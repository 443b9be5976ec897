//! The plugin of kubectl in a release: an archive for each system, as krew wants them, and krew's manifest of them.
//!
//! krew refuses an archive with links, such as that of the daemon. What runs on macOS is built there, by
//! `.github/workflows/release.yml`.

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use guest::{
    files,
    platform::{self, Platform},
    workspace,
};

use crate::notices;

/// The program.
const PROGRAM: &str = "kubectl-ipvs";

/// The systems besides Linux: in the workflow, the directories with the programs for them.
const DARWIN: [&str; 2] = ["darwin-amd64", "darwin-arm64"];

/// Where a platform begins in the template.
const PLATFORM: &str = "    - selector:\n";

/// The name of the archive for a system and a processor.
fn archive(version: &str, system: &str) -> String {
    format!("{PROGRAM}-{version}-{system}.tar.gz")
}

/// Builds the plugin for Linux, and writes its archive.
pub(crate) fn write(version: &str, platform: Platform, directory: &Path) -> Result<()> {
    let program = platform::build_released(platform, PROGRAM)?;
    write_archive(version, &format!("linux-{}", platform.architecture()), &program, directory)
}

/// Writes the archives for macOS, of programs that were built elsewhere: `darwin-arm64/kubectl-ipvs` and the other.
pub(crate) fn write_others(version: &str, programs: &Path, directory: &Path) -> Result<()> {
    let write = |system| write_archive(version, system, &programs.join(system).join(PROGRAM), directory);
    DARWIN.into_iter().try_for_each(write)
}

fn write_archive(version: &str, system: &str, program: &Path, directory: &Path) -> Result<()> {
    let root = tempfile::tempdir().context("making a directory for an archive")?;
    let copy = root.path().join(PROGRAM);
    files::copy(program, &copy)?;
    // What a workflow passes on has lost it.
    fs::set_permissions(&copy, Permissions::from_mode(0o755)).context("making a program executable")?;
    files::copy(&workspace::root().join("LICENSE"), &root.path().join("LICENSE"))?;
    files::write(&root.path().join("third-party-notices"), notices::text()?)?;
    files::write(&directory.join(archive(version, system)), files::gzip(&files::tar(root.path())?)?)
}

/// Writes krew's manifest of the archives that are in the directory, which have these checksums.
pub(crate) fn write_manifest(version: &str, checksums: &[(String, String)], directory: &Path) -> Result<()> {
    let template = files::read(&workspace::root().join("packaging/krew.yaml"))?;
    let file = directory.join(format!("{PROGRAM}-{version}.krew.yaml"));
    files::write(&file, manifest(&template, version, checksums)?)
}

fn manifest(template: &str, version: &str, checksums: &[(String, String)]) -> Result<String> {
    let checksums: BTreeMap<_, _> = checksums.iter().cloned().collect();
    // The comment is for those who read the template.
    let lines = template.lines().skip_while(|line| line.starts_with('#'));
    let text = (lines.collect::<Vec<_>>().join("\n") + "\n").replace("VERSION", version);
    let mut parts = text.split(PLATFORM);
    let mut manifest = parts.next().unwrap_or_default().to_owned();
    for platform in parts {
        let uri = platform.lines().find_map(|line| line.trim().strip_prefix("uri: "));
        let name =
            uri.and_then(|uri| uri.rsplit('/').next()).context("krew.yaml has a platform without uri")?;
        if let Some(sha256) = checksums.get(name) {
            manifest.push_str(PLATFORM);
            manifest.push_str(&platform.replace("SHA256", sha256));
        }
    }
    ensure!(manifest.contains(PLATFORM), "no archive of the plugin is there");
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

    use super::*;

    fn template() -> String {
        files::read(&workspace::root().join("packaging/krew.yaml")).unwrap()
    }

    /// The values of a field, in the order of the platforms.
    fn values<'a>(manifest: &'a str, field: &str) -> Vec<&'a str> {
        manifest.lines().filter_map(|line| line.trim().strip_prefix(field)?.strip_prefix(": ")).collect()
    }

    #[test]
    fn krew_finds_each_archive_of_a_release_with_its_checksum() {
        let linux = Platform::ALL.map(|platform| format!("linux-{}", platform.architecture()));
        let systems: Vec<_> = linux.into_iter().chain(DARWIN.map(str::to_owned)).collect();
        let checksums: Vec<_> =
            systems.iter().map(|system| (archive("1.2.3", system), format!("sum of {system}"))).collect();
        let manifest = manifest(&template(), "1.2.3", &checksums).unwrap();

        let repository = env!("CARGO_PKG_REPOSITORY");
        let uris = checksums.iter().map(|(name, _)| format!("{repository}/releases/download/v1.2.3/{name}"));
        assert_eq!(values(&manifest, "uri"), uris.collect::<Vec<_>>());
        let sums: Vec<_> = checksums.iter().map(|(_, sum)| sum.as_str()).collect();
        assert_eq!(values(&manifest, "sha256"), sums);
        let selected = values(&manifest, "os").into_iter().zip(values(&manifest, "arch"));
        assert_eq!(selected.map(|(os, arch)| format!("{os}-{arch}")).collect::<Vec<_>>(), systems);
        assert_eq!(values(&manifest, "bin"), [PROGRAM; 4]);
        assert_eq!(values(&manifest, "version"), ["v1.2.3"]);
        assert_eq!(values(&manifest, "homepage"), [repository]);
        assert_eq!(format!("kubectl-{}", values(&manifest, "name").concat()), PROGRAM);
        assert!(!manifest.contains("VERSION") && !manifest.contains("SHA256"), "{manifest}");
    }

    #[test]
    fn krew_s_manifest_leaves_out_the_systems_without_an_archive() {
        let sum = (archive("1.2.3", "linux-arm64"), "sum".to_owned());
        let manifest = |checksums: &[_]| manifest(&template(), "1.2.3", checksums);
        let one = manifest(&[sum]).unwrap();
        assert_eq!((values(&one, "os"), values(&one, "arch")), (vec!["linux"], vec!["arm64"]));
        assert!(manifest(&[]).is_err());
    }
}
