//! Whether KVM works here.

use std::{fs, process::Stdio, time::Duration};

use super::{Accelerator, machine, tree};
use crate::{
    Guest, Kernel, cache,
    debian::kernel_package::{self, KernelPackage, Packaged},
    job_directory,
};

/// Whether the guest is hardware-accelerated. Installs QEMU and the kernel if they are needed to find out.
pub(crate) fn is_accelerated(package: &Packaged) -> bool {
    let attempt = || {
        if !package.platform.is_here() || !is_here() {
            return Ok(false);
        }
        Kernel::Qemu(package.clone()).prepare()?;
        works(&kernel_package::ensure(package)?)
    };
    attempt().unwrap_or_else(|error: anyhow::Error| {
        eprintln!("xtask: not known whether KVM works: {error:#}");
        false
    })
}

fn is_here() -> bool {
    fs::File::options().read(true).write(true).open("/dev/kvm").is_ok()
}

/// Whether KVM boots a guest. The device node says little: in nested virtualisation it may be there
/// and hang every guest. So a guest is booted, once for each boot of the host.
pub(super) fn works(kernel: &KernelPackage) -> anyhow::Result<bool> {
    if !is_here() {
        return Ok(false);
    }
    let verdicts = cache::directory("kvm")?;
    let verdict = verdicts.join(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim());
    if let Ok(known) = fs::read_to_string(&verdict) {
        return Ok(known == "works\n");
    }
    eprintln!("xtask: trying whether KVM works");
    let probe = Guest {
        timeout: Duration::from_secs(15),
        memory: 512,
        ..Guest::new(Kernel::Qemu(Packaged::default()))
    };
    let works = probe_quietly(&probe, kernel);
    eprintln!("xtask: KVM {}", if works { "works" } else { "does not work here" });
    fs::write(&verdict, if works { "works\n" } else { "fails\n" })?;
    Ok(works)
}

fn probe_quietly(probe: &Guest, kernel: &KernelPackage) -> bool {
    let attempt = || -> anyhow::Result<bool> {
        let job = job_directory()?;
        tree(probe, kernel, Accelerator::Kvm, &["true".into()])?.write(&job.path().join("initramfs"))?;
        let mut qemu = machine(probe, kernel, Accelerator::Kvm, job.path());
        qemu.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        Ok(fs::read_to_string(job.path().join("exit")).is_ok_and(|code| code.trim() == "0"))
    };
    attempt().unwrap_or(false)
}
