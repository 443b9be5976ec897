//! Keys to throw away, and what they have signed.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use guest::{files, go::COSIGN, programs::run};

/// A pair for each program, without passwords.
pub(super) struct Keys {
    minisign_secret: PathBuf,
    minisign_public: String,
    cosign_secret: PathBuf,
    cosign_public: PathBuf,
}

impl Keys {
    /// Makes the pairs in a directory.
    pub(super) fn make(directory: &Path) -> Result<Self> {
        let (secret, public) = (directory.join("minisign.key"), directory.join("minisign.pub"));
        run(Command::new("minisign").args(["-G", "-W", "-s"]).arg(&secret).arg("-p").arg(&public))?;
        let text = files::read(&public)?;
        let mut generate = cosign()?;
        run(generate.args(["generate-key-pair", "--output-key-prefix=cosign"]).current_dir(directory))?;
        Ok(Self {
            minisign_secret: secret,
            minisign_public: text.lines().last().unwrap_or_default().to_owned(),
            cosign_secret: directory.join("cosign.key"),
            cosign_public: directory.join("cosign.pub"),
        })
    }

    /// `cargo xtask release`, which signs by these keys.
    pub(super) fn with_keys(&self, mut release: Command) -> Result<Command> {
        release.arg("--minisign-key").arg(&self.minisign_secret);
        release.arg("--cosign-key").arg(&self.cosign_secret);
        set_up_for_cosign(&mut release)?;
        Ok(release)
    }

    /// Fails unless minisign takes the checksums, and nothing else, for what was signed.
    pub(super) fn minisign_verifies(&self, release: &Path) -> Result<()> {
        only_what_was_signed(release, |text| {
            let mut verify = Command::new("minisign");
            verify
                .args(["-V", "-q", "-P", &self.minisign_public, "-x", "SHA256SUMS.minisig", "-m"])
                .arg(text);
            Ok(verify)
        })
    }

    /// The same for cosign.
    pub(super) fn cosign_verifies(&self, release: &Path) -> Result<()> {
        only_what_was_signed(release, |text| {
            let mut verify = cosign()?;
            verify.arg("verify-blob").arg("--key").arg(&self.cosign_public);
            verify.args(["--bundle", "SHA256SUMS.cosign.bundle", "--insecure-ignore-tlog"]).arg(text);
            Ok(verify)
        })
    }
}

/// Fails unless a program takes the checksums for what was signed, and not another text.
fn only_what_was_signed(release: &Path, verify: impl Fn(&Path) -> Result<Command>) -> Result<()> {
    run(verify(Path::new("SHA256SUMS"))?.current_dir(release))?;
    let other = release.with_file_name("other");
    files::write(&other, "0  other\n")?;
    let output = verify(&other)?.current_dir(release).output().context("verifying another text")?;
    ensure!(!output.status.success(), "another text is taken for the signed one");
    Ok(())
}

fn cosign() -> Result<Command> {
    let mut cosign = Command::new("cosign");
    set_up_for_cosign(&mut cosign)?;
    Ok(cosign)
}

/// Lets a command find cosign, which asks for no password then.
fn set_up_for_cosign(command: &mut Command) -> Result<()> {
    let others = env::var_os("PATH").unwrap_or_default();
    let path = [COSIGN.built()?].into_iter().chain(env::split_paths(&others));
    command.env("PATH", env::join_paths(path)?).env("COSIGN_PASSWORD", "");
    Ok(())
}
