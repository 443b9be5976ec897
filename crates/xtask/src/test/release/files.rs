//! What is in the files that an operator downloads.

use std::{collections::BTreeSet, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use guest::{go::CLIENTS, platform::Platform, programs::run};

use super::{VERSION, printed};

pub(super) fn archive_is_whole(release: &Path, place: &Path) -> Result<()> {
    let name = format!("kube-ipvs-{VERSION}-linux-{}", Platform::HERE.architecture());
    let archive = release.join(format!("{name}.tar.gz"));
    run(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(place))?;
    let root = place.join(name);
    let said = printed(Command::new(root.join("bin/kube-ipvs")).arg("--version"))?;
    ensure!(said == format!("kube-ipvs {VERSION}\n"), "{said}");
    for file in [
        "bin/kubectl-ipvs",
        "share/man/man1/kube-ipvs.1.gz",
        "share/bash-completion/completions/kube-ipvs",
        "share/doc/kube-ipvs/copyright",
    ] {
        ensure!(root.join(file).is_file(), "{file} is missing");
    }
    Ok(())
}

/// Fails unless both packages of each platform have the same files, upgrades ask for none of them, and nobody else may look
/// into the directory for the key.
pub(super) fn packages_are_alike(release: &Path) -> Result<()> {
    for (deb, rpm) in [("amd64", "x86_64"), ("arm64", "aarch64")] {
        let deb = release.join(format!("kube-ipvs_{VERSION}-1_{deb}.deb"));
        let rpm = release.join(format!("kube-ipvs-{VERSION}-1.{rpm}.rpm"));
        let of_deb = |arguments: &[&str]| printed(Command::new("dpkg-deb").args(arguments).arg(&deb));
        let of_rpm = |what: &str| printed(Command::new("rpm").args(["--query", what, "--package"]).arg(&rpm));

        let contents = of_deb(&["--contents"])?;
        let in_deb: BTreeSet<&str> = contents.lines().filter_map(file).collect();
        let list = of_rpm("--list")?;
        let in_rpm: BTreeSet<&str> = list.lines().collect();
        let missing: Vec<_> = in_deb.difference(&in_rpm).collect();
        ensure!(missing.is_empty(), "only the .deb has {missing:?}");
        for needed in [
            "/usr/bin/kube-ipvs",
            "/usr/lib/systemd/system/kube-ipvs.service",
            "/usr/share/man/man1/kube-ipvs.1.gz",
            "/usr/share/doc/kube-ipvs/third-party-notices",
        ] {
            ensure!(in_deb.contains(needed), "the packages lack {needed}");
        }
        let of_upgrades =
            printed(Command::new("dpkg-deb").arg("--info").arg(&deb))? + &of_rpm("--configfiles")?;
        ensure!(
            !of_upgrades.contains("conffiles") && !of_upgrades.contains("/etc/"),
            "an upgrade would ask: {of_upgrades}"
        );
        let verbose = printed(Command::new("rpm").args(["--query", "--list", "-v", "--package"]).arg(&rpm))?;
        for (mut lines, end) in
            [(contents.lines(), " ./etc/kube-ipvs/"), (verbose.lines(), " /etc/kube-ipvs")]
        {
            let directory = lines.find(|line| line.ends_with(end)).unwrap_or_default();
            ensure!(directory.starts_with("drwx------ "), "others can read the key: {directory:?}");
        }
    }
    Ok(())
}

/// The file in a line of `dpkg-deb --contents`; none for a directory.
fn file(line: &str) -> Option<&str> {
    let path = line.split_whitespace().nth(5)?.strip_prefix('.')?;
    (!path.ends_with('/')).then_some(path)
}

pub(super) fn unit_is_hardened(release: &Path, place: &Path) -> Result<()> {
    let deb = release.join(format!("kube-ipvs_{VERSION}-1_{}.deb", Platform::HERE.architecture()));
    let root = place.join("root");
    run(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(&root))?;
    let unit = root.join("usr/lib/systemd/system/kube-ipvs.service");
    let verified =
        Command::new("systemd-analyze").arg("verify").arg(unit).output().context("systemd-analyze")?;
    // It complains in any case, because what the unit starts is not installed here.
    let said = String::from_utf8_lossy(&verified.stderr);
    ensure!(!said.contains(", ignoring"), "systemd does not understand the unit: {said}");
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(["security", "--offline=true", "--threshold=30", "--no-pager"]);
    // 0 is a process without any right, 100 one with all: kubelet's has 96.
    run(analyze.arg("--root").arg(&root).arg("kube-ipvs.service"))
}

pub(super) fn helm_renders(release: &Path) -> Result<()> {
    let mut helm = Command::new(CLIENTS.program("helm")?);
    helm.args(["template", "kube-ipvs"]).arg(release.join(format!("kube-ipvs-{VERSION}.tgz")));
    helm.args(["--set=image.repository=registry.example/kube-ipvs", "--set=server=https://10.0.0.1:6443"]);
    let rendered = printed(&mut helm)?;
    ensure!(
        rendered.contains(&format!("image: \"registry.example/kube-ipvs:{VERSION}\""))
            || rendered.contains(&format!("image: registry.example/kube-ipvs:{VERSION}")),
        "{rendered}"
    );
    Ok(())
}
