//! The distribution's archive, for apt: the packages that this machine is set up for, or those of another suite, such
//! as an older release, its backports, or the one in the making.
//!
//! What apt keeps of another suite is in a directory of ours, so nothing of the machine changes and no root is needed.
//! apt itself checks each package against the index, the index against the suite's Release file, and that
//! against the keys of the distribution.

use std::{
    fmt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    str::FromStr,
};

use anyhow::{Context as _, bail};

use crate::{
    files,
    platform::Platform,
    programs::{self, printed, run},
};

/// apt, with the packages of some suites.
pub(crate) struct Apt {
    /// Its state and configuration, if not the machine's.
    private: Option<(tempfile::TempDir, std::path::PathBuf)>,
}

impl Apt {
    /// With the packages of `suite` for a platform, or of those the machine is set up for.
    pub(crate) fn new(suite: Option<&Suite>, platform: Platform) -> anyhow::Result<Self> {
        if programs::find("apt-get").is_none() {
            bail!(
                "no apt-get to download a kernel or its source with; use --kernel host or --kernel uml:PATH"
            );
        }
        let Some(suite) = suite else { return Ok(Self { private: None }) };
        let directory = tempfile::Builder::new().prefix("kube-ipvs-apt-").tempdir()?;
        let configuration = fetch(suite, platform, directory.path())?;
        Ok(Self { private: Some((directory, configuration)) })
    }

    /// Downloads the packages that `name` stands for into `directory`, and returns their names.
    pub(crate) fn download(&self, name: &str, directory: &Path) -> anyhow::Result<Vec<String>> {
        match self.private {
            None => programs::with_package_lists(|| self.try_download(name, directory)),
            Some(_) => self.try_download(name, directory),
        }
    }

    fn try_download(&self, name: &str, directory: &Path) -> anyhow::Result<Vec<String>> {
        let packages = self.expand(name)?;
        eprintln!("xtask: downloading {} (apt-get download)", packages.join(" "));
        let mut download = self.command("apt-get");
        // The download directory is the user's own: apt's sandbox user has no business there.
        download.args(["download", "--quiet=2", "-o", "APT::Sandbox::User=root"]).args(&packages);
        run(download.current_dir(directory)).context("downloading packages")?;
        Ok(packages)
    }

    /// The packages to unpack: `name` itself, or the kernel packages it depends on if it is one of
    /// those that only follow the newest.
    fn expand(&self, name: &str) -> anyhow::Result<Vec<String>> {
        let mut found: Vec<String> = Vec::new();
        let mut open = vec![name.to_owned()];
        while let Some(package) = open.pop() {
            let mut depends = self.command("apt-cache");
            depends.args(["depends", "--no-recommends", "--no-suggests"]).arg(&package).stderr(Stdio::null());
            let depends = printed(&mut depends).with_context(|| format!("apt knows no package {package}"))?;
            let depends = kernel_packages(&depends);
            let follows_another = depends.iter().any(|package| begins(package, &WHOLE));
            if !follows_another && !found.contains(&package) {
                found.push(package.clone());
            }
            open.extend(depends.into_iter().filter(|new| !found.contains(new)));
        }
        Ok(found)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        if let Some((_, configuration)) = &self.private {
            command.arg("--config-file").arg(configuration);
        }
        command
    }
}

/// What the names of packages with a kernel's modules, or their lists, begin with. Debian has a package for
/// each of them from 7.0 on.
const PARTS: [&str; 3] = ["linux-binary-", "linux-modules-", "linux-base-"];

/// The same of packages with a kernel, or with the source of one. What depends on one has none itself.
const WHOLE: [&str; 2] = ["linux-image-", "linux-source-"];

fn begins(package: &str, with: &[&str]) -> bool {
    with.iter().any(|prefix| package.starts_with(prefix))
}

/// Of what `apt-cache depends` prints, the packages with a part of a kernel.
fn kernel_packages(depends: &str) -> Vec<String> {
    let names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.filter(|name| begins(name, &PARTS) || begins(name, &WHOLE)).map(str::to_owned).collect()
}

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
            _ => Err(format!(
                "invalid suite {text:?}: expected newest, or a name of letters, digits, '-', '.' and '_'"
            )),
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
    files::write(&configuration, private(directory, &source, platform))?;
    let entry = format!(
        "Types: deb\nURIs: {mirror}\nSuites: {name}\nComponents: main\nSigned-By: {keyring}\n\
         Targets: Packages\nLanguages: none\n",
    );
    files::write(&source, entry)?;
    eprintln!("xtask: fetching the package list of {name} from {mirror} (apt-get update)");
    let mut update = Command::new("apt-get");
    update.arg("--config-file").arg(&configuration).args(["update", "--quiet=2"]);
    run(&mut update).with_context(|| format!("fetching the package list of {name} from {mirror}"))?;
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
    let text = files::read(Path::new("/etc/os-release"))?;
    let id = text.lines().find_map(|line| line.strip_prefix("ID=")).unwrap_or_default().trim_matches('"');
    DISTRIBUTIONS
        .iter()
        .find(|distribution| distribution.id == id)
        .with_context(|| format!("unsupported distribution {id:?}: expected debian or ubuntu"))
}

/// The mirror that apt is set up to fetch the distribution's own packages from.
fn mirror(distribution: &Distribution) -> anyhow::Result<String> {
    let mut list = Command::new("apt-get");
    list.args(["indextargets", "--format", "$(REPO_URI)", "Identifier: Packages"]);
    let mirrors = programs::printed(list.arg(format!("Label: {}", distribution.label)))?;
    let mirror = mirrors.lines().next().context("apt is not set up for the distribution's archive")?;
    Ok(mirror.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_and_their_modules_are_followed() {
        assert_eq!(kernel_packages("linux-source\n  Depends: linux-source-6.1\n"), ["linux-source-6.1"]);
        let depends = "linux-image-virtual\n  Depends: linux-image-6.8.0-90-generic\n  Depends: linux-base\n \
                       |Depends: linux-initramfs-tool\n  Depends: linux-modules-6.8.0-90-generic\n  Depends: kmod\n";
        assert_eq!(
            kernel_packages(depends),
            ["linux-image-6.8.0-90-generic", "linux-modules-6.8.0-90-generic"]
        );
    }

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
