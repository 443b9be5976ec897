//! Which modules the kernel has, read from files: querying the kernel for one would load it.

use std::{collections::BTreeSet, fs, path::Path};

const NF_TABLES: &str = "nf_tables";

/// What is known of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// The module is loaded, or built in.
    Here,
    /// The kernel loads the module on demand.
    Loadable,
    /// The kernel does not have the module.
    Missing,
    /// The files of modules are missing, as in a container without /lib/modules.
    Unknown,
}

/// The modules of the running kernel, by their names with underscores.
#[derive(Clone, Debug, Default)]
pub(crate) struct Modules {
    /// Loaded or built in.
    here: BTreeSet<String>,
    /// `None`: not known.
    loadable: Option<BTreeSet<String>>,
    /// Whether the kernel can load modules at all.
    loads: bool,
}

impl Modules {
    /// Reads what the kernel of this release says below `root`, and what its package has there.
    pub(crate) fn read(root: &Path, release: &str) -> Self {
        let read = |path: &Path| fs::read_to_string(root.join(path)).ok();
        let directory = Path::new("lib/modules").join(release);
        let loaded = read(Path::new("proc/modules"));
        // Once set, it stays until the next boot.
        let disabled = read(Path::new("proc/sys/kernel/modules_disabled"));
        let loads = loaded.is_some() && disabled.is_none_or(|disabled| disabled.trim() != "1");
        let built_in = read(&directory.join("modules.builtin"));
        let packaged = read(&directory.join("modules.dep"));
        let names = |text: &str| text.lines().filter_map(name).collect::<BTreeSet<_>>();
        let mut here = loaded.as_deref().map(names).unwrap_or_default();
        here.extend(built_in.as_deref().map(names).unwrap_or_default());
        let loadable = packaged.as_deref().map(names).filter(|_| built_in.is_some());
        Self { here, loadable: if loads { loadable } else { loadable.map(|_| BTreeSet::new()) }, loads }
    }

    /// What is known of the module of this name.
    pub(super) fn presence(&self, module: &str) -> Presence {
        match &self.loadable {
            _ if self.here.contains(module) => Presence::Here,
            Some(loadable) if loadable.contains(module) => Presence::Loadable,
            Some(_) => Presence::Missing,
            None => Presence::Unknown,
        }
    }

    /// Whether the kernel certainly does not have a module and cannot load it.
    pub(crate) fn lacks(&self, module: &str) -> bool {
        self.presence(module) == Presence::Missing
    }

    /// Whether the kernel can be asked for what a module does without loading it.
    pub(super) fn may_ask(&self, module: &str) -> bool {
        !self.loads || self.presence(module) == Presence::Here
    }

    /// Whether nf_tables answers, without being loaded.
    pub(crate) fn may_ask_nf_tables(&self) -> bool {
        self.may_ask(NF_TABLES)
    }

    /// What nf_tables answers. Nothing is in it where it is not loaded yet; `None` where that is not known.
    pub(crate) fn ask_nf_tables<T: Default, E>(
        &self,
        ask: impl FnOnce() -> Result<T, E>,
    ) -> Option<Result<T, E>> {
        if self.may_ask_nf_tables() {
            Some(ask())
        } else {
            (self.presence(NF_TABLES) != Presence::Unknown).then(|| Ok(T::default()))
        }
    }
}

/// The module that a line of /proc/modules begins with, or one of modules.builtin or modules.dep, which begin
/// with a path.
fn name(line: &str) -> Option<String> {
    let file = line.split([' ', ':']).next()?.rsplit('/').next()?;
    let name = file.split_once(".ko").map_or(file, |(name, _)| name);
    (!name.is_empty()).then(|| name.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules(files: &[(&str, &str)]) -> Modules {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        Modules::read(root.path(), "6.12.0")
    }

    const LOADED: (&str, &str) =
        ("proc/modules", "nf_tables 401408 1 nft_ct, Live 0x0\nnft_ct 20480 1 - Live 0x0\n");
    const BUILT_IN: (&str, &str) = ("lib/modules/6.12.0/modules.builtin", "kernel/drivers/net/dummy.ko\n");
    const PACKAGED: (&str, &str) = (
        "lib/modules/6.12.0/modules.dep",
        "kernel/net/netfilter/ipvs/ip_vs.ko.xz: kernel/lib/libcrc32c.ko.xz\n\
         kernel/net/ipv4/netfilter/nft-reject-ipv4.ko.zst:\nkernel/net/netfilter/nft_ct.ko:\n",
    );

    #[test]
    fn a_module_is_here_if_it_is_loaded_or_built_in_and_loadable_if_the_package_has_it() {
        let modules = modules(&[LOADED, BUILT_IN, PACKAGED]);
        for (module, presence) in [
            ("nf_tables", Presence::Here),
            ("nft_ct", Presence::Here),
            ("dummy", Presence::Here),
            ("ip_vs", Presence::Loadable),
            ("nft_reject_ipv4", Presence::Loadable),
            ("nft_masq", Presence::Missing),
        ] {
            assert_eq!(modules.presence(module), presence, "{module}");
        }
        assert!(modules.may_ask("nf_tables") && !modules.may_ask("ip_vs"));
    }

    #[test]
    fn without_the_package_s_files_what_is_not_loaded_is_not_known() {
        let modules = modules(&[LOADED]);
        assert_eq!(modules.presence("nf_tables"), Presence::Here);
        assert_eq!(modules.presence("ip_vs"), Presence::Unknown);
        assert!(!modules.may_ask("ip_vs"), "it might be loaded");
    }

    #[test]
    fn kernel_that_loads_nothing_may_be_asked_for_anything() {
        let without_modules = modules(&[]);
        assert_eq!(without_modules.presence("ip_vs"), Presence::Unknown);
        assert!(without_modules.may_ask("ip_vs"));
        let disabled = modules(&[LOADED, BUILT_IN, PACKAGED, ("proc/sys/kernel/modules_disabled", "1\n")]);
        assert_eq!(disabled.presence("ip_vs"), Presence::Missing);
        assert_eq!(disabled.presence("dummy"), Presence::Here);
        assert!(disabled.may_ask("ip_vs"));
    }
}
