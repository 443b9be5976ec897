//! QEMU as guest, with the distribution's kernel and an initramfs made for the occasion.
//!
//! Output comes through virtio ports, one each for stdout, stderr, the exit code and the shared
//! directory. The only network is the one forwarded port, if any.

mod cpio;
mod initramfs;

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use initramfs::Tree;

use crate::{
    Forward, Guest, Kernel, TIMED_OUT, cache,
    debian::{
        kernel_package::{self, Dependencies, KernelPackage, Packaged},
        root,
    },
    files, job_directory,
    platform::Platform,
    programs::{self, run as run_program},
    relay::{self, Tap, quoted},
    supervised,
};

const INIT: &str = include_str!("qemu/init.sh");

/// The guest's own address in QEMU's user network.
const ADDRESS: &str = "10.0.2.15/24";

/// How QEMU emulates a machine.
struct Machine {
    /// Its type.
    kind: &'static str,
    /// The console's device.
    console: &'static str,
    /// The processor, where it is emulated.
    emulated: &'static str,
    /// Kernel parameters for that.
    parameters: &'static str,
}

const fn machine_of(platform: Platform) -> Machine {
    match platform {
        Platform::Amd64 => Machine {
            kind: "q35",
            console: "ttyS0",
            // Without CMPXCHG16B: under QEMU 7.2 one in three boots of Linux 6.12 ended with corrupted lists of the
            // slab allocator, and none without that instruction.
            emulated: "max,-cx16",
            // The kernel counts ticks of the timer to see whether its interrupt arrives; if the host is busy too few
            // come, and it panics: "IO-APIC + timer doesn't work!" (`check_timer` in `arch/x86/kernel/apic/io_apic.c`).
            parameters: " no_timer_check",
        },
        Platform::Arm64 => Machine {
            kind: "virt",
            console: "ttyAMA0",
            // Without signed pointers, whose algorithm takes most of the time where it is emulated.
            emulated: "max,pauth=off",
            parameters: "",
        },
    }
}

/// How QEMU runs the guest's instructions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Accelerator {
    Kvm,
    /// Software emulation.
    Tcg,
}

/// Boots the kernel of `package` and runs `command`.
pub(crate) fn run(
    guest: &Guest,
    package: &Packaged,
    command: &[OsString],
    tap: Tap<'_>,
) -> anyhow::Result<u8> {
    let kernel = kernel_package::ensure(package)?;
    let may_accelerate = package.platform.is_here() && works(&kernel)?;
    let accelerator = if may_accelerate { Accelerator::Kvm } else { Accelerator::Tcg };
    boot(guest, &kernel, accelerator, command, tap)
}

