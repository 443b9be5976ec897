//! The hostPorts of pods, as the CNI plugin portmap makes them in nf_tables.

use std::collections::BTreeSet;

use ipvs::Family;
use netfilter::nft::{
    message::NFTA_DATA_VALUE,
    parts::{decode_expression, entries},
    rule::{self, ListedRule},
};
use netlink::{Errno, Error, OperationError, Protocol, Socket, find};

/// The tables and chains of its two backends, iptables and nftables.
const CHAINS: [(&str, &str); 3] =
    [("nat", "CNI-HOSTPORT-DNAT"), ("cni_hostport", "hostports"), ("cni_hostport", "hostip_hostports")];

/// Reads the hostPorts of all protocols in the calling thread's network namespace. Those in the tables of
/// iptables-legacy are not among them.
pub fn host_ports() -> Result<BTreeSet<u16>, OperationError> {
    let cannot = |source| OperationError::new("nf_tables", "read the rules of hostPorts", source);
    let mut socket = Socket::open(Protocol::Netfilter).map_err(cannot)?;
    let mut ports = BTreeSet::new();
    for family in Family::BOTH {
        for (table, chain) in CHAINS {
            let mut request = rule::list(family, table, Some(chain));
            let found = socket.dump(&mut request, |reply| {
                let rule = ListedRule::decode(reply)?;
                rule.is_in(family, table, chain).then(|| ports_of(&rule)).transpose()
            });
            match found {
                Ok(found) => ports.extend(found.into_iter().flatten()),
                Err(error) if error.errno() == Some(Errno::ENOENT) => {}
                Err(error) => return Err(cannot(error)),
            }
        }
    }
    Ok(ports)
}

fn ports_of(rule: &ListedRule<'_>) -> Result<Vec<u16>, Error> {
    let mut ports = Vec::new();
    for entry in entries(rule.expressions) {
        ports.extend(decode_expression(entry?).map(compared_with).unwrap_or_default());
    }
    Ok(ports)
}

/// The ports that an expression compares with: of these chains' rules, nothing else has two bytes.
fn compared_with((name, data): (&str, &[u8])) -> Vec<u16> {
    const NFTA_CMP_DATA: u16 = 3;
    match name {
        "cmp" => {
            let value = find(data, NFTA_CMP_DATA).and_then(|data| find(data.payload, NFTA_DATA_VALUE));
            value
                .and_then(|value| value.payload.try_into().ok())
                .map(u16::from_be_bytes)
                .into_iter()
                .collect()
        }
        "match" => multiport(data).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// iptables' `-m multiport --dports PORTS`: `struct xt_multiport_v1` in include/uapi/linux/netfilter/xt_multiport.h,
/// with ports in host order.
fn multiport(data: &[u8]) -> Option<Vec<u16>> {
    const NFTA_MATCH_NAME: u16 = 1;
    const NFTA_MATCH_INFO: u16 = 3;
    if find(data, NFTA_MATCH_NAME)?.string().ok()? != "multiport" {
        return None;
    }
    let [_flags, count, ports @ ..] = find(data, NFTA_MATCH_INFO)?.payload else { return None };
    let ports = ports.chunks_exact(2).take((*count).into()).filter_map(|port| port.try_into().ok());
    Some(ports.map(u16::from_ne_bytes).collect())
}
