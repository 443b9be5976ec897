//! What is on a node before kubeadm comes: the distribution, Kubernetes' programs and the images of all containers.
//!
//! It is made once and kept in the user's cache. A node's own disk holds what differs from it.

pub(crate) mod images;

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use guest::{
    cache, debian_root, files,
    go::{CLIENTS, CLUSTER, COREDNS, FLANNEL, control_plane},
    programs::run,
    workspace,
};

/// What a node has beside the essential packages: what kubeadm asks for, and what an operator looks at it with.
const PACKAGES: &[&str] = &[
    "bind9-dnsutils",
    "ca-certificates",
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "curl",
    "dbus",
    "ethtool",
    "iproute2",
    "ipset",
    "iptables",
    "iputils-ping",
    "ipvsadm",
    "kmod",
    "less",
    "netcat-openbsd",
    "nftables",
    "openssh-server",
    "procps",
    "runc",
    "socat",
    "sudo",
    "systemd-sysv",
    "tcpdump",
    "udev",
];

/// Its size, of which a fifth is used at first.
const SIZE: u64 = 16 << 30;

/// What systemd starts, and what it leaves: nothing here is updated or cleaned at night.
const STARTED: [&str; 4] = ["containerd", "kubelet", "ssh", "systemd-networkd"];
const NOT_STARTED: [&str; 7] = [
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "fstrim.timer",
    "ipvsadm.service",
    "systemd-networkd-wait-online.service",
];

/// The directory with the disk and the key that opens it, from the cache or made now.
pub(crate) fn ensure() -> Result<PathBuf> {
    cache::made_once("disk", &fingerprint()?, |place| {
        eprintln!("cluster: making the disk that all nodes begin with (once; it takes minutes)");
        let made = place.join("made");
        fs::create_dir(&made).context("making a directory for a disk")?;
        make_key(&made.join("key"))?;
        make(&made, &place.join("root"))?;
        import_images(&made.join("disk"), place)?;
        Ok(made)
    })
}

/// A name for what goes into it, this program's own sources among it.
fn fingerprint() -> Result<String> {
    let built =
        [CLIENTS.built()?, control_plane::ensure()?, CLUSTER.built()?, COREDNS.built()?, FLANNEL.built()?];
    let own_files = files::sha256(&files::tar(&own_files())?)?;
    let mut texts = vec![include_str!("disk.rs"), include_str!("disk/images.rs"), &own_files];
    texts.extend(built.iter().filter_map(|path| path.to_str()));
    Ok(cache::fingerprint(&texts))
}

/// The directory with our own files at their paths on the node. Each node gets a machine-id when it boots first.
fn own_files() -> PathBuf {
    workspace::root().join("crates/cluster/root")
}

fn make_key(key: &Path) -> Result<()> {
    run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", "cluster", "-f"]).arg(key))
}

/// Writes a file system without images.
fn make(made: &Path, root: &Path) -> Result<()> {
    run(Command::new("cp").arg("--archive").arg(debian_root::ensure(PACKAGES)?).arg(root))?;
    // With a dot, what is in the directory is copied and not the directory itself.
    run(Command::new("cp").args(["-r", "--remove-destination"]).arg(own_files().join(".")).arg(root))?;
    let containerd = root.join("etc/containerd/config.toml");
    files::write(&containerd, files::read(&containerd)?.replace("PAUSE", &images::pause()?))?;
    files::copy(&made.join("key.pub"), &root.join("root/.ssh/authorized_keys"))?;
    let (clients, programs) = (CLIENTS.built()?, CLUSTER.built()?);
    for program in [clients.join("kubeadm"), clients.join("kubectl"), programs.join("kubelet")] {
        files::copy(&program, &root.join("usr/bin").join(files::name(&program)))?;
    }
    // Where images bring plugins, and where the distribution has its own.
    fs::create_dir_all(root.join("opt/cni"))
        .and_then(|()| symlink("/usr/lib/cni", root.join("opt/cni/bin")))?;
    let systemctl = |verb: &str, units: &[&str]| {
        let mut systemctl = Command::new("chroot");
        run(systemctl.arg(root).args(["systemctl", "--quiet", verb]).args(units))
    };
    systemctl("enable", &STARTED)?;
    systemctl("mask", &NOT_STARTED)?;
    let disk = made.join("disk");
    fs::File::create(&disk).and_then(|file| file.set_len(SIZE)).context("making a disk")?;
    // A node that loses power loses what was not written, and no more.
    let options = ["-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", "-d"];
    run(Command::new("mkfs.ext4").args(options).arg(root).arg(&disk))
}

/// Boots it once, and has containerd take the images in.
fn import_images(disk: &Path, place: &Path) -> Result<()> {
    let share = place.join("share");
    fs::create_dir(&share).context("making a directory to share")?;
    images::write(&share.join("images.tar"))?;
    fs::write(share.join("import"), IMPORT).context("writing a script")?;
    let console = fs::File::create(share.join("console")).context("creating a console")?;
    let mut linux = Command::new("timeout");
    linux
        .args(["--kill-after=5", IMPORTED_WITHIN])
        .arg(guest::user_mode_linux(None)?)
        .args(["seccomp=on", "mem=4096M", "root=/dev/ubda", "rw", "quiet", "con=null", "con0=null,fd:1", "con1=null"])
        .arg(format!("ubd0={}", disk.display()))
        .args(["init=/usr/lib/systemd/systemd", "systemd.run_success_action=poweroff"])
        .arg("systemd.run_failure_action=poweroff")
        .arg(format!(
            "systemd.run=\"/bin/sh -c 'mount -t hostfs -o hostfs={} none /mnt && /bin/sh /mnt/import >/mnt/log 2>&1'\"",
            share.display()
        ));
    let status = linux.stdin(Stdio::null()).stdout(console.try_clone()?).stderr(console).status();
    status.context("starting User Mode Linux")?;
    let log = fs::read_to_string(share.join("log")).unwrap_or_default();
    let console = fs::read_to_string(share.join("console")).unwrap_or_default();
    ensure!(share.join("done").exists(), "the images could not be imported:\n{log}\n{}", end(&console));
    Ok(())
}

/// In seconds; it takes one or two minutes.
const IMPORTED_WITHIN: &str = "1200";

/// What runs in it. What it leaves of itself is removed, so that each node begins as new.
const IMPORT: &str = "set -e
systemctl start containerd
ctr --namespace k8s.io images import --all-platforms /mnt/images.tar
ctr --namespace k8s.io images list --quiet
systemctl stop containerd
rm -rf /var/log/journal/*
: >/etc/machine-id
sync
touch /mnt/done
";

fn end(console: &str) -> String {
    let lines: Vec<&str> = console.lines().collect();
    lines.get(lines.len().saturating_sub(20)..).unwrap_or_default().join("\n")
}
