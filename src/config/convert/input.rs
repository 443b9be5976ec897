//! Recognises an input by its content, and reads from it the part of kube-proxy's configuration that it
//! contains: of a ConfigMap the file, of a DaemonSet, a Pod or a static pod's file the command line.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

use super::{
    Error, Input, distributions,
    present::{CommandLine, Inputs},
};
use crate::config::file;

/// Reads one input.
pub(super) fn read(input: Input, present: &mut Inputs) -> Result<(), Error> {
    let Input { name, text } = input;
    let mut reader = text.as_bytes();
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    let documents = serde_saphyr::read_with_options(&mut reader, options);
    let documents = documents
        .map(|document| document.map_err(|error| Error::Malformed(file::fault(Path::new(name), &error))));
    let mut documents = documents.filter(|document| !matches!(document, Ok(Value::Null)));
    let Some(first) = documents.next().transpose()? else { return Err(Error::Nothing(name.to_owned())) };
    if kind(&first) == "KubeProxyConfiguration" {
        // Further documents are ignored.
        return present.add_file(name.to_owned(), text.to_owned());
    }
    let mut all = vec![first];
    for document in documents {
        all.push(document?);
    }
    let is_something = if distributions::is_talos(&all) {
        distributions::read_talos(name, all, present)?
    } else {
        objects(name, all, present)?
    };
    if is_something { Ok(()) } else { Err(Error::Nothing(name.to_owned())) }
}

/// Reads these objects. Returns whether one of them contains something.
fn objects(name: &str, objects: Vec<Value>, present: &mut Inputs) -> Result<bool, Error> {
    let mut is_something = false;
    for mut object in objects {
        is_something |= match kind(&object) {
            "List" => match object.get_mut("items").map(Value::take) {
                Some(Value::Array(items)) => self::objects(name, items, present)?,
                _ => false,
            },
            "ConfigMap" => read_config_map(name, object, present)?,
            "DaemonSet" => read_pods(name, "DaemonSet", object.pointer_mut("/spec/template/spec"), present)?,
            "Pod" => read_pods(name, "Pod", object.pointer_mut("/spec"), present)?,
            "" => distributions::read_k3s(name, &object, present)?,
            _ => false,
        };
    }
    Ok(is_something)
}

/// The kind of an object; nothing where it has none.
pub(super) fn kind(object: &Value) -> &str {
    object.get("kind").and_then(Value::as_str).unwrap_or_default()
}

/// The object, decoded by its kind.
pub(super) fn object<T: DeserializeOwned>(name: &str, kind: &'static str, object: Value) -> Result<T, Error> {
    serde_json::from_value(object).map_err(|source| Error::Object { name: name.to_owned(), kind, source })
}

/// The text of a scalar.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The texts of a list, or of the scalar in its place.
pub(super) fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(values) => values.iter().filter_map(text).collect(),
        value => text(value).into_iter().collect(),
    }
}

/// The part of a ConfigMap that is read.
#[derive(Deserialize)]
struct ConfigMap {
    data: Option<BTreeMap<String, String>>,
}

/// Reads the file of a ConfigMap, as kubeadm makes it; a note names the API server of the kubeconfig beside
/// it.
fn read_config_map(name: &str, object: Value, present: &mut Inputs) -> Result<bool, Error> {
    let ConfigMap { data } = self::object(name, "ConfigMap", object)?;
    let mut is_something = false;
    for (key, text) in data.unwrap_or_default() {
        if text.contains("KubeProxyConfiguration") {
            present.add_file(format!("{name}: {key}"), text)?;
            is_something = true;
        } else if let Some(server) = api_server(&text) {
            present.notes.push(format!(
                "{key}: the API server is {server}: set it as server in manifests/base/kubeconfig.conf"
            ));
        }
    }
    Ok(is_something)
}

/// The API server, if the text is a kubeconfig.
fn api_server(text: &str) -> Option<String> {
    let kubeconfig: Value = serde_saphyr::from_str(text).ok()?;
    let server = kubeconfig.pointer("/clusters/0/cluster/server")?.as_str()?;
    (kind(&kubeconfig) == "Config").then(|| server.to_owned())
}

/// The name of the container and of the program.
const KUBE_PROXY: &str = "kube-proxy";

/// The part of a Pod that is read.
#[derive(Deserialize)]
struct PodSpec {
    containers: Vec<Container>,
    volumes: Option<Vec<Volume>>,
}

/// The container's command line.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    name: String,
    command: Option<Vec<String>>,
    args: Option<Vec<String>>,
    volume_mounts: Option<Vec<VolumeMount>>,
}

/// The directory in which a container has a volume.
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

/// Reads the command line in the specification of an object's pods.
fn read_pods(
    name: &str,
    kind: &'static str,
    pods: Option<&mut Value>,
    present: &mut Inputs,
) -> Result<bool, Error> {
    let pod: PodSpec = object(name, kind, pods.map(Value::take).unwrap_or_default())?;
    let Some(container) = pod.containers.into_iter().find(|container| container.name == KUBE_PROXY) else {
        return Ok(false);
    };
    let config_maps = config_maps(container.volume_mounts, pod.volumes.as_deref().unwrap_or_default());
    let words = arguments(container.command.unwrap_or_default(), container.args.unwrap_or_default());
    let words = words.map_err(|program| Error::Program { name: name.to_owned(), program })?;
    present.add_command_line(CommandLine { name: name.to_owned(), words, config_maps })?;
    Ok(true)
}

/// The arguments of kube-proxy; without a command the image starts it. The error is the program that is
/// started instead, which may be a shell.
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
