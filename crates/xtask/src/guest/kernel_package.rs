//! The distribution's own kernel, downloaded and unpacked but not installed.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use super::modules::Dependencies;
use crate::{cache, programs};

/// An unpacked kernel package.
pub(super) struct KernelPackage {
    /// The bootable image.
    pub(super) image: PathBuf,
    /// The host's directory with the modules and modprobe's indexes.
    pub(super) modules: PathBuf,
    /// What `uname -r` says under this kernel.
    pub(super) release: String,
}

/// The packages that lead to a kernel for virtual machines, best first: Debian's, then Ubuntu's.
/// A name the distribution does not have is passed over.
const CANDIDATES: [&str; 4] = if cfg!(target_arch = "aarch64") {
    ["linux-image-cloud-arm64", "linux-image-arm64", "linux-image-virtual", "linux-image-generic"]
} else {
    ["linux-image-cloud-amd64", "linux-image-amd64", "linux-image-virtual", "linux-image-generic"]
};

/// The modules without which a kernel is of no use here.
const NEEDED: [&str; 6] = ["ip_vs", "dummy", "nf_tables", "veth", "bridge", "br_netfilter"];

/// The kernel of the package `named`, or of the first candidate that has what is needed: from the
/// cache, or downloaded now.
pub(super) fn ensure(named: Option<&str>) -> anyhow::Result<KernelPackage> {
    let Some(name) = named else {
        let mut failures = Vec::new();
        for candidate in CANDIDATES {
            match of_package(candidate) {
                Ok(kernel) => return Ok(kernel),
                Err(error) => failures.push(format!("{error:#}")),
            }
        }
        bail!("no kernel package could be had: {}", failures.join("; "));
    };
    of_package(name)
}

/// A package that was unpacked once is not looked up again, so that later runs need no network and
/// compare with earlier ones. Removing its directory from the cache fetches the newest.
fn of_package(name: &str) -> anyhow::Result<KernelPackage> {
    let cache = cache::directory("kernel")?;
    let lock = fs::File::create(cache.join("lock")).context("creating the kernel cache's lock file")?;
    lock.lock().context("waiting for another xtask's download of a kernel")?;
    let link = cache.join(name);
    if !link.exists() {
        let unpacked = download(name, &cache).with_context(|| format!("kernel package {name}"))?;
        drop(fs::remove_file(&link));
        std::os::unix::fs::symlink(&unpacked, &link)
            .with_context(|| format!("creating {}", link.display()))?;
    }
    open(&link).with_context(|| format!("kernel package {name}"))
}

/// Downloads and unpacks what the package `name` stands for. Returns the name of the directory in
/// the cache, which is that of the package with its version.
fn download(name: &str, cache: &Path) -> anyhow::Result<PathBuf> {
    if programs::find("apt-get").is_none() {
        bail!("no apt-get to download it with; use --kernel host or --kernel uml:PATH");
    }
    // Unpacked under another name first: what has its final name is whole.
    let fresh = tempfile::Builder::new().prefix(".unpacking-").tempdir_in(cache)?;
    let packages = programs::with_package_lists(|| {
        let packages = expand(name)?;
        eprintln!("xtask: downloading {} (apt-get download)", packages.join(" "));
        run(Command::new("apt-get")
            // The download directory is the user's own: apt's sandbox user has no business there.
            .args(["download", "--quiet=2", "-o", "APT::Sandbox::User=root"])
            .args(&packages)
            .current_dir(fresh.path()))?;
        Ok(packages)
    })?;
    let archives: Vec<PathBuf> = entries(fresh.path())?;
    for archive in &archives {
        run(Command::new("dpkg-deb").arg("--extract").arg(archive).arg(fresh.path()))?;
        fs::remove_file(archive)?;
    }
    // Where /usr is merged, packages carry usr/lib/modules; depmod looks into lib/modules.
    if !fresh.path().join("lib").exists() {
        std::os::unix::fs::symlink("usr/lib", fresh.path().join("lib"))?;
    }
    let release = release(fresh.path())?;
    let depmod = programs::find("depmod").context("no depmod, which kmod should have brought")?;
    run(Command::new(depmod).arg("--basedir").arg(fresh.path()).arg(&release))?;

    let image =
        packages.iter().find(|package| package.starts_with("linux-image-")).map_or(name, String::as_str);
    let stem = archives
        .iter()
        .filter_map(|archive| archive.file_stem().and_then(OsStr::to_str))
        .find(|stem| stem.split('_').next() == Some(image))
        .with_context(|| format!("{image} was not downloaded"))?;
    let place = cache.join(stem);
    if !place.exists() {
        fs::rename(fresh.path(), &place).with_context(|| format!("creating {}", place.display()))?;
    }
    Ok(PathBuf::from(stem))
}

