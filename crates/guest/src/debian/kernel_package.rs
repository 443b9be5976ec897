//! The distribution's own kernel, downloaded and unpacked but not installed.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

use super::{apt::Apt, modules::Dependencies, suite::Suite};
use crate::{
    cache,
    platform::Platform,
    programs::{self, run},
};

/// Which kernel package.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packaged {
    /// One of this suite; `None`: of those the machine gets its packages from.
    pub suite: Option<Suite>,
    /// The package of this name; `None`: the one made for virtual machines.
    pub name: Option<String>,
    /// The processor that it is for. If it is not this machine's, there is a suite.
    pub platform: Platform,
}

/// An unpacked kernel package.
pub(crate) struct KernelPackage {
    /// The bootable image.
    pub(crate) image: PathBuf,
    /// The host's directory with the modules and modprobe's indexes.
    pub(crate) modules: PathBuf,
    /// What `uname -r` says under this kernel.
    pub(crate) release: String,
}

/// The packages that lead to a kernel for virtual machines, best first: Debian's, then Ubuntu's. Names that
/// the distribution does not have are skipped.
fn candidates(platform: Platform) -> [String; 4] {
    let architecture = platform.architecture();
    [
        format!("linux-image-cloud-{architecture}"),
        format!("linux-image-{architecture}"),
        "linux-image-virtual".to_owned(),
        "linux-image-generic".to_owned(),
    ]
}

/// The modules that a test kernel must have.
const NEEDED: [&str; 6] = ["ip_vs", "dummy", "nf_tables", "veth", "bridge", "br_netfilter"];

/// The kernel of the package wanted, or of the first candidate that has what is needed: from the
/// cache, or downloaded now.
///
/// A package that was unpacked once is not looked up again, so that later runs need no network and
/// compare with earlier ones. Removing its directory from the cache fetches the newest.
pub(crate) fn ensure(wanted: &Packaged) -> anyhow::Result<KernelPackage> {
    let cache = cache::directory("kernel")?;
    let lock = fs::File::create(cache.join("lock")).context("creating the kernel cache's lock file")?;
    lock.lock().context("waiting for another xtask's download of a kernel")?;
    let any = || candidates(wanted.platform).to_vec();
    let names = wanted.name.clone().map_or_else(any, |name| vec![name]);
    let foreign = if wanted.platform.is_here() { "" } else { wanted.platform.architecture() };
    let link = |name: &str| match &wanted.suite {
        None => cache.join(name),
        Some(suite) => cache.join([name, "@", &suite.to_string(), foreign].concat()),
    };
    let mut known = names.iter().map(|name| link(name)).filter(|link| link.exists());
    if let Some(kernel) = known.find_map(|link| open(&link).ok()) {
        return Ok(kernel);
    }

    let apt = Apt::new(wanted.suite.as_ref(), wanted.platform)?;
    let mut failures = Vec::new();
    for name in &names {
        let package = download(&apt, name, &cache).and_then(|place| Ok((open(&cache.join(&place))?, place)));
        match package {
            Ok((kernel, place)) => {
                let link = link(name);
                // It may be there and lead to a directory that was removed.
                drop(fs::remove_file(&link));
                std::os::unix::fs::symlink(&place, &link)
                    .with_context(|| format!("creating {}", link.display()))?;
                return Ok(kernel);
            }
            Err(error) => failures.push(format!("{name}: {error:#}")),
        }
    }
    bail!("no kernel package could be had: {}", failures.join("; "))
}

/// Downloads and unpacks what the package `name` stands for. Returns the name of the directory in
/// the cache, which is that of the package with its version.
fn download(apt: &Apt, name: &str, kept: &Path) -> anyhow::Result<PathBuf> {
    // Unpacked under another name first: what has its final name is whole.
    let fresh = cache::workplace(kept)?;
    let packages = apt.download(name, fresh.path())?;
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
    let place = kept.join(stem);
    if !place.exists() {
        fs::rename(fresh.path(), &place).with_context(|| format!("creating {}", place.display()))?;
    }
    Ok(PathBuf::from(stem))
}

/// The unpacked package at `root`, if it is whole and has the modules needed.
fn open(root: &Path) -> anyhow::Result<KernelPackage> {
    let release = release(root)?;
    let modules = root.join("lib/modules").join(&release);
    // Some packages bring it beside the modules and have it copied to /boot when they are installed.
    let image = [root.join("boot"), modules.clone()]
        .iter()
        .filter_map(|directory| entries(directory).ok())
        .flatten()
        .find(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"vmlinu")))
        .context("no kernel image in it")?;
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

/// What is in a directory.
pub(crate) fn entries(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    entries.map(|entry| Ok(entry?.path())).collect()
}
