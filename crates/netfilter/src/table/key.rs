//! Elements as the kernel's sets hold them: for each kind of content the fields of the key, and of a map's
//! value.

use std::net::IpAddr;

use ipvs::{Family, RealServerAddress, ServiceAddress};

use crate::{
    AllowedSource, ClusterIpFor, Element, HairpinFlow, HealthCheckPort, MaxSegmentSize, PodPort, TunnelExit,
    nft::{
        element::{Key, Part, Parts, RawElement},
        set::{Datatype, Set},
    },
    tunnel::address_end,
};

use Part::{Address, AddressEnd, Port, Protocol};

/// A set that a table of ours can have.
pub(crate) struct KnownSet {
    pub(crate) set: Set,
    /// Whether it exists only where something is answered directly.
    pub(crate) is_of_direct_return: bool,
    element: fn(Family, &Key) -> Option<Element>,
}

impl KnownSet {
    /// The set of that name whose elements hold `C`.
    pub(crate) const fn new<C: Coded>(
        name: &'static str,
        is_of_direct_return: bool,
        element: fn(Family, &Key) -> Option<Element>,
    ) -> Self {
        let set = Set { name, key: C::KEY, value: C::VALUE, intervals: C::INTERVALS, recent: None };
        Self { set, is_of_direct_return, element }
    }

    /// Reads an element; `None` if it cannot be ours.
    pub(crate) fn read(&self, family: Family, raw: RawElement<'_>) -> Option<Element> {
        (self.element)(family, &Key::read(&self.set, family, raw)?)
    }
}

/// The content of an element, as the kernel stores it.
pub(crate) trait Coded: Sized {
    /// The fields of the key.
    const KEY: &'static [Datatype];
    /// The fields of a map's value for the key.
    const VALUE: &'static [Datatype] = &[];
    /// Whether the last field of the key is an interval.
    const INTERVALS: bool = false;

    fn key(&self) -> Key;

    /// The content with this key; `None` if the fields contradict each other.
    fn from_key(family: Family, key: &Key) -> Option<Self>;
}

const SERVICE_ADDRESS: &[Datatype] = &[Datatype::Address, Datatype::Protocol, Datatype::Port];
const SERVICE_ADDRESS_AND_CLIENT: &[Datatype] =
    &[Datatype::Address, Datatype::Protocol, Datatype::Port, Datatype::Address];
const POD_AND_SERVICE_ADDRESS: &[Datatype] =
    &[Datatype::AddressEnd, Datatype::Address, Datatype::Protocol, Datatype::Port];
const DESTINATION: &[Datatype] = &[Datatype::Address, Datatype::Port];

impl Coded for IpAddr {
    const KEY: &'static [Datatype] = &[Datatype::Address];

    fn key(&self) -> Key {
        Key::plain(&[Address(*self)])
    }

    fn from_key(_: Family, key: &Key) -> Option<Self> {
        let [Address(ip)] = key.start[..] else { return None };
        Some(ip)
    }
}

impl Coded for ServiceAddress {
    const KEY: &'static [Datatype] = SERVICE_ADDRESS;

    fn key(&self) -> Key {
        Key::plain(&[Address(self.ip), Protocol(self.protocol), Port(self.port)])
    }

    fn from_key(_: Family, key: &Key) -> Option<Self> {
        let [Address(ip), Protocol(protocol), Port(port)] = key.start[..] else { return None };
        Some(Self { protocol, ip, port })
    }
}

impl Coded for AllowedSource {
    const KEY: &'static [Datatype] = SERVICE_ADDRESS_AND_CLIENT;
    const INTERVALS: bool = true;

    fn key(&self) -> Key {
        let Self { to: ServiceAddress { protocol, ip, port }, first, last } = *self;
        let start = Key::plain(&[Address(ip), Protocol(protocol), Port(port), Address(first)]);
        Key { end: Some(Address(last)), ..start }
    }

    fn from_key(_: Family, key: &Key) -> Option<Self> {
        let [Address(ip), Protocol(protocol), Port(port), Address(first)] = key.start[..] else {
            return None;
        };
        let Some(Address(last)) = key.end else { return None };
        (first <= last).then_some(Self { to: ServiceAddress { protocol, ip, port }, first, last })
    }
}

