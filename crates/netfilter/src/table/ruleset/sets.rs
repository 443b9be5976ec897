//! Every set of our table. What changes with the Services is in them and nowhere else.

use crate::{
    Element,
    nft::set::{Datatype, Set},
};

use Datatype::{Address, Port, Protocol};

pub(super) static SETS: [Set; 9] = [
    Set { name: Element::VIPS, key: &[Address], intervals: false },
    Set { name: Element::RESTRICTED, key: SERVICE_ADDRESS, intervals: false },
    Set { name: Element::ALLOWED_SOURCES, key: SERVICE_ADDRESS_AND_CLIENT, intervals: true },
    Set { name: Element::CLUSTER_IPS, key: SERVICE_ADDRESS, intervals: false },
    Set { name: Element::EXTERNAL, key: SERVICE_ADDRESS, intervals: false },
    Set { name: Element::EXTERNAL_LOCAL, key: SERVICE_ADDRESS, intervals: false },
    Set { name: Element::LOCAL_CLIENTS_ONLY, key: SERVICE_ADDRESS, intervals: false },
    Set { name: Element::HAIRPIN, key: SERVICE_ADDRESS_AND_CLIENT, intervals: false },
    Set { name: Element::HEALTH_CHECK_PORTS, key: &[Protocol, Port], intervals: false },
];

const SERVICE_ADDRESS: &[Datatype] = &[Address, Protocol, Port];
const SERVICE_ADDRESS_AND_CLIENT: &[Datatype] = &[Address, Protocol, Port, Address];
