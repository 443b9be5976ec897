//! The objects of manifests/preflight, for each node.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// The label of all objects.
pub(super) const LABEL: &str = "k8s-app=kube-ipvs-preflight";

/// The registry of the image in the manifests, until one is chosen.
pub(super) const PLACEHOLDER: &str = "registry.example/";

/// The seconds by which a Job's deadline exceeds the timeout: the end of the Job deletes the pod, whose state is reported.
const AFTER_TIMEOUT: u64 = 60;

const JOB: &str = include_str!("../../../../manifests/preflight/job.yaml");
const PERMISSIONS: &str = include_str!("../../../../manifests/preflight/rbac.yaml");
const KUSTOMIZATION: &str = include_str!("../../../../manifests/preflight/kustomization.yaml");

/// The values that differ from the manifests.
#[derive(Debug)]
pub(super) struct Objects<'a> {
    pub(super) namespace: &'a str,
    pub(super) image: String,
    /// The timeout for its output, in seconds.
    pub(super) timeout: u64,
    /// The daemon's flags, without the node's name.
    pub(super) daemon_flags: &'a [String],
}

impl Objects<'_> {
    /// The Job of a node. The API server chooses its name, because a node's own may be too long for a label.
    pub(super) fn job(&self, node: &str) -> Result<String> {
        let mut job: Value = serde_saphyr::from_str(JOB).context("job.yaml")?;
        let host_name = format!("--hostname-override={node}");
        let preflight = ["preflight", "--output=json", "--"].into_iter();
        let flags = self.daemon_flags.iter().map(String::as_str);
        let arguments: Vec<_> = preflight.chain(flags).chain([host_name.as_str()]).collect();
        let labels = job.pointer("/metadata/labels").cloned();
        let metadata = json!({ "generateName": "preflight-", "namespace": self.namespace, "labels": labels });
        for (field, value) in [
            ("/metadata", metadata),
            ("/spec/activeDeadlineSeconds", json!(self.timeout.saturating_add(AFTER_TIMEOUT))),
            ("/spec/template/spec/nodeName", json!(node)),
            ("/spec/template/spec/containers/0/image", json!(self.image)),
            ("/spec/template/spec/containers/0/args", json!(arguments)),
        ] {
            set(&mut job, field, value)?;
        }
        Ok(job.to_string())
    }

    /// The ServiceAccount of the Jobs, and its permissions.
    pub(super) fn permissions(&self) -> Result<String> {
        let mut objects: Vec<Value> = serde_saphyr::from_multiple(PERMISSIONS).context("rbac.yaml")?;
        for object in &mut objects {
            let namespace = match object.pointer("/kind").and_then(Value::as_str) {
                Some("ServiceAccount") => "/metadata/namespace",
                Some("ClusterRoleBinding") => "/subjects/0/namespace",
                _ => continue,
            };
            set(object, namespace, json!(self.namespace))?;
        }
        Ok(json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string())
    }
}

/// The image in the manifests.
pub(super) fn image_of_manifests() -> Result<String> {
    let kustomization: Value = serde_saphyr::from_str(KUSTOMIZATION).context("kustomization.yaml")?;
    let text = |field| {
        let value = kustomization.pointer(field).and_then(Value::as_str);
        value.with_context(|| format!("kustomization.yaml has no {field}"))
    };
    Ok(format!("{}:{}", text("/images/0/newName")?, text("/images/0/newTag")?))
}

/// Replaces the value of an existing field.
fn set(object: &mut Value, field: &str, value: Value) -> Result<()> {
    *object.pointer_mut(field).with_context(|| format!("the manifest has no {field}"))? = value;
    Ok(())
}
