//! The control plane that other tests build on does what they rely on.

use anyhow::bail;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use testkit::control_plane::ControlPlane;

/// The minor version of Kubernetes that has WatchList by default, and all later ones (`pkg/features/kube_features.go` of
/// k8s.io/apiserver; 1.32 had it too, and 1.33 not).
const WATCH_LIST_SINCE: u32 = 34;

const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

fn service() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "default", "name": "web"},
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": "10.96.7.7",
            "ports": [{"name": "http", "port": 80, "targetPort": 8080, "nodePort": 30080}],
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}},
    })
}

fn endpoint_slice(addresses: &[&str]) -> Value {
    let endpoints: Vec<Value> =
        addresses.iter().map(|address| json!({"addresses": [address], "nodeName": "node-a"})).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "default",
            "name": "web-1",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": endpoints,
    })
}

/// The names of all Services, by a WatchList where the server has it.
fn services(control_plane: &ControlPlane, client: Client) -> anyhow::Result<Vec<String>> {
    if control_plane.minor_version()? >= WATCH_LIST_SINCE {
        return control_plane.block_on(streamed_services(client));
    }
    let services = control_plane.block_on(Api::<Service>::all(client).list(&ListParams::default()))?;
    Ok(services.iter().map(ResourceExt::name_any).collect())
}

/// The names of the Services that a watch reports before it says that these were all.
async fn streamed_services(client: Client) -> anyhow::Result<Vec<String>> {
    let api: Api<Service> = Api::all(client);
    let mut events = api.watch(&WatchParams::streaming_lists(), "").await?.boxed();
    let mut names = Vec::new();
    while let Some(event) = events.try_next().await? {
        match event {
            WatchEvent::Added(service) => names.push(service.name_any()),
            WatchEvent::Bookmark(bookmark)
                if bookmark.metadata.annotations.contains_key(INITIAL_EVENTS_END) =>
            {
                return Ok(names);
            }
            other => bail!("{other:?} after {names:?}"),
        }
    }
    bail!("the watch ended after {names:?}")
}

#[test]
#[ignore = "needs kube-apiserver: cargo xtask test --tier api"]
fn the_proxys_user_reads_what_the_administrator_writes_and_changes_nothing() {
    let Some(control_plane) = ControlPlane::from_env_or_skip().unwrap() else { return };
    let node_ips = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    control_plane.create_node("node-a", &node_ips, Some("zone-1"), &[("disk", "ssd")]).unwrap();
    control_plane.apply(&service()).unwrap();
    control_plane.apply(&endpoint_slice(&["10.0.0.1", "10.0.0.2"])).unwrap();
    control_plane.apply(&endpoint_slice(&["10.0.0.2"])).unwrap();

    let proxy = control_plane.client_for(&control_plane.proxy_kubeconfig()).unwrap();
    control_plane.block_on(async {
        let node = Api::<Node>::all(proxy.clone()).get("node-a").await.unwrap();
        assert_eq!(node.labels()["topology.kubernetes.io/zone"], "zone-1");
        assert_eq!(node.labels()["disk"], "ssd");
        let addresses = node.status.unwrap().addresses.unwrap();
        let addresses: Vec<_> = addresses.iter().map(|address| address.address.as_str()).collect();
        assert_eq!(addresses, ["192.0.2.1", "2001:db8::1"]);

        let services = Api::<Service>::all(proxy.clone()).list(&ListParams::default()).await.unwrap();
        let web = services.iter().find(|service| service.name_any() == "web").unwrap();
        assert_eq!(web.spec.as_ref().unwrap().cluster_ip.as_deref(), Some("10.96.7.7"));
        let ingress = web.status.as_ref().unwrap().load_balancer.as_ref().unwrap().ingress.as_ref().unwrap();
        assert_eq!(ingress[0].ip.as_deref(), Some("192.0.2.7"));

        // The role may list and watch EndpointSlices, not get one.
        let slices = Api::<EndpointSlice>::all(proxy.clone()).list(&ListParams::default()).await.unwrap();
        let slice = slices.iter().find(|slice| slice.name_any() == "web-1").unwrap();
        assert_eq!(slice.endpoints.len(), 1, "written again, it is replaced");

        let other = json!({"metadata": {"name": "other"}, "spec": {"ports": [{"port": 1}]}});
        let other: Service = serde_json::from_value(other).unwrap();
        let refused = Api::<Service>::namespaced(proxy.clone(), "default")
            .create(&PostParams::default(), &other)
            .await
            .unwrap_err();
        assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused}");
    });

    assert!(services(&control_plane, proxy.clone()).unwrap().contains(&"web".to_owned()));

    control_plane.delete::<EndpointSlice>("default", "web-1").unwrap();
    control_plane.delete::<Service>("default", "web").unwrap();
    control_plane.delete_node("node-a").unwrap();
    let left = services(&control_plane, proxy).unwrap();
    assert!(!left.contains(&"web".to_owned()), "{left:?}");
}
