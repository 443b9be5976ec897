//! A Service that tells when both proxies have done all that was written before it.
//!
//! The API server tells Services in the order in which they were written, and EndpointSlices in theirs.
//! So a proxy whose kernel shows the marker's new port and its new real server has heard of everything
//! before; and when the virtual server of the old port is gone, which is the last thing that either
//! proxy does in a sync, it is through with it.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use ipvs::{Id, Ipvs as _, KernelIpvs};
use serde_json::json;
use testkit::control_plane::ControlPlane;

use super::nodes::Nodes;

/// The marker's VIP and endpoint in each family.
const PLACES: [(&str, &str); 2] =
    [("10.96.255.254", "10.244.255.254"), ("fd00:10:96::fffe", "fd00:10:244:ffff::fffe")];

/// The addresses that the marker's lines are about.
pub(crate) const VIPS: [&str; 2] = [PLACES[0].0, PLACES[1].0];

/// Where the marker is.
pub(crate) struct Marker {
    /// Its port and its target port, different every time.
    port: u16,
}

impl Marker {
    /// One that is nowhere yet.
    pub(crate) fn new() -> Self {
        Self { port: 0 }
    }

    /// Waits until both proxies have done all that was asked for before this call.
    pub(crate) fn pass(&mut self, server: &ControlPlane, nodes: &Nodes) -> Result<()> {
        self.port += 1;
        self.write(server)?;
        nodes.both_show("the marker has moved", |kernel| self.is_there(kernel))
    }

    /// Checks that it has its virtual servers, with their real servers, and no others.
    fn is_there(&self, kernel: &mut KernelIpvs) -> Result<()> {
        let mut seen = Vec::new();
        for server in kernel.virtual_servers()? {
            let Id::Address(address) = server.config.id else { continue };
            if PLACES.iter().any(|(vip, _)| is(address.ip, vip)) {
                let real_servers = kernel.real_servers(server.config.id)?;
                let real_servers = real_servers.iter().map(|server| server.config.address);
                seen.push((address.ip, address.port, real_servers.map(|at| (at.ip, at.port)).collect()));
            }
        }
        seen.sort();
        let wanted = PLACES.map(|(vip, endpoint)| {
            let real_server = (endpoint.parse().unwrap(), self.port);
            (vip.parse().unwrap(), self.port, Vec::<(IpAddr, u16)>::from([real_server]))
        });
        ensure!(seen == wanted, "it is at {seen:?}");
        Ok(())
    }

    fn write(&self, server: &ControlPlane) -> Result<()> {
        for (family, (_, endpoint)) in ["IPv4", "IPv6"].iter().zip(PLACES) {
            server.apply(&json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "namespace": "default",
                    "name": format!("marker-{}", family.to_lowercase()),
                    "labels": {"kubernetes.io/service-name": "marker"},
                },
                "addressType": family,
                "ports": [{"name": "", "port": self.port}],
                "endpoints": [{"addresses": [endpoint]}],
            }))?;
        }
        server.apply(&json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"namespace": "default", "name": "marker"},
            "spec": {
                "clusterIP": VIPS[0],
                "clusterIPs": VIPS,
                "ipFamilyPolicy": "RequireDualStack",
                "ports": [{"port": self.port}],
            },
        }))
    }
}

fn is(ip: IpAddr, text: &str) -> bool {
    text.parse().is_ok_and(|wanted: IpAddr| wanted == ip)
}