/// The packages to unpack: `name` itself, or the kernel packages it depends on if it is one of
/// those that only follow the newest.
fn expand(name: &str) -> anyhow::Result<Vec<String>> {
    let mut found: Vec<String> = Vec::new();
    let mut open = vec![name.to_owned()];
    while let Some(package) = open.pop() {
        let output = Command::new("apt-cache")
            .args(["depends", "--no-recommends", "--no-suggests"])
            .arg(&package)
            .stderr(Stdio::null())
            .output()
            .context("starting apt-cache")?;
        if !output.status.success() {
            bail!("apt knows no package {package}");
        }
        let depends = kernel_packages(&String::from_utf8_lossy(&output.stdout));
        let follows_another = depends.iter().any(|package| package.starts_with("linux-image-"));
        if !follows_another {
            found.push(package.clone());
        }
        open.extend(depends.into_iter().filter(|new| !found.contains(new)));
    }
    Ok(found)
}

/// Of what `apt-cache depends` prints, the packages with a kernel or its modules.
fn kernel_packages(depends: &str) -> Vec<String> {
    let names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names
        .filter(|name| name.starts_with("linux-image-") || name.starts_with("linux-modules-"))
        .map(str::to_owned)
        .collect()
}

/// The unpacked package at `root`, if it is whole and has the modules needed.
fn open(root: &Path) -> anyhow::Result<KernelPackage> {
    let release = release(root)?;
    let image = entries(&root.join("boot"))?
        .into_iter()
        .find(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"vmlinu")))
        .context("no kernel image in it")?;
    let modules = root.join("lib/modules").join(&release);
    let index = |name: &str| {
        fs::read_to_string(modules.join(name)).with_context(|| modules.join(name).display().to_string())
    };
    let (modules_dep, builtin) = (index("modules.dep")?, index("modules.builtin")?);
    let (dependencies, builtin) = (Dependencies::parse(&modules_dep), builtin.replace(".ko", ".ko:"));
    let builtin = Dependencies::parse(&builtin);
    match NEEDED.iter().find(|module| !dependencies.has(module) && !builtin.has(module)) {
        None => Ok(KernelPackage { image, modules, release }),
        Some(module) => bail!("it lacks the module {module}"),
    }
}

/// The one directory under `lib/modules`.
fn release(root: &Path) -> anyhow::Result<String> {
    let modules = entries(&root.join("lib/modules"))?;
    let name = modules.first().and_then(|path| path.file_name()).context("no modules in it")?;
    Ok(name.to_string_lossy().into_owned())
}

fn entries(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_owned();
    let status =
        command.stdout(std::io::stderr()).status().with_context(|| format!("starting {}", name.display()))?;
    if !status.success() {
        bail!("{} failed ({status})", name.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_and_their_modules_are_followed() {
        let depends = "linux-image-virtual\n  Depends: linux-image-6.8.0-90-generic\n  Depends: linux-base\n \
                       |Depends: linux-initramfs-tool\n  Depends: linux-modules-6.8.0-90-generic\n  Depends: kmod\n";
        assert_eq!(
            kernel_packages(depends),
            ["linux-image-6.8.0-90-generic", "linux-modules-6.8.0-90-generic"]
        );
    }
}
