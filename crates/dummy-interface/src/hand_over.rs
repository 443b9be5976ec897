//! Binding VIPs without kube-ipvs0, for as long as open connections need them.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::{DummyInterface as _, Error, KernelDummyInterface, Operation, VipBinding, remove_device};

/// Binds each address on kube-ipvs0 as a route, and deletes the device.
///
/// The addresses stay local all the time, so connections that the node has opened from one of them go on. What it opens
/// from then on comes from the source of its family, as in [`VipBinding::Route`], and does not break when the routes go.
pub fn replace_device_by_routes(
    source_v4: Option<Ipv4Addr>,
    source_v6: Option<Ipv6Addr>,
) -> Result<(), Error> {
    let vips = KernelDummyInterface::open(VipBinding::Address)?.observe()?.bound;
    let binds: Vec<_> = vips.into_iter().map(Operation::Bind).collect();
    // It has not been shown the addresses: they go with the device, at once, and not each for itself.
    let failed = KernelDummyInterface::open(VipBinding::Route { source_v4, source_v6 })?.apply(&binds)?;
    match failed.into_iter().next() {
        Some(failed) => Err(Error::during("bind a VIP as a route")(failed.error.into())),
        None => remove_device().map(drop),
    }
}
