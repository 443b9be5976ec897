//! Many tests use one API server, one after the other: each finds it as if it were new.

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Event, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt as _};

use super::api;

/// A file beside the kubeconfigs of an API server that was started for tests: what is in it may be deleted.
pub(super) const MARK: &str = "started-for-tests";

/// The API server's own Service and its slice.
const OWN: (Option<&str>, &str) = (Some("default"), "kubernetes");

/// Deletes what a proxy sees of the tests before: their Services, EndpointSlices, Nodes and Events. Their namespaces
/// stay, because only a controller can delete one.
pub(super) async fn clear(client: &Client) -> anyhow::Result<()> {
    let kinds = [
        ApiResource::erase::<Service>(&()),
        ApiResource::erase::<EndpointSlice>(&()),
        ApiResource::erase::<Event>(&()),
        ApiResource::erase::<Node>(&()),
    ];
    for kind in &kinds {
        let all: Api<DynamicObject> = Api::all_with(client.clone(), kind);
        let listed = all.list(&ListParams::default()).await;
        for object in listed.with_context(|| format!("listing every {}", kind.kind))? {
            let (namespace, name) = (object.namespace(), object.name_any());
            if (namespace.as_deref(), &*name) != OWN {
                delete(&api(client, kind, namespace.as_deref()), &name)
                    .await
                    .with_context(|| format!("deleting {} {name}", kind.kind))?;
            }
        }
    }
    Ok(())
}

/// Deletes an object that may be gone already, such as an Event that has expired.
async fn delete(api: &Api<DynamicObject>, name: &str) -> kube::Result<()> {
    match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => deleted.map(drop),
    }
}
