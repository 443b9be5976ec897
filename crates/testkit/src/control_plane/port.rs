//! A port for a server that is another process.

use std::net::{IpAddr, SocketAddr};

use anyhow::Context as _;
use k8s_openapi::api::{
    core::v1::{Event, Node, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams},
};
use socket2::{Domain, Socket, Type};

use super::api;

/// A TCP port of this network namespace, which no other socket is given by chance as long as this lives: many servers are started
/// at once here. Only who sets `SO_REUSEPORT` can listen at it.
#[derive(Debug)]
pub(super) struct Port {
    address: SocketAddr,
    _bound: Socket,
}

impl Port {
    /// One that is free at this address.
    pub(super) fn any(ip: IpAddr) -> anyhow::Result<Self> {
        let any = SocketAddr::new(ip, 0);
        let bound = Socket::new(Domain::for_address(any), Type::STREAM, None)
            .and_then(|socket| {
                socket.set_reuse_port(true)?;
                socket.bind(&any.into())?;
                Ok(socket)
            })
            .with_context(|| format!("looking for a free port on {ip}"))?;
        let address = bound.local_addr()?.as_socket().context("its address is none of TCP")?;
        Ok(Self { address, _bound: bound })
    }

    /// Where the server is to listen.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

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

#[cfg(test)]
mod tests {
    use std::{
        io::ErrorKind,
        net::{Ipv4Addr, TcpListener, TcpStream},
    };

    use super::*;

    #[test]
    fn who_does_not_share_the_port_does_not_get_it() {
        let port = Port::any(Ipv4Addr::LOCALHOST.into()).unwrap();
        assert_eq!(TcpListener::bind(port.address()).unwrap_err().kind(), ErrorKind::AddrInUse);
    }

    #[test]
    fn connections_go_to_the_server_that_shares_the_port() {
        let port = Port::any(Ipv4Addr::LOCALHOST.into()).unwrap();
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.set_reuse_port(true).unwrap();
        listener.bind(&port.address().into()).unwrap();
        listener.listen(1).unwrap();
        for _ in 0..10 {
            TcpStream::connect(port.address()).unwrap();
            listener.accept().unwrap();
        }
    }
}
