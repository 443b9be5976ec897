//! Flowtables of the host that have flows put into them.
//!
//! A flowtable forwards the later packets of a flow past the hooks of netfilter, and so past IPVS. What it does to
//! their addresses it takes from conntrack, by `IPS_DST_NAT` (`flow_offload_alloc` in
//! net/netfilter/nf_flow_table_core.c), which IPVS never sets: it changes the addresses that conntrack expects in
//! answers, and nothing else (`ip_vs_update_conntrack` in net/netfilter/ipvs/ip_vs_nfct.c).

use std::fmt;

use netfilter::nft::message::{self, Message, Nfproto};
use netlink::{Error, OperationError, Protocol, Reply, Socket};

use crate::host_firewall::TableFamily;

/// `NFTA_FLOWTABLE_TABLE`, `NFTA_FLOWTABLE_NAME` and `NFTA_FLOWTABLE_USE` of include/uapi/linux/netfilter/nf_tables.h.
const TABLE: u16 = 1;
const NAME: u16 = 2;
const USE: u16 = 4;

/// A flowtable with a rule that puts flows into it. `Display` names it as nft does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flowtable {
    family: TableFamily,
    table: Box<str>,
    name: Box<str>,
}

impl Flowtable {
    /// Reads the flowtables of all tables in the calling thread's network namespace that a rule names (`flow add`),
    /// sorted.
    pub fn in_use() -> Result<Vec<Self>, OperationError> {
        let cannot = |source| OperationError::new("nf_tables", "list the flowtables", source);
        let mut socket = Socket::open(Protocol::Netfilter).map_err(cannot)?;
        let mut request = message::request(Message::GetFlowtable, Nfproto::UNSPECIFIED, |_| {});
        let mut found = socket.dump(&mut request, decode).map_err(cannot)?;
        found.sort_unstable();
        Ok(found)
    }
}

/// Reads one flowtable; `None` for one that no rule names.
fn decode(reply: &Reply<'_>) -> Result<Option<Flowtable>, Error> {
    let (mut table, mut name, mut rules) = ("", "", 0);
    for attribute in message::body(reply)? {
        let attribute = attribute?;
        match attribute.kind {
            TABLE => table = attribute.string()?,
            NAME => name = attribute.string()?,
            USE => rules = attribute.u32_be()?,
            _ => {}
        }
    }
    let family = TableFamily::numbered(message::family(reply)).filter(|_| rules > 0);
    Ok(family.map(|family| Flowtable { family, table: table.into(), name: name.into() }))
}

impl fmt::Display for Flowtable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flowtable {} {} {}", self.family, self.table, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's report of a flowtable that so many rules name.
    fn listed(family: Nfproto, rules: u32) -> Option<String> {
        let batch = message::request(Message::GetFlowtable, family, |encoder| {
            encoder.string(TABLE, "firewalld");
            encoder.string(NAME, "fastpath");
            encoder.u32_be(USE, rules);
        });
        let reply = Reply { payload: &batch.as_bytes()[16..], ..Reply::default() };
        decode(&reply).unwrap().map(|found| found.to_string())
    }

    #[test]
    fn only_a_flowtable_that_a_rule_names_takes_flows() {
        assert_eq!(listed(Nfproto(1), 1).as_deref(), Some("flowtable inet firewalld fastpath"));
        assert_eq!(listed(Nfproto(2), 2).as_deref(), Some("flowtable ip firewalld fastpath"));
        assert_eq!(listed(Nfproto(1), 0), None);
    }
}
