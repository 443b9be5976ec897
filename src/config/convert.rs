//! The configuration of a kube-proxy that is replaced, as the file of our own DaemonSet.
//!
//! The inputs (`input`, `distributions`) have kube-proxy's file, its command line, or both. Together they are
//! the configuration in force (`present`), which is written for our mode (`mode`) and for all nodes. What
//! gets lost on the way is named in a note.

mod distributions;
mod input;
mod mode;
mod present;

use std::{ffi::OsString, net::SocketAddr};

use serde::Serialize;
use serde_json::Value;

use super::{KubeProxyConfiguration, Origin, Settings, options::HEALTHZ_PORT};
use present::{Effective, Inputs};

/// Where the manifests have the kubeconfig.
const KUBECONFIG: &str = "/var/lib/kube-ipvs/kubeconfig.conf";

/// A text that may contain a part of kube-proxy's configuration.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Its name for the operator: that of the file.
    pub name: &'a str,
    /// Its content.
    pub text: &'a str,
}

/// A configuration of ours.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Converted {
    /// The fields that differ from the default, as the file has them.
    config: Value,
    /// What was left out or changed, and why, one line each.
    notes: Vec<String>,
}

impl Converted {
    /// The text of the file.
    pub fn to_yaml(&self) -> Result<String, super::Error> {
        let mut text = serde_saphyr::to_string(&self.config).map_err(super::Error::Encode)?;
        // Missing where a list is last.
        if !text.ends_with('\n') {
            text.push('\n');
        }
        Ok(text)
    }

    /// What was left out or changed, and why, one line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// An input that cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input is not YAML or JSON. Names input, line and column.
    #[error("{0}")]
    Malformed(String),
    /// An object in the input does not fit its kind.
    #[error("{name}: {kind}")]
    Object {
        /// The input.
        name: String,
        /// The object's kind.
        kind: &'static str,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The input contains nothing of kube-proxy's configuration.
    #[error(
        "{0}: contains nothing of kube-proxy's configuration: expected its ConfigMap, DaemonSet or Pod, a \
         KubeProxyConfiguration, a machine configuration of Talos, or a config.yaml of k3s or RKE2 with kube-proxy-arg, \
         cluster-cidr or disable-kube-proxy"
    )]
    Nothing(String),
    /// Two inputs have the same part of the configuration.
    #[error("{second}: contains {what}, and so does {first}: give one of them")]
    Twice {
        /// Which part.
        what: &'static str,
        /// One input.
        first: String,
        /// The other input.
        second: String,
    },
    /// The container starts another program, which may be a shell with a script.
    #[error("{name}: the container runs {program:?}: give the flags that kube-proxy gets after --")]
    Program {
        /// The input.
        name: String,
        /// The program.
        program: String,
    },
    /// A command line that kube-proxy would refuse.
    #[error("{name}: {problem}")]
    CommandLine {
        /// The input, or what was given after `--`.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// The command line names a file that is not among the inputs.
    #[error(
        "{name}: the configuration is in --config={path}: give that file too, or the ConfigMap{config_map} that contains it"
    )]
    FileWanted {
        /// The input, or what was given after `--`.
        name: String,
        /// The file.
        path: String,
        /// The ConfigMap's name after a space, if the input has it.
        config_map: String,
    },
    /// A value cannot be used, or the file cannot be read.
    #[error(transparent)]
    Configuration(#[from] super::Error),
}

