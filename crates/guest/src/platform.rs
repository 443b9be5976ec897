//! The processors that kube-ipvs is built for, and building it for them on any machine: the program of an image too.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::{
    programs::{self, Program, printed, program, run},
    source::Source,
    workspace,
    workspace::CargoTool,
};

/// A processor's architecture, on Linux. The names are those of container images and of Debian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Platform {
    /// x86-64
    Amd64,
    /// 64-bit ARM
    Arm64,
}

impl Default for Platform {
    fn default() -> Self {
        Self::HERE
    }
}

impl Platform {
    /// Every platform that there is an image for.
    pub const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    /// This machine's.
    pub const HERE: Self = if cfg!(target_arch = "aarch64") { Self::Arm64 } else { Self::Amd64 };

    /// As images have it.
    pub const fn architecture(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Whether it is this machine's.
    pub fn is_here(self) -> bool {
        self == Self::HERE
    }

    /// As Rust has it.
    pub const fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-musl",
            Self::Arm64 => "aarch64-unknown-linux-musl",
        }
    }

    /// Emulates it, or runs it with KVM.
    pub(crate) const fn qemu(self) -> Program {
        match self {
            Self::Amd64 => program("qemu-system-x86_64", "qemu-system-x86"),
            Self::Arm64 => program("qemu-system-aarch64", "qemu-system-arm"),
        }
    }

    /// Compiles the little C there is (in ring), which uses no C library.
    pub(crate) const fn compiler(self) -> Program {
        match self {
            Self::Amd64 => program("x86_64-linux-gnu-gcc", "gcc-x86-64-linux-gnu"),
            Self::Arm64 => program("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
        }
    }

    /// Options that keep it from looking for a C library. ring gives them itself where the compiler is clang
    /// (`build.rs`); for x86-64 it wants the headers of one, which a machine that compiles has.
    const fn compiler_options(self) -> &'static str {
        match self {
            Self::Amd64 => "",
            Self::Arm64 => "-ffreestanding -DRING_CORE_NOSTDLIBINC=1",
        }
    }

    /// From the same package's dependencies.
    const fn archiver(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-linux-gnu-ar",
            Self::Arm64 => "aarch64-linux-gnu-ar",
        }
    }

    /// What the compiler of C says of its version, if it is here.
    pub fn c_compiler(self) -> Option<String> {
        let output = Command::new(self.compiler().name).arg("--version").output().ok()?;
        String::from_utf8(output.stdout).ok()?.lines().next().map(str::to_owned)
    }

    /// Has a cargo build static programs for this platform, whatever machine this is. Gets what is missing for it.
    pub fn prepare(self, cargo: &mut Command) -> anyhow::Result<()> {
        let target = self.target();
        ensure_standard_library(target)?;
        programs::ensure(&[self.compiler()])?;
        let lower = target.replace('-', "_");
        let upper = lower.to_uppercase();
        cargo
            .args(["--target", target])
            .env(format!("CC_{lower}"), self.compiler().name)
            .env(format!("CFLAGS_{lower}"), self.compiler_options())
            .env(format!("AR_{lower}"), self.archiver())
            // Rust brings musl and a linker for every platform.
            .env(format!("CARGO_TARGET_{upper}_LINKER"), "rust-lld");
        Ok(())
    }

    /// Builds a program of the workspace for this platform, as for tests.
    pub fn program(self, package: &str, program: &str) -> anyhow::Result<PathBuf> {
        let mut built = self.executables(&["build", "--package", package, "--bin", program])?;
        let (_, path) = built.pop().with_context(|| format!("cargo built no {program}"))?;
        Ok(path)
    }

    /// The same for what a cargo with these arguments builds, with the names that they have in Cargo.toml.
    pub fn executables(self, arguments: &[&str]) -> anyhow::Result<Vec<(String, PathBuf)>> {
        let mut cargo = workspace::cargo();
        // No debugger reads it, and a guest has all of it in memory.
        cargo.args(arguments).arg("--locked").env("CARGO_PROFILE_DEV_DEBUG", "0");
        self.prepare(&mut cargo)?;
        workspace::executables(&mut cargo)
    }
}

