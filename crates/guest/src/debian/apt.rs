//! Kernel packages as apt knows them: which ones a name stands for, and downloading them.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

use super::suite::{self, Suite};
use crate::{platform::Platform, programs};

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
        let configuration = suite::fetch(suite, platform, directory.path())?;
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
        let status = self
            .command("apt-get")
            // The download directory is the user's own: apt's sandbox user has no business there.
            .args(["download", "--quiet=2", "-o", "APT::Sandbox::User=root"])
            .args(&packages)
            .current_dir(directory)
            .stdout(std::io::stderr())
            .status()
            .context("starting apt-get")?;
        if !status.success() {
            bail!("apt-get download failed ({status})");
        }
        Ok(packages)
    }

    /// The packages to unpack: `name` itself, or the kernel packages it depends on if it is one of
    /// those that only follow the newest.
    fn expand(&self, name: &str) -> anyhow::Result<Vec<String>> {
        let mut found: Vec<String> = Vec::new();
        let mut open = vec![name.to_owned()];
        while let Some(package) = open.pop() {
            let output = self
                .command("apt-cache")
                .args(["depends", "--no-recommends", "--no-suggests"])
                .arg(&package)
                .stderr(Stdio::null())
                .output()
                .context("starting apt-cache")?;
            if !output.status.success() {
                bail!("apt knows no package {package}");
            }
            let depends = kernel_packages(&String::from_utf8_lossy(&output.stdout));
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
}
