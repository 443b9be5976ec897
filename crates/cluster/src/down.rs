//! `cargo xtask cluster down`.

use std::fs;

use anyhow::{Context as _, Result};

use crate::{
    network,
    node::NodeProcess,
    state::{self, named},
};

/// Stops what runs and removes what is there, whatever it was that started it.
pub(crate) fn run() -> Result<()> {
    let directory = state::directory();
    if directory.exists() {
        for entry in fs::read_dir(&directory).with_context(named(&directory))? {
            NodeProcess::in_directory(&entry?.path()).kill()?;
        }
        fs::remove_dir_all(&directory).with_context(named(&directory))?;
    }
    network::delete()
}