impl Coded for HairpinFlow {
    const KEY: &'static [Datatype] = SERVICE_ADDRESS_AND_CLIENT;

    fn key(&self) -> Key {
        let Self { protocol, pod: RealServerAddress { ip, port } } = *self;
        Key::plain(&[Address(ip), Protocol(protocol), Port(port), Address(ip)])
    }

    fn from_key(_: Family, key: &Key) -> Option<Self> {
        let [Address(ip), Protocol(protocol), Port(port), Address(client)] = key.start[..] else {
            return None;
        };
        (client == ip).then_some(Self { protocol, pod: RealServerAddress { ip, port } })
    }
}

impl Coded for PodPort {
    const KEY: &'static [Datatype] = SERVICE_ADDRESS;

    fn key(&self) -> Key {
        let Self { protocol, pod: RealServerAddress { ip, port } } = *self;
        ServiceAddress { protocol, ip, port }.key()
    }

    fn from_key(family: Family, key: &Key) -> Option<Self> {
        let ServiceAddress { protocol, ip, port } = Coded::from_key(family, key)?;
        Some(Self { protocol, pod: RealServerAddress { ip, port } })
    }
}

impl Coded for HealthCheckPort {
    const KEY: &'static [Datatype] = &[Datatype::Protocol, Datatype::Port];

    fn key(&self) -> Key {
        Key::plain(&[Protocol(ipvs::Protocol::Tcp), Port(self.port)])
    }

    fn from_key(family: Family, key: &Key) -> Option<Self> {
        let [Protocol(ipvs::Protocol::Tcp), Port(port)] = key.start[..] else { return None };
        Some(Self { family, port })
    }
}

impl Coded for ClusterIpFor {
    const KEY: &'static [Datatype] = SERVICE_ADDRESS;
    const VALUE: &'static [Datatype] = DESTINATION;

    fn key(&self) -> Key {
        let RealServerAddress { ip, port } = self.cluster_ip;
        Key { value: Parts::from_slice(&[Address(ip), Port(port)]), ..self.to.key() }
    }

    fn from_key(family: Family, key: &Key) -> Option<Self> {
        let to = ServiceAddress::from_key(family, key)?;
        let [Address(ip), Port(port)] = key.value[..] else { return None };
        Some(Self { to, cluster_ip: RealServerAddress { ip, port } })
    }
}

impl Coded for MaxSegmentSize {
    const KEY: &'static [Datatype] = SERVICE_ADDRESS;
    const VALUE: &'static [Datatype] = &[Datatype::Port];

    fn key(&self) -> Key {
        Key { value: Parts::from_slice(&[Port(self.bytes)]), ..self.to.key() }
    }

    fn from_key(family: Family, key: &Key) -> Option<Self> {
        let to = ServiceAddress::from_key(family, key)?;
        let [Port(bytes)] = key.value[..] else { return None };
        Some(Self { to, bytes })
    }
}

impl Coded for TunnelExit {
    const KEY: &'static [Datatype] = POD_AND_SERVICE_ADDRESS;
    const VALUE: &'static [Datatype] = DESTINATION;

    fn key(&self) -> Key {
        let Self { to, pod } = self;
        let key = [AddressEnd(address_end(pod.ip)), Address(to.ip), Protocol(to.protocol), Port(to.port)];
        Key { value: Parts::from_slice(&[Address(pod.ip), Port(pod.port)]), ..Key::plain(&key) }
    }

    fn from_key(_: Family, key: &Key) -> Option<Self> {
        let [AddressEnd(end), Address(ip), Protocol(protocol), Port(port)] = key.start[..] else {
            return None;
        };
        let to = ServiceAddress { protocol, ip, port };
        let [Address(ip), Port(port)] = key.value[..] else { return None };
        (end == address_end(ip)).then_some(Self { to, pod: RealServerAddress { ip, port } })
    }
}

#[cfg(test)]
mod tests;
