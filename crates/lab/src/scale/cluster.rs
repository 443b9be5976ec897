//! The API server, what is in it, and what it uses of the machine.

use std::fs;

use anyhow::{Context as _, Result};
use guest::{go::control_plane, workspace};
use k8s_openapi::api::{authentication::v1::TokenRequest, core::v1::ServiceAccount};
use kube::{
    Api, Client,
    api::{GetParams, PostParams},
    config::Kubeconfig,
    core::Request,
};
use serde_json::Value;
use testkit::{control_plane::ControlPlane, kernel_baseline::Size, objects};

use crate::{
    stage::objects::{Kind, Write, write_all},
    used,
};

const ACCOUNT: &str = "kube-ipvs";
const NAMESPACE: &str = "kube-system";

/// A control plane with Services.
pub(super) struct Cluster {
    pub(super) control_plane: ControlPlane,
    pub(super) size: Size,
    /// With the rights of kube-ipvs, and in its flow schema.
    pub(super) node: Client,
}

/// What the API server has used so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    /// Seconds of processor time.
    pub(super) processor: f64,
    /// Resident memory in MB, and the most it has been.
    pub(super) memory: f64,
    pub(super) peak: f64,
}

impl Cluster {
    pub(super) fn start(size: Size) -> Result<Self> {
        let control_plane = ControlPlane::start(&control_plane::ensure()?, &[])?;
        let rbac = fs::read_to_string(workspace::root().join("manifests/base/rbac.yaml"))?;
        let rbac: Vec<Value> = serde_saphyr::from_multiple(&rbac).context("manifests/base/rbac.yaml")?;
        rbac.iter().try_for_each(|object| control_plane.apply(object))?;
        let node = account_client(&control_plane)?;
        let cluster = Self { control_plane, size, node };
        cluster.fill()?;
        Ok(cluster)
    }

    /// The first Service is the API server's own.
    fn fill(&self) -> Result<()> {
        let services = (1..self.size.services).map(|number| (Kind::Service, objects::service(number)));
        let slices = (1..self.size.services).map(|number| (Kind::Slice, objects::slice(self.size, number)));
        let writes = services.chain(slices).map(|(kind, object)| vec![Write::Create(kind, body(object))]);
        self.control_plane.block_on(write_all(&self.control_plane.admin_client(), writes))
    }

    /// Replaces the EndpointSlice of a Service by one with the endpoints of the `round`.
    pub(super) async fn change(&self, number: u32, round: u32) -> Result<()> {
        let of = if round.is_multiple_of(2) { objects::shortened_slice } else { objects::slice };
        let write = Write::Replace(Kind::Slice, body(of(self.size, number)));
        write.send(&self.control_plane.admin_client()).await
    }

    pub(super) fn usage(&self) -> Result<Usage> {
        let process = self.control_plane.api_server_process()?;
        let [memory, peak] = used::memory(process)?.map(|kibibytes| f64::from(kibibytes) * 1024.0 / 1e6);
        Ok(Usage { processor: used::processor(process)?, memory, peak })
    }

    /// Lets the peak of its memory begin anew.
    pub(super) fn forget_peak(&self) -> Result<()> {
        // proc(5): 5 resets the peak resident set size.
        Ok(fs::write(format!("/proc/{}/clear_refs", self.control_plane.api_server_process()?), "5")?)
    }

    /// The sum of the API server's metrics of this name whose labels contain all of these.
    pub(super) async fn metric(&self, name: &str, labels: &[&str]) -> Result<f64> {
        let request = Request::new("").get("metrics", &GetParams::default())?;
        let text = self.control_plane.admin_client().request_text(request).await?;
        Ok(sum(&text, name, labels))
    }
}

/// The object without the fields that only the server may set.
fn body(mut object: Value) -> Value {
    if let Some(metadata) = object.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        metadata.retain(|field, _| ["name", "namespace", "labels"].contains(&field.as_str()));
    }
    object
}

/// A client with a token as a pod gets it.
fn account_client(control_plane: &ControlPlane) -> Result<Client> {
    let accounts: Api<ServiceAccount> = Api::namespaced(control_plane.admin_client(), NAMESPACE);
    let (params, request) = (PostParams::default(), TokenRequest::default());
    let answer = control_plane.block_on(accounts.create_token_request(ACCOUNT, &params, &request))?;
    let token = answer.status.context("no token")?.token;
    let mut kubeconfig = Kubeconfig::read_from(control_plane.proxy_kubeconfig())?;
    for user in kubeconfig.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        user.token = Some(token.clone().into());
    }
    // What is compressed is counted as it comes.
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        cluster.disable_compression = Some(true);
    }
    let path = control_plane.directory().join("account.kubeconfig");
    fs::write(&path, serde_saphyr::to_string(&kubeconfig)?)?;
    control_plane.client_for(&path)
}

fn sum(metrics: &str, name: &str, labels: &[&str]) -> f64 {
    let values = metrics.lines().filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let rest = series.strip_prefix(name)?.strip_prefix('{')?;
        labels.iter().all(|label| rest.contains(label)).then(|| value.parse::<f64>().ok()).flatten()
    });
    // Not `sum`, which is -0 of nothing.
    values.fold(0.0, |sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_series_with_all_labels_are_summed() {
        let text = "# HELP a x\na{b=\"1\",c=\"2\"} 3\na{b=\"1\",c=\"3\"} 4\nab{b=\"1\"} 5\na{b=\"2\"} 6\n";
        let sum = |labels: &[&str]| sum(text, "a", labels).to_string();
        assert_eq!(sum(&["b=\"1\""]), "7");
        assert_eq!(sum(&["b=\"1\"", "c=\"3\""]), "4");
        assert_eq!(sum(&["b=\"3\""]), "0");
    }
}
