//! `kube-ipvs completion`.

use std::process::ExitCode;

use clap_complete::aot::{Generator, Shell};

use super::{command, output::print_script};

/// For which shell.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct Completion {
    /// The shell. To load it: `source <(kube-ipvs completion bash)`, `source <(kube-ipvs completion zsh)` below
    /// `compinit`, `kube-ipvs completion fish | source`
    shell: Shell,
}

/// Prints the script.
pub(super) fn completion(asked: &Completion) -> anyhow::Result<ExitCode> {
    let mut command = command();
    command.set_bin_name("kube-ipvs");
    command.build();
    let mut script = Vec::new();
    asked.shell.try_generate(&command, &mut script)?;
    // clap_complete up to 4.6.11 spells the hyphen in bash's script in two ways, and no command is completed then:
    // https://github.com/clap-rs/clap/issues/6421. The other scripts have neither.
    print_script(&String::from_utf8(script)?.replace("kube__subcmd__ipvs", "kube__ipvs"))?;
    Ok(ExitCode::SUCCESS)
}