/// Has rustup fetch Rust's standard library for a target, if it is missing.
pub fn ensure_standard_library(target: &str) -> anyhow::Result<()> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", target]);
    let directory = printed(rustc.current_dir(workspace::root()))?;
    if Path::new(directory.trim()).is_dir() {
        return Ok(());
    }
    let Some(rustup) = programs::find("rustup") else {
        bail!("Rust's standard library for {target} is missing, and there is no rustup to fetch it");
    };
    run(Command::new(rustup).args(["target", "add", target]).current_dir(workspace::root()))
}

/// Writes the list of dependencies into the program: what is in an image can be asked of the image.
const AUDITABLE: CargoTool = CargoTool { name: "cargo-auditable", version: "0.7.7", arguments: &[] };
/// Reads it back, as CycloneDX.
const TO_CYCLONEDX: CargoTool = CargoTool { name: "auditable2cdx", version: "0.1.0", arguments: &[] };

/// The daemon's program and package.
const DAEMON: &str = "kube-ipvs";

/// Builds kube-ipvs for a platform; where it is.
pub fn build_program(platform: Platform) -> anyhow::Result<PathBuf> {
    build_released(platform, DAEMON)
}

/// Builds the program of the package of this name for a platform, as a release has it; where it is.
pub fn build_released(platform: Platform, program: &str) -> anyhow::Result<PathBuf> {
    let target = platform.target();
    eprintln!("xtask: building {program} for {target}");
    let root = workspace::root();
    let mut command = Command::new(AUDITABLE.installed()?);
    command
        .current_dir(&root)
        .args(["auditable", "build", "--release", "--locked", "--package", program, "--bin", program])
        .arg("--target-dir")
        // Whatever the environment says: an older program may be there.
        .arg(target_directory())
        .env("CARGO_ENCODED_RUSTFLAGS", rust_flags(&root, &cargo_home()?));
    platform.prepare(&mut command)?;
    if let Some(source) = Source::here() {
        command.env("KUBE_IPVS_REVISION", source.revision());
    }
    run(&mut command).with_context(|| format!("building {program} for {target}"))?;
    Ok(built(platform, program))
}

/// Where kube-ipvs is after that.
pub fn built_program(platform: Platform) -> PathBuf {
    built(platform, DAEMON)
}

fn built(platform: Platform, program: &str) -> PathBuf {
    target_directory().join(platform.target()).join("release").join(program)
}

fn target_directory() -> PathBuf {
    workspace::root().join("target")
}

/// The dependencies that a program was built from, as a CycloneDX document. The same program gives the same one.
pub fn sbom(program: &Path) -> anyhow::Result<Vec<u8>> {
    let read = printed(Command::new(TO_CYCLONEDX.installed()?).arg(program))?;
    let mut document: Value = serde_json::from_str(&read).context("reading what auditable2cdx prints")?;
    // Made up, and when it was asked.
    for (object, field) in [("", "serialNumber"), ("/metadata", "timestamp")] {
        if let Some(Value::Object(object)) = document.pointer_mut(object) {
            object.remove(field);
        }
    }
    Ok(document.to_string().into_bytes())
}

/// Flags that keep paths of this machine out of the program, such as in panic messages, so that it is the
/// same wherever it is built.
fn rust_flags(root: &Path, cargo_home: &Path) -> String {
    [(root, "kube-ipvs"), (cargo_home, "cargo")]
        .map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display()))
        .join("\x1f")
}

/// Where cargo keeps its sources and programs.
pub fn cargo_home() -> anyhow::Result<PathBuf> {
    let set = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    set.or_else(|| Some(std::env::home_dir()?.join(".cargo"))).context("neither CARGO_HOME nor HOME is set")
}
