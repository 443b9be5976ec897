//! Keys of sets and values of maps: fields one after the other, each filled up to four bytes.

use std::net::IpAddr;

use ipvs::{Protocol, RealServerAddress, ServiceAddress};

use crate::tunnel::address_end;

/// The bytes of one end of a key, or of a value: at most two IPv6 addresses, a protocol and a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes {
    bytes: [u8; 40],
    length: usize,
}

/// A key. In an interval set it has two ends, both included; fields that are not intervals are the same in
/// both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    pub(crate) start: Bytes,
    pub(crate) end: Option<Bytes>,
    /// What a map has for it.
    pub(crate) value: Option<Bytes>,
}

impl Bytes {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; 40], length: 0 }
    }

    /// A port alone, which is not filled up.
    pub(crate) fn port(port: u16) -> Self {
        let port = port.to_be_bytes();
        Self { length: port.len(), ..Self::new().append(&port) }
    }

    fn append(mut self, field: &[u8]) -> Self {
        let end = self.length + field.len();
        if let Some(space) = self.bytes.get_mut(self.length..end) {
            space.copy_from_slice(field);
        }
        self.length = end.next_multiple_of(4);
        self
    }

    /// With an address behind it.
    pub(crate) fn append_address(self, ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => self.append(&ip.octets()),
            IpAddr::V6(ip) => self.append(&ip.octets()),
        }
    }

    /// With a protocol and a port behind it.
    pub(crate) fn append_port(self, protocol: Protocol, port: u16) -> Self {
        self.append(&[protocol.number()]).append(&port.to_be_bytes())
    }

    /// With the last four bytes of an address behind it.
    pub(crate) fn append_address_end(self, ip: IpAddr) -> Self {
        self.append(&address_end(ip).octets())
    }

    /// With an address and a port behind it, as a destination.
    pub(crate) fn append_destination(self, to: &RealServerAddress) -> Self {
        self.append_address(to.ip).append(&to.port.to_be_bytes())
    }

    /// With the three fields behind it that name a virtual server.
    pub(crate) fn append_service(self, to: &ServiceAddress) -> Self {
        self.append_address(to.ip).append_port(to.protocol, to.port)
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}
