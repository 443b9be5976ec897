//! `kube-ipvs config`.

use std::{
    ffi::OsString,
    io, iter,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::Subcommand;

use super::{
    Format,
    output::{self, print_as, say},
    parse,
};
use crate::{
    config::convert::{self, Input},
    files,
};

/// A command about configurations.
#[derive(Debug, Subcommand)]
pub(super) enum Config {
    /// Print a configuration file for our DaemonSet that has the same effect as kube-proxy's configuration
    Convert(Convert),
}

/// Runs the command.
pub(super) fn config(asked: &Config) -> anyhow::Result<ExitCode> {
    match asked {
        Config::Convert(asked) => convert(asked),
    }
}

/// The configuration of kube-proxy.
#[derive(clap::Args, Debug)]
pub(super) struct Convert {
    /// kube-proxy's ConfigMap, DaemonSet or Pod as printed by kubectl, or its static pod's file; a
    /// KubeProxyConfiguration; a machine configuration of Talos; the config.yaml of k3s or RKE2. Without a
    /// file, or for `-`, standard input is read
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    output: output::Args,
    /// Further flags of kube-proxy, or all of them, as in `-- --proxy-mode=ipvs --ipvs-strict-arp`
    #[arg(last = true, value_name = "FLAGS")]
    flags: Vec<OsString>,
}

/// Prints our configuration file, and on standard error what was left out or changed.
fn convert(asked: &Convert) -> anyhow::Result<ExitCode> {
    let Convert { files, output, flags } = asked;
    parse(iter::once("kube-ipvs".into()).chain(flags.iter().cloned()))?;
    let texts = read(files, flags.is_empty())?;
    let inputs: Vec<_> = texts.iter().map(|(name, text)| Input { name, text }).collect();
    let converted = match convert::convert(&inputs, flags) {
        // Nothing but the command line is wrong then.
        Err(convert::Error::Configuration(error)) if inputs.is_empty() => Err(error)?,
        converted => converted?,
    };
    let text = converted.to_yaml()?;
    if output.format == Format::Text {
        converted.notes().iter().for_each(|note| say(format_args!("kube-ipvs: {note}")));
    }
    print_as(output.format, &converted, || text)?;
    Ok(ExitCode::SUCCESS)
}

/// The inputs, with what to call them.
fn read(files: &[PathBuf], or_standard_input: bool) -> anyhow::Result<Vec<(String, String)>> {
    let standard_input = [PathBuf::from("-")];
    let files = if files.is_empty() && or_standard_input { &standard_input } else { files };
    files.iter().map(|file| read_one(file)).collect()
}

fn read_one(file: &Path) -> anyhow::Result<(String, String)> {
    let (name, text) = if file == Path::new("-") {
        ("standard input".to_owned(), io::read_to_string(io::stdin()))
    } else {
        (file.display().to_string(), files::read_to_string(file))
    };
    let text = text.with_context(|| format!("cannot read {name}"))?;
    Ok((name, text))
}

#[cfg(test)]
mod tests {
    use super::{super::documented_tests::assert_documented, *};

    #[test]
    fn its_json_is_documented() {
        let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n\
                    clusterCIDR: 10.244.0.0/16\nipvs: {strictARP: true}\nportRange: 1-2\n";
        let converted = convert::convert(&[Input { name: "config.conf", text }], &[]).unwrap();
        assert_documented("config convert", &converted);
    }
}