/// Converts the inputs and the flags, which are the end of kube-proxy's command line.
pub fn convert(inputs: &[Input], flags: &[OsString]) -> Result<Converted, Error> {
    let mut present = Inputs::default();
    for input in inputs {
        input::read(*input, &mut present)?;
    }
    let Effective { flags, mut configuration, mode, file, cluster_cidr, mut notes } =
        present.effective(flags)?;
    let origin = file.as_deref().map_or(Origin::Flags, Origin::File);
    let usual = match &file {
        Some(_) => KubeProxyConfiguration::of_empty_file(),
        None => KubeProxyConfiguration::of_no_flags(),
    };

    let mode = mode::Mode::named(&mode).map_err(|problem| origin.invalid("mode", problem))?;
    notes.extend(mode.becomes_ours(&mut configuration, &usual, origin));
    if configuration.cluster_cidr.is_empty() {
        notes.extend(cluster_cidr.fill(&mut configuration));
    }
    notes.extend(for_all_nodes(&mut configuration, origin));
    notes.extend(without_effect(&mut configuration, &usual, origin));
    notes.extend(default_listen_addresses(&mut configuration, origin));

    let settings = Settings::checked(&flags, configuration, &usual, origin, Vec::new())?;
    notes.extend(settings.warnings);
    notes.extend(settings.healthz_bind_address.and_then(probes));
    Ok(Converted { config: settings.effective.differences(), notes })
}

/// Removes what belongs to one node or to another pod.
fn for_all_nodes(configuration: &mut KubeProxyConfiguration, origin: Origin) -> Vec<String> {
    let mut notes = Vec::new();
    let name = std::mem::take(&mut configuration.hostname_override);
    if !name.is_empty() {
        notes.push(format!(
            "hostnameOverride: {name} is left out: our DaemonSet gives each node its own name; a service needs --hostname-override"
        ));
    }
    let kubeconfig =
        std::mem::replace(&mut configuration.client_connection.kubeconfig, KUBECONFIG.to_owned());
    if !kubeconfig.is_empty() && kubeconfig != KUBECONFIG {
        let option = origin.name("clientConnection.kubeconfig");
        notes.push(format!("{option}: {kubeconfig} becomes {KUBECONFIG}, where the manifests have it"));
    }
    notes
}

/// Removes what has no effect here.
fn without_effect(
    configuration: &mut KubeProxyConfiguration,
    usual: &KubeProxyConfiguration,
    origin: Origin,
) -> Vec<String> {
    let options: Vec<_> = configuration.ignored(usual).collect();
    for option in &options {
        option.place.copy(usual, configuration);
    }
    let fields = options.iter().filter_map(|option| Some((option.field.to_owned(), option.ignored?)));
    let gates = configuration.feature_gates.take_ignored().into_iter();
    let gates = gates.map(|gate| (format!("featureGates.{gate}"), "this gate has no effect"));
    let ignored = fields.chain(gates);
    ignored.map(|(field, why)| format!("{}: no effect here: {why}", origin.name(&field))).collect()
}

/// Serves health and metrics at the default address where they were disabled, which a file cannot do.
fn default_listen_addresses(configuration: &mut KubeProxyConfiguration, origin: Origin) -> Vec<String> {
    let before = configuration.clone();
    configuration.fill_listen_addresses();
    let addresses = [
        ("healthzBindAddress", before.healthz_bind_address, &configuration.healthz_bind_address),
        ("metricsBindAddress", before.metrics_bind_address, &configuration.metrics_bind_address),
    ];
    let disabled = addresses.into_iter().filter(|(_, before, _)| before.is_empty());
    disabled
        .map(|(field, _, address)| {
            format!("{}: a file cannot disable this address: it is {}", origin.name(field), address.0)
        })
        .collect()
}

/// A note where health is not served where the DaemonSet's probes ask.
fn probes(healthz: SocketAddr) -> Option<String> {
    let as_they_ask = healthz.ip().is_unspecified() && healthz.port() == HEALTHZ_PORT;
    (!as_they_ask).then(|| {
        format!(
            "healthzBindAddress: the DaemonSet's probes must ask at {healthz}: those of the chart do, those of \
             manifests/k3s and manifests/rke2 ask at 127.0.0.1:{HEALTHZ_PORT}, the others at the node's address"
        )
    })
}

#[cfg(test)]
mod tests;
