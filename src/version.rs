//! Which kube-ipvs this is.

use std::env::consts::{ARCH, OS};

use serde::{Deserialize, Serialize};

/// The version, as Cargo.toml has it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The revision of the sources, if what built the program has set the variable: `cargo xtask image` does.
const REVISION: Option<&str> = option_env!("KUBE_IPVS_REVISION");

/// A build of kube-ipvs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// Its version.
    pub version: String,
    /// The revision of its sources in git, if it is known.
    pub revision: Option<String>,
    /// The platform that it is for, as Go calls it: `linux/amd64`.
    pub platform: String,
}

impl Build {
    /// This program's.
    pub fn this() -> Self {
        let revision = REVISION.filter(|revision| !revision.is_empty());
        Self { version: VERSION.to_owned(), revision: revision.map(ToOwned::to_owned), platform: platform() }
    }
}

fn platform() -> String {
    let architecture = match ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{OS}/{architecture}")
}
