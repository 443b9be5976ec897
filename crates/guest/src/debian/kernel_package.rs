//! The distribution's own kernel, downloaded and unpacked but not installed, and which of its modules go into an
//! initramfs: those of networking, a few drivers, and all they depend on.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

use super::apt::{Apt, Suite};
use crate::{
    cache, files,
    platform::Platform,
    programs::{self, run},
};

/// Which kernel package.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packaged {
    /// One of this suite; `None`: of those the machine gets its packages from.
    pub suite: Option<Suite>,
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

/// The kernel of the first candidate that has what is needed: from the cache, or downloaded now.
///
/// A package that was unpacked once is not looked up again, so that later runs need no network and
/// compare with earlier ones. Removing its directory from the cache fetches the newest.
pub(crate) fn ensure(wanted: &Packaged) -> anyhow::Result<KernelPackage> {
    let cache = cache::directory("kernel")?;
    let _lock = cache::locked(&cache)?;
    let names = candidates(wanted.platform);
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
    bail!("no kernel package could be downloaded and unpacked: {}", failures.join("; "))
}

/// Downloads and unpacks what the package `name` stands for. Returns the name of the directory in
/// the cache, which is that of the package with its version.
fn download(apt: &Apt, name: &str, kept: &Path) -> anyhow::Result<PathBuf> {
    // Unpacked under another name first: what has its final name is whole.
    let fresh = cache::workplace(kept)?;
    let packages = apt.download(name, fresh.path())?;
    let archives = files::list(fresh.path())?;
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
        .filter_map(|directory| files::list(directory).ok())
        .flatten()
        .find(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"vmlinu")))
        .context("no kernel image in it")?;
    let modules_dep = files::read(&modules.join("modules.dep"))?;
    let builtin = files::read(&modules.join("modules.builtin"))?.replace(".ko", ".ko:");
    let dependencies = Dependencies::parse(&modules_dep);
    let builtin = Dependencies::parse(&builtin);
    match NEEDED.iter().find(|module| !dependencies.has(module) && !builtin.has(module)) {
        None => Ok(KernelPackage { image, modules, release }),
        Some(module) => bail!("it lacks the module {module}"),
    }
}

/// The one directory under `lib/modules`.
fn release(root: &Path) -> anyhow::Result<String> {
    let modules = files::list(&root.join("lib/modules"))?;
    let name = modules.first().and_then(|path| path.file_name()).context("no modules in it")?;
    Ok(name.to_string_lossy().into_owned())
}

/// Directories taken whole: whatever kube-ipvs or a test asks the kernel for by netlink is loaded
/// from there, without anyone having foreseen its name.
const DIRECTORIES: [&str; 8] = [
    "kernel/net/802/",
    "kernel/net/bridge/",
    "kernel/net/ipv4/",
    "kernel/net/ipv6/",
    "kernel/net/llc/",
    "kernel/net/netfilter/",
    "kernel/net/sched/",
    "kernel/net/sctp/",
];

/// Single modules: the devices tests make, those QEMU provides, and a checksum that modules ask for
/// by name rather than by symbol.
const MODULES: [&str; 12] = [
    "crc32c_generic",
    "dummy",
    "ifb",
    "ipvlan",
    "macvlan",
    "overlay",
    "veth",
    "virtio_console",
    "virtio_net",
    "virtio_pci",
    "virtio_rng",
    "vxlan",
];

/// The contents of a `modules.dep`: each module's file and the files it depends on, already
/// transitive, relative to the directory it is in.
pub(crate) struct Dependencies<'a>(BTreeMap<&'a str, Vec<&'a str>>);

impl<'a> Dependencies<'a> {
    /// Parses lines like `kernel/net/llc/llc.ko: kernel/x.ko kernel/y.ko`. A line of another form
    /// is skipped.
    pub(crate) fn parse(modules_dep: &'a str) -> Self {
        let lines = modules_dep.lines().filter_map(|line| line.split_once(':'));
        Self(lines.map(|(module, needs)| (module, needs.split_whitespace().collect())).collect())
    }

    /// Whether the kernel has the module.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.keys().any(|path| module_name(path) == name)
    }

    /// The files of the modules a guest needs, with their dependencies.
    pub(crate) fn wanted(&self) -> BTreeSet<&'a str> {
        let is_wanted = |path: &str| {
            DIRECTORIES.iter().any(|directory| path.starts_with(directory))
                || MODULES.contains(&module_name(path).as_str())
        };
        self.0
            .iter()
            .filter(|(path, _)| is_wanted(path))
            .flat_map(|(path, needs)| std::iter::once(*path).chain(needs.iter().copied()))
            .collect()
    }
}

/// `ip_vs` for `kernel/net/netfilter/ipvs/ip_vs.ko.xz`. File names may have dashes where the
/// module's name has underscores.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULES_DEP: &str = "\
kernel/lib/libcrc32c.ko:
kernel/net/netfilter/nf_conntrack.ko.xz: kernel/lib/libcrc32c.ko
kernel/net/netfilter/ipvs/ip_vs.ko.xz: kernel/net/netfilter/nf_conntrack.ko.xz kernel/lib/libcrc32c.ko
kernel/drivers/net/dummy.ko:
kernel/drivers/net/virtio_net.ko: kernel/net/core/failover.ko
kernel/net/core/failover.ko:
kernel/drivers/usb/storage/usb-storage.ko: kernel/drivers/scsi/scsi_mod.ko
kernel/drivers/scsi/scsi_mod.ko:
";

    #[test]
    fn wanted_modules_bring_what_they_depend_on_and_nothing_else() {
        let wanted: Vec<&str> = Dependencies::parse(MODULES_DEP).wanted().into_iter().collect();
        assert_eq!(
            wanted,
            [
                "kernel/drivers/net/dummy.ko",
                "kernel/drivers/net/virtio_net.ko",
                "kernel/lib/libcrc32c.ko",
                "kernel/net/core/failover.ko",
                "kernel/net/netfilter/ipvs/ip_vs.ko.xz",
                "kernel/net/netfilter/nf_conntrack.ko.xz",
            ]
        );
    }

    #[test]
    fn a_module_is_found_by_its_name_compressed_or_not_dash_or_underscore() {
        let dependencies = Dependencies::parse(MODULES_DEP);
        assert!(dependencies.has("ip_vs"));
        assert!(dependencies.has("usb_storage"));
        assert!(!dependencies.has("ip_v"));
    }
}