fn boot(
    guest: &Guest,
    kernel: &KernelPackage,
    accelerator: Accelerator,
    command: &[OsString],
    tap: Tap<'_>,
) -> anyhow::Result<u8> {
    let job = job_directory()?;
    let initramfs = job.path().join("initramfs");
    let started = Instant::now();
    let size = tree(guest, kernel, accelerator, command)?.write(&initramfs)?;
    eprintln!(
        "xtask: booting Linux {} in QEMU ({}), initramfs {} MiB made in {:.1} s",
        kernel.release,
        match accelerator {
            Accelerator::Kvm => "KVM",
            Accelerator::Tcg => "software emulation",
        },
        size >> 20,
        started.elapsed().as_secs_f32()
    );
    let child = machine(guest, kernel, accelerator, job.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting QEMU")?;
    let ended = relay::until_exit(child, tap)?;

    // Written last by init: a guest without it did not get that far.
    let code = fs::read_to_string(job.path().join("exit")).unwrap_or_default();
    if let Ok(code) = code.trim().parse() {
        if let Some(share) = &guest.share {
            unpack(&job.path().join("share"), share)?;
        }
        return Ok(code);
    }
    let how = format_args!("exit code {ended}");
    Ok(relay::conclude(&job.path().join("console"), guest, ended == TIMED_OUT, how)?)
}

/// The guest's file system.
fn tree(
    guest: &Guest,
    kernel: &KernelPackage,
    accelerator: Accelerator,
    command: &[OsString],
) -> anyhow::Result<Tree> {
    let mut tree = userland(guest.kernel.platform())?;
    for path in &guest.files {
        tree.add(path)?;
    }
    if let Some(share) = &guest.share {
        tree.add(share)?;
    }
    add_modules(&mut tree, kernel)?;

    tree.text("/etc/hosts", 0o644, "127.0.0.1 localhost\n::1 localhost\n")?;
    tree.text("/etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\n")?;
    tree.text("/etc/group", 0o644, "root:x:0:\n")?;
    // The kernel opens it for init before there is a devtmpfs.
    tree.console()?;
    tree.text("/init", 0o755, INIT)?;
    tree.text("/xtask/settings", 0o644, settings(guest)?)?;
    let directory = std::env::current_dir().context("the current directory")?;
    let mut environment = guest.environment();
    if accelerator == Accelerator::Tcg {
        // What testkit's `patience` looks at.
        environment.push(("KUBE_IPVS_EMULATED".into(), "1".into()));
    }
    tree.text("/xtask/command", 0o644, relay::script_for(&environment, &directory, command))?;
    Ok(tree)
}

/// What a system has: the host's programs, or those of the distribution for another processor.
fn userland(platform: Platform) -> anyhow::Result<Tree> {
    let mut tree = Tree::default();
    let programs = programs::GUEST_TOOLS.iter().chain(programs::CROSS_CHECKS);
    if !platform.is_here() {
        let mut packages: BTreeSet<&str> = programs.map(|program| program.package).collect();
        // /bin/sh, which no package depends on.
        packages.insert("dash");
        tree.add_root(&root::unpacked(&Vec::from_iter(packages), platform)?)?;
        // What the packages' scripts would have linked.
        for name in ["iptables", "ip6tables"] {
            for what in ["", "-save", "-restore"] {
                tree.link(&format!("/usr/sbin/{name}{what}"), "xtables-nft-multi");
            }
        }
        tree.link("/usr/bin/nc", "nc.openbsd");
        return Ok(tree);
    }
    for program in programs {
        if let Some(path) = programs::find(program.name) {
            tree.add(&path)?;
        }
    }
    // sh runs init; the others are loaded by name at run time.
    let loaded = [
        "/bin/sh",
        "/etc/protocols",
        "/etc/services",
        "/etc/iproute2",
        "/usr/share/iproute2",
        "/etc/ssl/certs/ca-certificates.crt",
    ];
    let xtables = format!("/usr/lib/{}-linux-gnu/xtables", std::env::consts::ARCH);
    for path in loaded.map(Path::new).into_iter().chain([Path::new(&xtables)]).filter(|path| path.exists()) {
        tree.add(path)?;
    }
    Ok(tree)
}

fn add_modules(tree: &mut Tree, kernel: &KernelPackage) -> anyhow::Result<()> {
    let place = Path::new("/lib/modules").join(&kernel.release);
    let index = files::read(&kernel.modules.join("modules.dep"))?;
    for file in Dependencies::parse(&index).wanted() {
        tree.add_at(&place.join(file), kernel.modules.join(file))?;
    }
    // modprobe's indexes, as depmod writes them; which there are depends on its version.
    for file in files::list(&kernel.modules)? {
        if file.is_file() && files::name(&file).starts_with("modules.") {
            tree.add_at(&place.join(files::name(&file)), file)?;
        }
    }
    Ok(())
}

/// The shell variables init reads.
fn settings(guest: &Guest) -> anyhow::Result<String> {
    let find = |name: &str, elsewhere: &str| {
        let here = || programs::find(name).with_context(|| format!("{name} is missing"));
        let path = if guest.kernel.platform().is_here() { here()? } else { elsewhere.into() };
        anyhow::Ok(quoted(path))
    };
    let busybox = find("busybox", "/usr/bin/busybox")?;
    let modprobe = find("modprobe", "/usr/sbin/modprobe")?;
    let share = quoted(guest.share.as_deref().unwrap_or(Path::new("")));
    let address = if guest.forward.is_some() { ADDRESS } else { "" };
    Ok(format!("busybox={busybox}\nmodprobe={modprobe}\nshare={share}\naddress={address}\n"))
}

/// QEMU's command line.
fn machine(guest: &Guest, kernel: &KernelPackage, accelerator: Accelerator, job: &Path) -> Command {
    let platform = guest.kernel.platform();
    let Machine { kind, console, emulated, parameters } = machine_of(platform);
    let (accelerator, cpu, parameters) = match accelerator {
        Accelerator::Kvm => ("kvm", "host", ""),
        Accelerator::Tcg => ("tcg,thread=multi", emulated, parameters),
    };
    // Without printk's timing and with warnings only: each character on an emulated serial line
    // costs thousands of instructions.
    let boot = format!("console={console} loglevel=4 panic=-1 random.trust_cpu=on rdinit=/init{parameters}");
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get().min(4));
    let file = |name: &str| job.join(name).into_os_string().to_string_lossy().replace(',', ",,");

    let mut qemu = supervised(platform.qemu().name, guest.timeout);
    qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .args(["-machine", kind, "-accel", accelerator, "-cpu", cpu])
        .args(["-smp", &processors.to_string(), "-m", &format!("{}M", guest.memory)])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(job.join("initramfs"))
        .args(["-append", &boot])
        .args(["-serial", &format!("file:{}", file("console"))])
        .args(["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]);
    let ports = [
        ("stdout", "/dev/stdout".to_owned()),
        ("stderr", "/dev/stderr".to_owned()),
        ("share", file("share")),
        ("exit", file("exit")),
    ];
    for (name, path) in ports {
        qemu.args(["-chardev", &format!("file,id={name},path={path}")])
            .args(["-device", &format!("virtserialport,chardev={name},name={name}")]);
    }
    match guest.forward {
        Some(forward) => {
            qemu.args(["-netdev", &user_network(forward), "-device", "virtio-net-pci,netdev=net,romfile="])
        }
        None => qemu.args(["-nic", "none"]),
    };
    qemu
}

/// A network in which one address and port exists and nothing else. QEMU starts `nc` for every
/// connection: its own `guestfwd=…-tcp:` would serve a single one. With -N it ends when the guest hangs up.
fn user_network(forward: Forward) -> String {
    let Forward { guest, host_port } = forward;
    format!("user,id=net,restrict=on,ipv6=off,guestfwd=tcp:{guest}-cmd:nc -N 127.0.0.1 {host_port}")
}

/// Puts back what the guest made of the shared directory.
fn unpack(archive: &Path, share: &Path) -> anyhow::Result<()> {
    run_program(Command::new("tar").arg("-C").arg(share).arg("-xf").arg(archive))
        .with_context(|| format!("the guest's {} did not come back whole", share.display()))
}

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
fn works(kernel: &KernelPackage) -> anyhow::Result<bool> {
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
