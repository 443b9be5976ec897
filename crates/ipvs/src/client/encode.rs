//! Encoding of requests.

use std::net::IpAddr;

use netlink::{Batch, Encoder};

use super::uapi::{self, dest, message, service};
use crate::{
    Command, Family, Forwarding, RealServer, RealServerAddress, Timeouts, Tunnel, VirtualServer,
    VirtualServerId, virtual_server::ipv4_mask,
};

/// `IP_VS_PENAME_MAXLEN`, with the NUL.
const PERSISTENCE_ENGINE_SPACE: usize = 16;

/// The kernel's verb for a change of an object. None is idempotent: NEW refuses what exists,
/// SET and DEL what does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    New,
    Set,
    Delete,
}

impl Verb {
    /// The verb to try first.
    pub(super) fn first_for(command: &Command) -> Self {
        match command {
            Command::AddVirtualServer(_) | Command::AddRealServer(..) => Self::New,
            Command::EditVirtualServer(_) | Command::EditRealServer(..) => Self::Set,
            Command::DeleteVirtualServer(_) | Command::DeleteRealServer(..) => Self::Delete,
        }
    }

    fn on_service(self) -> u8 {
        match self {
            Self::New => uapi::command::NEW_SERVICE,
            Self::Set => uapi::command::SET_SERVICE,
            Self::Delete => uapi::command::DEL_SERVICE,
        }
    }

    fn on_dest(self) -> u8 {
        match self {
            Self::New => uapi::command::NEW_DEST,
            Self::Set => uapi::command::SET_DEST,
            Self::Delete => uapi::command::DEL_DEST,
        }
    }
}

/// Requests of the family with the number `family`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requests {
    pub(super) family: u16,
}

impl Requests {
    /// A change.
    pub(super) fn change(self, batch: &mut Batch, command: &Command, verb: Verb) {
        match command {
            Command::AddVirtualServer(server) | Command::EditVirtualServer(server) => {
                self.add(batch, verb.on_service(), |e| {
                    e.nest(message::SERVICE, |e| virtual_server(e, server));
                });
            }
            Command::DeleteVirtualServer(id) => self.about(batch, verb.on_service(), id),
            Command::AddRealServer(id, server) | Command::EditRealServer(id, server) => {
                self.add(batch, verb.on_dest(), |e| {
                    e.nest(message::SERVICE, |e| virtual_server_id(e, id));
                    e.nest(message::DEST, |e| real_server(e, server));
                });
            }
            Command::DeleteRealServer(id, address) => self.add(batch, verb.on_dest(), |e| {
                e.nest(message::SERVICE, |e| virtual_server_id(e, id));
                e.nest(message::DEST, |e| real_server_address(e, address));
            }),
        }
    }

    /// A request that only names a virtual server.
    pub(super) fn about(self, batch: &mut Batch, command: u8, id: &VirtualServerId) {
        self.add(batch, command, |e| e.nest(message::SERVICE, |e| virtual_server_id(e, id)));
    }

    /// A request about everything in the network namespace.
    pub(super) fn about_all(self, batch: &mut Batch, command: u8) {
        self.add(batch, command, |_| {});
    }

    /// SET_CONFIG. The kernel keeps what is absent.
    pub(super) fn timeouts(self, batch: &mut Batch, timeouts: Timeouts) {
        let Timeouts { tcp, tcp_fin, udp } = timeouts;
        self.add(batch, uapi::command::SET_CONFIG, |e| {
            let each = [
                (message::TIMEOUT_TCP, tcp),
                (message::TIMEOUT_TCP_FIN, tcp_fin),
                (message::TIMEOUT_UDP, udp),
            ];
            for (kind, seconds) in each.into_iter().filter(|(_, seconds)| *seconds != 0) {
                e.u32(kind, seconds);
            }
        });
    }

    fn add(self, batch: &mut Batch, command: u8, attributes: impl FnOnce(&mut Encoder<'_>)) {
        batch.generic(self.family, command, uapi::VERSION, attributes);
    }
}

fn virtual_server_id(e: &mut Encoder<'_>, id: &VirtualServerId) {
    e.u16(service::AF, address_family(id.family()));
    match id {
        VirtualServerId::Address(address) => {
            e.u16(service::PROTOCOL, address.protocol.number().into());
            ip(e, service::ADDR, address.ip);
            e.u16_be(service::PORT, address.port);
        }
        VirtualServerId::Mark { mark, .. } => e.u32(service::FWMARK, *mark),
    }
}

fn virtual_server(e: &mut Encoder<'_>, server: &VirtualServer) {
    virtual_server_id(e, &server.id);
    e.string(service::SCHED_NAME, server.scheduler.as_str());
    e.bytes(service::FLAGS, &flags(server.flags.bits()));
    e.u32(service::TIMEOUT, server.timeout);
    match server.id.family() {
        Family::V4 => e.u32_be(service::NETMASK, ipv4_mask(server.prefix_length)),
        Family::V6 => e.u32(service::NETMASK, server.prefix_length.into()),
    }
    match server.persistence_engine.as_deref() {
        Some(name) if name.len() < PERSISTENCE_ENGINE_SPACE => e.string(service::PE_NAME, name),
        // Without its NUL the kernel refuses the name (EINVAL), which is what a name that it cannot
        // hold deserves, however long it is.
        Some(name) => {
            let cut = name.as_bytes().get(..=PERSISTENCE_ENGINE_SPACE).unwrap_or(name.as_bytes());
            e.bytes(service::PE_NAME, cut);
        }
        None => {}
    }
}

fn real_server_address(e: &mut Encoder<'_>, address: &RealServerAddress) {
    ip(e, dest::ADDR, address.ip);
    e.u16_be(dest::PORT, address.port);
    // A tunnel may lead to the other family. Kernels before 3.18 ignore the attribute.
    e.u16(dest::ADDR_FAMILY, address_family(Family::from(address.ip)));
}

fn real_server(e: &mut Encoder<'_>, server: &RealServer) {
    real_server_address(e, &server.address);
    e.u32(dest::FWD_METHOD, server.forwarding as u32);
    e.u32(dest::WEIGHT, server.weight);
    e.u32(dest::U_THRESH, server.upper_threshold);
    e.u32(dest::L_THRESH, server.lower_threshold);
    // Also for a real server that is no longer reached through a tunnel, while its connections still are.
    if server.forwarding == Forwarding::Tunnel || server.tunnel != Tunnel::default() {
        let Tunnel { kind, port, flags } = server.tunnel;
        e.u8(dest::TUN_TYPE, kind as u8);
        e.u16_be(dest::TUN_PORT, port);
        e.u16(dest::TUN_FLAGS, flags);
    }
}

/// `struct ip_vs_flags`: the flags, and the mask of those to change, which is all of them.
fn flags(bits: u32) -> [u8; 8] {
    let [a, b, c, d] = (bits & !uapi::HASHED).to_ne_bytes();
    [a, b, c, d, 0xff, 0xff, 0xff, 0xff]
}

fn ip(e: &mut Encoder<'_>, kind: u16, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => e.bytes(kind, &ip.octets()),
        IpAddr::V6(ip) => e.bytes(kind, &ip.octets()),
    }
}

fn address_family(family: Family) -> u16 {
    match family {
        Family::V4 => uapi::AF_INET,
        Family::V6 => uapi::AF_INET6,
    }
}

#[cfg(test)]
mod tests;
