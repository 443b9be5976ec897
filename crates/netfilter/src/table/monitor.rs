//! Notifications of changes of nf_tables by other programs.

use ipvs::Family;
use netlink::{Notifications, Protocol, Reply, find};

use crate::{
    Error,
    nft::{
        TABLE,
        message::{self, Message, SUBSYSTEM},
    },
};

/// `NFNLGRP_NFTABLES` in include/uapi/linux/netfilter/nfnetlink.h.
const GROUP: u32 = 7;

/// The name of the table: the first attribute of each object, of tables, chains, rules, sets, elements and
/// the rest alike (include/uapi/linux/netfilter/nf_tables.h).
const TABLE_NAME: u16 = 1;

/// The messages about rules, chains and tables.
const RULES: [Message; 6] = [
    Message::NewTable,
    Message::DelTable,
    Message::NewChain,
    Message::DelChain,
    Message::NewRule,
    Message::DelRule,
];

/// Changes by other programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Something in one of our tables, or the whole of it.
    pub ours: bool,
    /// A table, a chain or a rule that is not ours. The contents of sets do not count: programs that ban
    /// addresses change them all the time.
    pub others: bool,
}

impl Changed {
    /// Anything may have changed.
    pub const fn everything() -> Self {
        Self { ours: true, others: true }
    }

    /// What one datagram of notifications reports, except for changes by the socket with this port.
    pub fn from_datagram(datagram: &[u8], own_port: u32) -> Self {
        let mut changed = Self::default();
        netlink::each_notification(datagram, |notification| changed.take(notification, own_port));
        changed
    }

    /// Adds the change that a notification reports. An unreadable one does not concern us.
    fn take(&mut self, notification: &Reply<'_>, own_port: u32) {
        let [family, _version, _, _, body @ ..] = notification.payload else { return };
        if notification.port == own_port {
            return;
        }
        let in_our_family = Family::BOTH.into_iter().any(|ours| message::protocol(ours) == *family);
        let table = || find(body, TABLE_NAME)?.string().ok();
        if in_our_family && table() == Some(TABLE) {
            self.ours = true;
        } else if RULES.iter().any(|message| SUBSYSTEM << 8 | *message as u16 == notification.kind) {
            self.others = true;
        }
    }

    fn anything(self) -> bool {
        self.ours || self.others
    }
}

/// A subscription to the kernel's notifications about nf_tables.
///
/// Notifications wait in the socket until [`changed`](Self::changed) is called, and are then combined into
/// one [`Changed`]: loading a firewall with thousands of rules is one event, or a few.
pub struct Monitor {
    notifications: Notifications,
    own_port: u32,
}

impl Monitor {
    /// Subscribes in the calling thread's network namespace. Changes are reported from now on, except those
    /// by the socket with this port ([`KernelNetfilter::port`](crate::KernelNetfilter::port)): each
    /// notification names the socket that made the request (`nf_tables_fill_rule_info` and its like in
    /// net/netfilter/nf_tables_api.c).
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with I/O enabled.
    pub fn start(own_port: u32) -> Result<Self, Error> {
        let notifications = Notifications::subscribe(Protocol::Netfilter, &[GROUP])
            .map_err(|source| Error::new("watch nf_tables", source))?;
        Ok(Self { notifications, own_port })
    }

    /// Waits until another program has changed something since the last call. Safe to cancel: nothing is
    /// lost.
    pub async fn changed(&mut self) -> Result<Changed, Error> {
        let mut changed = Changed::default();
        while !changed.anything() {
            let Self { notifications, own_port } = self;
            match notifications.receive(|notification| changed.take(notification, *own_port)).await {
                Ok(()) => {}
                Err(netlink::Error::StateUnknown) => changed = Changed::everything(),
                Err(source) => return Err(Error::new("watch nf_tables", source)),
            }
        }
        Ok(changed)
    }
}
