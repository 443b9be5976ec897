//! The configuration of a kube-proxy that is replaced, as the file of our own DaemonSet.
//!
//! What the operator has (`input`) shows kube-proxy's file, its command line, or both. Together they are the configuration in
//! force (`present`), which is written for our mode (`mode`) and for all nodes. What gets lost on the way is named in a note.

mod command_line;
mod error;
mod input;
mod mode;
mod present;

use std::{ffi::OsString, net::SocketAddr};

use serde::Serialize;
use serde_json::Value;

use super::{
    KubeProxyConfiguration, Settings,
    file::{
        defaults::{self, HEALTHZ_PORT},
        ignored_fields,
    },
    settings::{Origin, spoken},
};
pub use error::Error;
use present::{InForce, Present};

/// Where the manifests have the kubeconfig.
const KUBECONFIG: &str = "/var/lib/kube-ipvs/kubeconfig.conf";

/// A text that may show a part of kube-proxy's configuration.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// What the operator calls it: the name of the file.
    pub name: &'a str,
    /// What is in it.
    pub text: &'a str,
}

/// A configuration of ours.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Converted {
    /// The fields that differ from the default, as the file has them.
    config: Value,
    /// What is not in it or not as it was, and why, one line each.
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

    /// What is not in it or not as it was, and why, one line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// Converts what the inputs and the flags, which stand for the end of kube-proxy's command line, show.
pub fn convert(inputs: &[Input], flags: &[OsString]) -> Result<Converted, Error> {
    let mut present = Present::default();
    for input in inputs {
        input::read(*input, &mut present)?;
    }
    let InForce { flags, mut configuration, mode, file, cluster_cidr, mut notes } =
        present.in_force(flags)?;
    let origin = file.as_deref().map_or(Origin::Flags, Origin::File);
    let usual = if file.is_some() { defaults::filled() } else { defaults::of_flags() };

    let mode = mode::Mode::named(&mode).map_err(|problem| origin.invalid("mode", problem))?;
    notes.extend(mode.becomes_ours(&mut configuration, &usual, origin));
    if configuration.cluster_cidr.is_empty() {
        notes.extend(cluster_cidr.fill(&mut configuration));
    }
    notes.extend(for_all_nodes(&mut configuration, origin));
    notes.extend(without_effect(&mut configuration, &usual, origin));
    notes.extend(somewhere(&mut configuration, origin));

    let settings = Settings::checked(&flags, configuration, &usual, origin, Vec::new())?;
    notes.extend(settings.warnings);
    notes.extend(settings.healthz_bind_address.and_then(probes));
    Ok(Converted { config: settings.effective.differences(), notes })
}

/// Takes out what is of one node or of another pod.
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
        let option = spoken(origin, "clientConnection.kubeconfig");
        notes.push(format!("{option}: {kubeconfig} becomes {KUBECONFIG}, where the manifests have it"));
    }
    notes
}

/// Takes out what has no effect here.
fn without_effect(
    configuration: &mut KubeProxyConfiguration,
    usual: &KubeProxyConfiguration,
    origin: Origin,
) -> Vec<String> {
    let fields = ignored_fields::among(configuration, usual).into_iter();
    let fields = fields.map(|field| {
        let why = ignored_fields::why(&field).unwrap_or_default();
        format!("{}: no effect here: {why}", spoken(origin, &field))
    });
    let gates = configuration.feature_gates.idle().map(|gate| {
        let option = spoken(origin, &format!("featureGates.{gate}"));
        format!("{option}: no effect here: this gate switches nothing")
    });
    let notes = fields.chain(gates).collect();
    *configuration = ignored_fields::heeded(configuration, usual);
    configuration.feature_gates = configuration.feature_gates.heeded();
    notes
}

/// Has health and metrics served somewhere: no file can say that they are not.
fn somewhere(configuration: &mut KubeProxyConfiguration, origin: Origin) -> Vec<String> {
    let before = configuration.clone();
    defaults::fill_addresses(configuration);
    let addresses = [
        ("healthzBindAddress", before.healthz_bind_address, &configuration.healthz_bind_address),
        ("metricsBindAddress", before.metrics_bind_address, &configuration.metrics_bind_address),
    ];
    let switched_off = addresses.into_iter().filter(|(_, before, _)| before.is_empty());
    switched_off
        .map(|(field, _, address)| {
            let option = spoken(origin, field);
            format!("{option}: a file cannot say that nothing listens: it is {address}")
        })
        .collect()
}

/// What to do with the probes where health is not served as they ask.
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
