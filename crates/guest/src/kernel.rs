//! Which kernel to run on: the user's choice, or the best that this machine has.

use std::{
    fmt,
    path::{Path, PathBuf},
    process::Command,
    str::FromStr,
};

use anyhow::bail;

use crate::{
    Guest,
    debian::{
        apt::Suite,
        kernel_package::{self, Packaged},
    },
    platform::Platform,
    programs::{self, Program, succeeds},
    qemu, uml,
};

/// A kernel with IPVS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// The one that runs this process.
    Host,
    /// One of the distribution's, in QEMU.
    Qemu(Packaged),
    /// A User Mode Linux binary with IPVS, dummy and the rest built in: this one, or one built from the
    /// distribution's kernel source.
    Uml(Option<PathBuf>),
}

impl Kernel {
    /// The processor that it runs on.
    pub fn platform(&self) -> Platform {
        match self {
            Self::Host | Self::Uml(_) => Platform::HERE,
            Self::Qemu(package) => package.platform,
        }
    }

    /// Installs what running on this kernel needs: programs, and the kernel itself. [`Guest::run`]
    /// does this too; calling it first distinguishes "cannot run here" from "failed".
    pub fn prepare(&self) -> anyhow::Result<()> {
        if *self == Self::Host && !programs::is_root() {
            bail!("--kernel host needs root: use sudo, or --kernel qemu");
        }
        programs::ensure(&self.programs()?)?;
        match self {
            Self::Host => Ok(()),
            Self::Qemu(package) => kernel_package::ensure(package).map(drop),
            Self::Uml(linux) => uml::binary(linux.as_deref()).map(drop),
        }
    }

    /// Every program that running on this kernel takes. One list, so that one command installs them.
    pub(crate) fn programs(&self) -> anyhow::Result<Vec<Program>> {
        let mut programs = programs::CROSS_CHECKS.to_vec();
        match self {
            Self::Host => {}
            Self::Qemu(package) => {
                programs.extend(programs::GUEST_TOOLS);
                programs.push(package.platform.qemu());
            }
            Self::Uml(linux) => {
                programs.extend(programs::GUEST_TOOLS);
                if linux.is_none() {
                    programs.extend(uml::tools()?);
                }
            }
        }
        Ok(programs)
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("the host's kernel"),
            Self::Qemu(Packaged { suite, platform }) => {
                f.write_str("the distribution's kernel")?;
                if !platform.is_here() {
                    write!(f, " for {}", platform.architecture())?;
                }
                match suite {
                    Some(suite) => write!(f, " ({suite}) in QEMU"),
                    None => f.write_str(" in QEMU"),
                }
            }
            Self::Uml(Some(linux)) => write!(f, "User Mode Linux ({})", linux.display()),
            Self::Uml(None) => f.write_str("User Mode Linux, built from the distribution's newest source"),
        }
    }
}

/// The options that choose a kernel.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct KernelArgs {
    /// The test kernel: `host`; `qemu`, or `qemu:SUITE` for one of another suite of the distribution, such
    /// as bullseye, bookworm-backports or `newest`; `uml`, which is built when it is first needed, or
    /// `uml:PATH` [default: host if it has IPVS and this is root, else qemu; for tests where there is no KVM,
    /// uml]
    #[arg(long, env = "KUBE_IPVS_KERNEL")]
    kernel: Option<Kernel>,
}

impl FromStr for Kernel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let packaged = |suite| Self::Qemu(Packaged { suite, ..Packaged::default() });
        match text.split_once(':') {
            None if text == "host" => Ok(Self::Host),
            None if text == "qemu" => Ok(packaged(None)),
            None if text == "uml" => Ok(Self::Uml(None)),
            Some(("qemu", suite)) => suite.parse().map(|suite| packaged(Some(suite))),
            Some(("uml", path)) if !path.is_empty() => Ok(Self::Uml(Some(path.into()))),
            _ => Err("expected host, qemu, qemu:SUITE, uml or uml:PATH".to_owned()),
        }
    }
}

impl KernelArgs {
    /// The requested kernel, or the default for a few commands.
    pub fn choose(&self) -> Kernel {
        self.choose_for(Platform::HERE)
    }

    /// The same for a processor: another than this machine's is emulated by QEMU, with a kernel of the distribution's
    /// newest suite unless another one is named.
    pub fn choose_for(&self, platform: Platform) -> Kernel {
        let packaged = |suite| Kernel::Qemu(Packaged { suite, platform });
        match &self.kernel {
            Some(Kernel::Qemu(Packaged { suite: Some(suite), .. })) => packaged(Some(suite.clone())),
            // Nothing else runs programs of another processor.
            _ if !platform.is_here() => packaged(Some(Suite::Newest)),
            Some(kernel) => kernel.clone(),
            None if host_has_ipvs() => Kernel::Host,
            None => packaged(None),
        }
    }

    /// The requested kernel, or the default for many tests: in emulation they take ten times as long, which
    /// is longer than building a kernel that needs no emulation.
    pub fn choose_for_tests(&self) -> Kernel {
        let preferred = self.prefer_for_tests();
        let chosen = self.choose();
        if preferred == chosen {
            return chosen;
        }
        match boots(&preferred) {
            Ok(()) => preferred,
            Err(error) => {
                eprintln!("xtask: emulating, because User Mode Linux does not run here: {error:#}");
                chosen
            }
        }
    }

    /// The same, without having tried whether it boots.
    pub fn prefer_for_tests(&self) -> Kernel {
        let chosen = self.choose();
        let emulates = matches!(&chosen, Kernel::Qemu(package) if !qemu::is_accelerated(package));
        if self.kernel.is_none() && emulates && cfg!(target_arch = "x86_64") {
            Kernel::Uml(None)
        } else {
            chosen
        }
    }
}

/// Tries a kernel.
fn boots(kernel: &Kernel) -> anyhow::Result<()> {
    match Guest::new(kernel.clone()).run(&["true".into()])? {
        0 => Ok(()),
        code => bail!("`true` ended with code {code}"),
    }
}

/// Whether tests can run on the host's kernel: as root, with `ip_vs` and `dummy`. Loads neither on
/// behalf of a run that may end up in QEMU.
fn host_has_ipvs() -> bool {
    let ip_vs = || {
        Path::new("/proc/net/ip_vs").exists()
            || succeeds(Command::new("modprobe").args(["-n", "-q", "ip_vs"]))
    };
    // In a namespace of its own, which also shows that making one is allowed.
    let add = ["--net", "ip", "link", "add", "name", "kube-ipvs0", "type", "dummy"];
    let dummy = || succeeds(Command::new("unshare").args(add));
    programs::is_root() && ip_vs() && dummy()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_names_are_host_qemu_uml_and_those_with_a_suite_or_path() {
        let packaged = |suite| Kernel::Qemu(Packaged { suite, ..Packaged::default() });
        assert_eq!("host".parse(), Ok(Kernel::Host));
        assert_eq!("qemu".parse(), Ok(packaged(None)));
        assert_eq!("qemu:newest".parse(), Ok(packaged(Some(Suite::Newest))));
        assert_eq!("uml:/opt/linux".parse(), Ok(Kernel::Uml(Some("/opt/linux".into()))));
        assert_eq!("uml".parse(), Ok(Kernel::Uml(None)));
        for wrong in ["", "uml:", "qemu:", "kvm", "host:1"] {
            assert!(wrong.parse::<Kernel>().is_err(), "{wrong}");
        }
    }
}
