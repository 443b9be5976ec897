//! Removing what we have made, for good.

use std::{collections::BTreeSet, net::IpAddr};

use ipvs::Family;
use netfilter::tunnel::device;

use crate::{
    Error,
    device::Device,
    fou::Ports,
    observe::{LocalRoute, local_routes, socket},
    request::Requests,
    tunnel,
};

/// Deletes kube-ipvs0 with every address on it. Says whether there was one; a device of that name which is no dummy
/// is somebody else's and an error.
pub fn remove_device() -> Result<bool, Error> {
    Device::delete(&mut socket()?)
}

/// Whether there is a kube-ipvs0.
pub fn has_device() -> Result<bool, Error> {
    Ok(Device::find(&mut socket()?)?.is_some())
}

/// Deletes our tunnel devices. Returns the names of those that there were.
pub fn remove_tunnels() -> Result<Vec<&'static str>, Error> {
    let mut socket = socket()?;
    let mut removed = Vec::new();
    for family in Family::BOTH {
        if tunnel::remove(&mut socket, family).map_err(Error::during("delete a tunnel device"))? {
            // Where it never was, that is no concern.
            _ = Ports::open().and_then(|mut ports| ports.remove(family));
            removed.push(device(family));
        }
    }
    Ok(removed)
}

/// Deletes our routes, those with [`ROUTE_PROTOCOL`](crate::ROUTE_PROTOCOL), but for those to these VIPs. Says how many
/// it has deleted.
pub fn remove_routes(except: &BTreeSet<IpAddr>) -> Result<usize, Error> {
    let mut socket = socket()?;
    let mut routes = local_routes(&mut socket)?;
    routes.retain(|route| LocalRoute::is_ours(route) && !except.contains(&route.to));
    let mut requests = Requests::default();
    for (position, route) in routes.iter().enumerate() {
        requests.unbind_route(position, route.to);
    }
    match requests.send(&mut socket)?.pop_first() {
        Some((_, error)) => Err(Error::during("delete our routes")(error.into())),
        None => Ok(routes.len()),
    }
}
