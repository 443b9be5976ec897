//! Another suite of the distribution, for apt: an older release, its backports, or the one in the making.
//!
//! All that apt keeps is in a directory of ours, so nothing of the machine changes and no root is needed.
//! apt itself checks each package against the index, the index against the suite's Release file, and that
//! against the keys of the distribution.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
    str::FromStr,
};

use anyhow::{Context as _, bail};

use crate::{platform::Platform, programs};

/// A suite of the distribution's archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Suite {
    /// The one that the next release is made of.
    Newest,
    /// `bullseye`, `bookworm-backports`.
    Named(String),
}

impl FromStr for Suite {
    type Err = String;

    /// A name becomes part of a path and of apt's configuration, so it must look like one.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        match text {
            "newest" => Ok(Self::Newest),
            _ if text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(plain) => {
                Ok(Self::Named(text.to_owned()))
            }
            _ => Err(format!("{text:?} is not the name of a suite")),
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newest => f.write_str("newest"),
            Self::Named(name) => f.write_str(name),
        }
    }
}

/// A distribution whose archive has several suites on each mirror.
struct Distribution {
    /// `ID` in os-release(5).
    id: &'static str,
    /// `Label` in the Release files of its archive.
    label: &'static str,
    /// The suite that the next release is made of.
    newest: &'static str,
    /// Who signs its Release files.
    keyring: &'static str,
    /// Whether a mirror has the packages for all processors.
    has_every_platform: bool,
}

const DISTRIBUTIONS: [Distribution; 2] = [
    Distribution {
        id: "debian",
        label: "Debian",
        newest: "testing",
        keyring: "/usr/share/keyrings/debian-archive-keyring.gpg",
        has_every_platform: true,
    },
    Distribution {
        id: "ubuntu",
        label: "Ubuntu",
        newest: "devel",
        keyring: "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
        has_every_platform: false,
    },
];

/// Lets apt, with the configuration file returned, know the packages of `suite` for a platform and no others. What it
/// keeps goes into `directory`.
pub(crate) fn fetch(suite: &Suite, platform: Platform, directory: &Path) -> anyhow::Result<PathBuf> {
    let Source { mirror, name, keyring } = source(suite)?;
    let (configuration, source) = (directory.join("apt.conf"), directory.join("suite.sources"));
    fs::write(&configuration, private(directory, &source, platform))
        .context("writing apt's configuration")?;
    let entry = format!(
        "Types: deb\nURIs: {mirror}\nSuites: {name}\nComponents: main\nSigned-By: {keyring}\n\
         Targets: Packages\nLanguages: none\n",
    );
    fs::write(&source, entry).context("writing apt's source")?;
    eprintln!("xtask: fetching the package list of {name} from {mirror} (apt-get update)");
    let mut update = Command::new("apt-get");
    update.arg("--config-file").arg(&configuration).args(["update", "--quiet=2"]);
    let status = update.status().context("starting apt-get")?;
    if !status.success() {
        bail!("apt-get could not fetch the package list of {name} from {mirror} ({status})");
    }
    Ok(configuration)
}

/// Where the packages of a suite come from.
pub(crate) struct Source {
    /// The archive.
    pub(crate) mirror: String,
    /// The suite, as the archive has it.
    pub(crate) name: String,
    /// Who signs it.
    pub(crate) keyring: &'static str,
}

/// Whether this machine's mirror has packages for other processors too.
pub(crate) fn has_every_platform() -> anyhow::Result<bool> {
    Ok(distribution()?.has_every_platform)
}

/// Where this machine gets the packages of `suite` from.
pub(crate) fn source(suite: &Suite) -> anyhow::Result<Source> {
    let distribution = distribution()?;
    let name = match suite {
        Suite::Newest => distribution.newest,
        Suite::Named(name) => name,
    };
    let mirror = programs::with_package_lists(|| mirror(distribution))?;
    Ok(Source { mirror, name: name.to_owned(), keyring: distribution.keyring })
}

/// An apt.conf(5) read after the machine's own, whose proxies and the like stay in force. Nothing that is
/// installed or preferred there counts, and none of its hooks is run.
fn private(directory: &Path, source: &Path, platform: Platform) -> String {
    let (directory, source) = (directory.display(), source.display());
    let architecture = platform.architecture();
    format!(
        r#"#clear APT::Update;
#clear APT::Default-Release;
#clear APT::Architectures;
APT::Architecture "{architecture}";
APT::Architectures "{architecture}";
APT::Sandbox::User "root";
Dir::Cache "{directory}";
Dir::Etc::SourceList "{source}";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "{directory}";
Dir::State::Status "/dev/null";
"#
    )
}

/// The distribution of this machine.
fn distribution() -> anyhow::Result<&'static Distribution> {
    let text = fs::read_to_string("/etc/os-release").context("reading /etc/os-release")?;
    let id = text.lines().find_map(|line| line.strip_prefix("ID=")).unwrap_or_default().trim_matches('"');
    DISTRIBUTIONS
        .iter()
        .find(|distribution| distribution.id == id)
        .with_context(|| format!("which suites this distribution ({id}) has is not known"))
}

/// The mirror that apt is set up to fetch the distribution's own packages from.
fn mirror(distribution: &Distribution) -> anyhow::Result<String> {
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", "$(REPO_URI)", "Identifier: Packages"])
        .arg(format!("Label: {}", distribution.label))
        .output()
        .context("starting apt-get")?;
    let mirrors = String::from_utf8_lossy(&output.stdout);
    let mirror = mirrors.lines().next().context("apt is not set up for the distribution's archive")?;
    Ok(mirror.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_is_newest_or_a_name_and_never_a_path_or_another_line() {
        assert_eq!("newest".parse(), Ok(Suite::Newest));
        for name in ["bullseye", "bookworm-backports", "oldstable"] {
            assert_eq!(name.parse(), Ok(Suite::Named(name.to_owned())));
        }
        for wrong in ["", "..", "-o", "a/b", "a b", "a\nTrusted: yes", "a\"b"] {
            assert!(wrong.parse::<Suite>().is_err(), "{wrong:?}");
        }
    }
}
