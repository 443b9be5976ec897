//! What must be true of the sources before they are released.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use guest::{source::Source, workspace};

/// Fails with the first thing that is missing.
pub(super) fn ensure(version: &str, source: &Source) -> Result<()> {
    let read = |name: &str| fs::read_to_string(workspace::root().join(name)).with_context(|| name.to_owned());
    ensure!(
        source.is_clean,
        "there are changes that are not committed, or files that git does not know (git status)"
    );
    names_version("CHANGELOG.md", &read("CHANGELOG.md")?, version)?;
    is_the_version(version, env!("CARGO_PKG_VERSION"), &read("manifests/helm/kube-ipvs/Chart.yaml")?)
}

/// Fails unless the workspace and the Helm chart have this version.
fn is_the_version(version: &str, own: &str, chart: &str) -> Result<()> {
    ensure!(version == own, "Cargo.toml has the version {own}, not {version}");
    for field in ["version", "appVersion"] {
        let line = format!("{field}: {version}");
        ensure!(chart.lines().any(|has| has == line), "manifests/helm/kube-ipvs/Chart.yaml lacks {line:?}");
    }
    Ok(())
}

/// Fails unless the changelog has a section for the version, with its day and at least one change.
fn names_version(name: &str, changelog: &str, version: &str) -> Result<()> {
    let heading = format!("## [{version}] - ");
    let mut sections = changelog.split("\n## ").skip(1);
    let Some(section) = sections.find(|section| format!("## {section}").starts_with(&heading)) else {
        bail!("{name} has no section that begins with {heading:?} and the day");
    };
    let day = section.lines().next().and_then(|line| line.rsplit(' ').next()).unwrap_or_default();
    let is_day = day.len() == 10 && day.split('-').all(|part| part.parse::<u32>().is_ok());
    ensure!(is_day, "{name} has {version} without a day, such as {heading}2027-01-31");
    ensure!(section.lines().any(|line| line.starts_with("- ")), "{name} names no change in {version}");
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

    use super::*;

    #[test]
    fn changelog_without_the_version_its_day_or_a_change_is_refused() {
        let names = |changelog: &str| {
            let changelog = format!("# Changelog\n\n## [Unreleased]\n\n- Later.\n{changelog}");
            names_version("CHANGELOG.md", &changelog, "1.2.3").map_err(|error| error.to_string())
        };
        names("\n## [1.2.3] - 2027-01-31\n\n- A change.\n").unwrap();
        assert!(names("\n## [1.2.4] - 2027-01-31\n\n- A change.\n").unwrap_err().contains("no section"));
        assert!(names("\n## [1.2.3] - soon\n\n- A change.\n").unwrap_err().contains("without a day"));
        let empty = "\n## [1.2.3] - 2027-01-31\n\n## [1.2.2] - 2027-01-01\n\n- A change.\n";
        assert!(names(empty).unwrap_err().contains("no change"));
    }

    #[test]
    fn changed_sources_are_refused() {
        let source = Source { commit: String::new(), seconds: 0, time: String::new(), is_clean: false };
        let refused = ensure(env!("CARGO_PKG_VERSION"), &source).unwrap_err().to_string();
        assert!(refused.contains("git status"), "{refused}");
    }

    #[test]
    fn another_version_of_the_workspace_or_the_chart_is_refused() {
        let chart = "apiVersion: v2\nversion: 1.2.3\nappVersion: 1.2.3\n";
        let is = |version, own, chart: &str| {
            is_the_version(version, own, chart).map_err(|error| error.to_string())
        };
        assert_eq!(is("1.2.3", "1.2.3", chart), Ok(()));
        assert!(is("1.2.3", "1.2.2", chart).unwrap_err().contains("Cargo.toml"));
        assert!(
            is("1.2.3", "1.2.3", &chart.replace("appVersion: 1.2.3", "")).unwrap_err().contains("appVersion")
        );
    }
}
