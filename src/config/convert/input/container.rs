//! A DaemonSet, or a Pod, with a container in which kube-proxy runs: from the cluster, or a static pod's file.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::{
    super::{
        Error,
        present::{CommandLine, Present},
    },
    object,
};

/// The name of the container and of the program.
const KUBE_PROXY: &str = "kube-proxy";

/// As much of a DaemonSet as is read.
#[derive(Deserialize)]
struct DaemonSet {
    spec: DaemonSetSpec,
}

/// What a DaemonSet runs.
#[derive(Deserialize)]
struct DaemonSetSpec {
    template: Pod,
}

/// As much of a Pod as is read.
#[derive(Deserialize)]
struct Pod {
    spec: PodSpec,
}

/// What a Pod runs.
#[derive(Deserialize)]
struct PodSpec {
    containers: Vec<Container>,
    volumes: Option<Vec<Volume>>,
}

/// What a container runs.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    name: String,
    command: Option<Vec<String>>,
    args: Option<Vec<String>>,
    volume_mounts: Option<Vec<VolumeMount>>,
}

/// Where a container has a volume.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeMount {
    name: String,
    mount_path: PathBuf,
}

/// A volume.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    name: String,
    config_map: Option<ConfigMapVolume>,
}

/// The ConfigMap of a volume.
#[derive(Deserialize)]
struct ConfigMapVolume {
    name: String,
}

/// Reads the command line in a DaemonSet.
pub(super) fn read_daemon_set(name: &str, value: Value, present: &mut Present) -> Result<bool, Error> {
    let DaemonSet { spec } = object(name, "DaemonSet", value)?;
    read(name, spec.template.spec, present)
}

/// Reads the command line in a Pod.
pub(super) fn read_pod(name: &str, value: Value, present: &mut Present) -> Result<bool, Error> {
    let Pod { spec } = object(name, "Pod", value)?;
    read(name, spec, present)
}

fn read(name: &str, pod: PodSpec, present: &mut Present) -> Result<bool, Error> {
    let Some(container) = pod.containers.into_iter().find(|container| container.name == KUBE_PROXY) else {
        return Ok(false);
    };
    let config_maps = config_maps(container.volume_mounts, pod.volumes.as_deref().unwrap_or_default());
    let words = arguments(container.command.unwrap_or_default(), container.args.unwrap_or_default());
    let words = words.map_err(|program| Error::Program { name: name.to_owned(), program })?;
    present.add_command_line(CommandLine { name: name.to_owned(), words, config_maps })?;
    Ok(true)
}

/// What kube-proxy gets; without a command the image starts it. The error is the program that is started instead, which may
/// be a shell.
fn arguments(command: Vec<String>, args: Vec<String>) -> Result<Vec<String>, String> {
    let Some(program) = command.first().cloned() else { return Ok(args) };
    let is_kube_proxy = |word: &String| {
        !word.contains(char::is_whitespace)
            && Path::new(word).file_name().is_some_and(|name| name == KUBE_PROXY)
    };
    let mut words = command.into_iter().chain(args);
    // go-runner and the like stand before it.
    if words.by_ref().any(|word| is_kube_proxy(&word)) { Ok(words.collect()) } else { Err(program) }
}

/// The ConfigMaps that a container has, with the directory.
fn config_maps(mounts: Option<Vec<VolumeMount>>, volumes: &[Volume]) -> Vec<(PathBuf, String)> {
    let config_map = |name: &str| {
        let volume = volumes.iter().find(|volume| volume.name == name)?;
        Some(volume.config_map.as_ref()?.name.clone())
    };
    let mounts = mounts.unwrap_or_default().into_iter();
    mounts.filter_map(|mount| Some((mount.mount_path, config_map(&mount.name)?))).collect()
}
