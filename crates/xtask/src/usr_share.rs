//! What is below `/usr/share` beside a program: manual pages, completions for shells, the licences; and
//! `cargo xtask man`.

use std::{
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, ensure};
use guest::{
    files,
    programs::{printed, run},
    workspace,
};
use tempfile::TempDir;

use crate::notices;

/// Where a shell looks for the completions of a program, below `/usr/share`.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/kube-ipvs"),
    ("zsh", "zsh/site-functions/_kube-ipvs"),
    ("fish", "fish/vendor_completions.d/kube-ipvs.fish"),
];

/// A directory with all of them, as they are below `/usr/share`.
pub(crate) fn make() -> Result<TempDir> {
    let root = tempfile::tempdir().context("making a directory for documents")?;
    manual_pages(&root.path().join("man/man1"))?;
    let program = workspace::daemon()?;
    for (shell, place) in COMPLETIONS {
        let completions = printed(Command::new(&program).args(["completion", shell]))?;
        write(&root.path().join(place), completions.as_bytes())?;
    }
    let licence = workspace::root().join("LICENSE");
    files::copy(&licence, &root.path().join("doc/kube-ipvs/copyright"))?;
    write(&root.path().join("doc/kube-ipvs/third-party-notices"), notices::text()?.as_bytes())?;
    // Readable for all users, whatever the umask is here; a temporary directory is closed to others.
    run(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(root.path()))?;
    Ok(root)
}

fn manual_pages(directory: &Path) -> Result<()> {
    let plain = tempfile::tempdir().context("making a directory for manual pages")?;
    write_man(plain.path())?;
    for page in files::list(plain.path())? {
        let text = files::gzip(&files::bytes(&page)?)?;
        write(&directory.join(format!("{}.gz", files::name(&page))), &text)?;
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    ensure!(!bytes.is_empty(), "{} would be empty", path.display());
    files::write(path, bytes)
}

/// Writes the manual pages to `target/man`.
pub(crate) fn man() -> Result<ExitCode> {
    let directory = workspace::root().join("target/man");
    write_man(&directory)?;
    println!("man {}", directory.join("kube-ipvs.1").display());
    Ok(ExitCode::SUCCESS)
}

/// Writes the manual pages to a directory, which is made if there is none.
fn write_man(directory: &Path) -> Result<()> {
    let mut make = workspace::cargo();
    make.args(["run", "--quiet", "--package", "kube-ipvs", "--example", "man", "--"]).arg(directory);
    run(&mut make).context("making the manual pages")
}
