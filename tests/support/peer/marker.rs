//! A Service that shows when both proxies have done all that was written before it.
//!
//! The API server sends Services in the order in which they were written, and EndpointSlices in theirs. So a proxy
//! whose kernel shows the marker's new port and its new real server has received everything before. Deleting the
//! virtual server of the old port is the last step of either proxy's sync, so then the sync has ended. A proxy that
//! received the slice after the Service may need another sync: therefore the tables are read until they stay the
//! same.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use ipvs::{Ipvs as _, KernelIpvs, VirtualServerId};
use serde_json::json;
use testkit::control_plane::ControlPlane;

use super::nodes::Nodes;

/// The marker in one family: a Service of its own, so that a script of one family costs kube-proxy no
/// sync of the other.
struct Place {
    name: &'static str,
    family: &'static str,
    vip: &'static str,
    endpoint: &'static str,
}

const PLACES: [Place; 2] = [
    Place { name: "marker-v4", family: "IPv4", vip: VIPS[0], endpoint: "10.244.255.254" },
    Place { name: "marker-v6", family: "IPv6", vip: VIPS[1], endpoint: "fd00:10:244:ffff::fffe" },
];

/// The addresses that the marker's lines are about.
pub(crate) const VIPS: [&str; 2] = ["10.96.255.254", "fd00:10:96::fffe"];

/// Where the marker is.
#[derive(Default)]
pub(crate) struct Marker {
    /// Its port and its target port, different every time.
    port: u16,
}

impl Marker {
    /// Waits until both proxies have done all that was asked for before this call, in IPv4 and, if that
    /// is wanted, in IPv6.
    pub(crate) fn pass(&mut self, server: &ControlPlane, nodes: &Nodes, ipv6: bool) -> Result<()> {
        self.port += 1;
        let places = if ipv6 { &PLACES[..] } else { &PLACES[..1] };
        places.iter().try_for_each(|place| place.write(server, self.port))?;
        nodes.both_show("the marker has moved", |kernel| {
            places.iter().try_for_each(|place| place.shows(kernel, self.port))
        })
    }
}

impl Place {
    /// Checks that there is a virtual server at this port, with its real server, and no other.
    fn shows(&self, kernel: &mut KernelIpvs, port: u16) -> Result<()> {
        let vip: IpAddr = self.vip.parse()?;
        let mut seen = Vec::new();
        for server in kernel.virtual_servers()? {
            let VirtualServerId::Address(address) = server.config.id else { continue };
            if address.ip == vip {
                let real_servers = kernel.real_servers(server.config.id)?;
                seen.push((
                    address.port,
                    real_servers.iter().map(|server| server.config.address.port).collect(),
                ));
            }
        }
        ensure!(seen == [(port, vec![port])], "{}: {seen:?} instead of {port}", self.vip);
        Ok(())
    }

    fn write(&self, server: &ControlPlane, port: u16) -> Result<()> {
        server.apply(&json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": "default",
                "name": self.name,
                "labels": {"kubernetes.io/service-name": self.name},
            },
            "addressType": self.family,
            "ports": [{"name": "", "port": port}],
            "endpoints": [{"addresses": [self.endpoint]}],
        }))?;
        server.apply(&json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"namespace": "default", "name": self.name},
            "spec": {
                "clusterIP": self.vip,
                "clusterIPs": [self.vip],
                "ipFamilies": [self.family],
                "ports": [{"port": port}],
            },
        }))
    }
}
