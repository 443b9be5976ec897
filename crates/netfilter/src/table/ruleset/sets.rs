//! Every set of our table. What changes with the Services is in them and nowhere else.

use crate::{
    Element,
    nft::set::{Datatype, Set},
};

use Datatype::{Address, AddressEnd, Port, Protocol};

/// Those that a table always has.
pub(super) static SETS: [Set; 9] = [
    set(Element::VIPS, &[Address]),
    set(Element::RESTRICTED, SERVICE_ADDRESS),
    Set { intervals: true, ..set(Element::ALLOWED_SOURCES, SERVICE_ADDRESS_AND_CLIENT) },
    set(Element::CLUSTER_IPS, SERVICE_ADDRESS),
    set(Element::EXTERNAL, SERVICE_ADDRESS),
    set(Element::EXTERNAL_LOCAL, SERVICE_ADDRESS),
    set(Element::LOCAL_CLIENTS_ONLY, SERVICE_ADDRESS),
    set(Element::HAIRPIN, SERVICE_ADDRESS_AND_CLIENT),
    set(Element::HEALTH_CHECK_PORTS, &[Protocol, Port]),
];

/// Those that direct return needs besides.
pub(super) static OF_DIRECT_RETURN: [Set; 7] = [
    set(Element::DIRECT_RETURN, SERVICE_ADDRESS),
    map(Element::CLUSTER_IP_FOR, SERVICE_ADDRESS, DESTINATION),
    map(Element::MAX_SEGMENT_SIZES, SERVICE_ADDRESS, &[Port]),
    map(Element::TUNNEL_EXITS, POD_AND_SERVICE_ADDRESS, DESTINATION),
    set(Element::ENDPOINTS_HERE, &[Address]),
    set(Element::ENDPOINTS_ELSEWHERE, &[Address]),
    set(Element::TUNNEL_SENDERS, &[Address]),
];

const SERVICE_ADDRESS: &[Datatype] = &[Address, Protocol, Port];
const SERVICE_ADDRESS_AND_CLIENT: &[Datatype] = &[Address, Protocol, Port, Address];
const POD_AND_SERVICE_ADDRESS: &[Datatype] = &[AddressEnd, Address, Protocol, Port];
const DESTINATION: &[Datatype] = &[Address, Port];

const fn set(name: &'static str, key: &'static [Datatype]) -> Set {
    map(name, key, &[])
}

const fn map(name: &'static str, key: &'static [Datatype], value: &'static [Datatype]) -> Set {
    Set { name, key, value, intervals: false }
}
