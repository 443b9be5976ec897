//! Many tests use one API server, one after the other: each finds it as if it were new.

use std::fmt::Debug;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Event, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

/// A file beside the kubeconfigs of an API server that was started for tests: what is in it may be deleted.
pub(super) const MARK: &str = "started-for-tests";

/// The API server's own Service and its slice.
const OWN: (Option<&str>, &str) = (Some("default"), "kubernetes");

/// Deletes what a proxy sees of the tests before: their Services, EndpointSlices, Nodes and Events. Their namespaces
/// stay, because only a controller can delete one.
pub(super) async fn clear(client: &Client) -> anyhow::Result<()> {
    clear_namespaced::<Service>(client).await?;
    clear_namespaced::<EndpointSlice>(client).await?;
    clear_namespaced::<Event>(client).await?;
    clear_cluster::<Node>(client).await
}

async fn clear_namespaced<K>(client: &Client) -> anyhow::Result<()>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let listed = Api::<K>::all(client.clone()).list(&ListParams::default()).await;
    for object in listed.with_context(|| format!("listing every {}", K::kind(&())))? {
        let (namespace, name) = (object.namespace(), object.name_any());
        if (namespace.as_deref(), &*name) != OWN {
            let api = Api::namespaced(client.clone(), &namespace.unwrap_or_default());
            delete::<K>(&api, &name).await?;
        }
    }
    Ok(())
}

async fn clear_cluster<K>(client: &Client) -> anyhow::Result<()>
where
    K: Resource<Scope = ClusterResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api = Api::<K>::all(client.clone());
    let listed = api.list(&ListParams::default()).await;
    for object in listed.with_context(|| format!("listing every {}", K::kind(&())))? {
        delete(&api, &object.name_any()).await?;
    }
    Ok(())
}

/// Deletes an object that may be gone already, such as an Event that has expired.
async fn delete<K>(api: &Api<K>, name: &str) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => deleted.map(drop).with_context(|| format!("deleting {} {name}", K::kind(&()))),
    }
}
