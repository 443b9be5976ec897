//! Finding a generic netlink family's number.

use netlink_packet_core::{NetlinkHeader, NetlinkMessage};
use netlink_packet_generic::{
    GenlMessage,
    ctrl::{GenlCtrl, GenlCtrlCmd, nlas::GenlCtrlAttrs},
};
use nix::errno::Errno;

use crate::{Batch, Error, Reply, Socket, attributes};

/// include/uapi/linux/genetlink.h.
const CTRL_ATTR_FAMILY_ID: u16 = 1;

impl Socket {
    /// Asks the controller for the number of the family `name`.
    ///
    /// The kernel loads the family's module by itself if it can (`genl_request_module`), so
    /// [`Error::NoSuchFamily`] means that the module is not to be had.
    pub fn generic_family(&mut self, name: &str) -> Result<u16, Error> {
        let mut request = GenlMessage::from_payload(GenlCtrl {
            cmd: GenlCtrlCmd::GetFamily,
            nlas: vec![GenlCtrlAttrs::FamilyName(name.to_owned())],
        });
        request.finalize();
        let mut batch = Batch::default();
        batch.packet(NetlinkMessage::new(NetlinkHeader::default(), request.into()));
        match self.get(&mut batch, number) {
            Ok(ids) => ids.into_iter().flatten().next().ok_or_else(|| Error::Malformed {
                what: format!("the controller gave family {name} no number"),
            }),
            Err(error) if error.errno() == Some(Errno::ENOENT) => Err(Error::NoSuchFamily(name.to_owned())),
            Err(error) => Err(error),
        }
    }
}

/// The number of the family that an answer is about. Its operations and groups, which follow, are left alone:
/// netlink-packet-generic reads them too, and panics where one is shorter than its own header.
fn number(reply: &Reply<'_>) -> Result<Option<u16>, Error> {
    for attribute in attributes(reply.generic()?.1) {
        let attribute = attribute?;
        if attribute.kind == CTRL_ATTR_FAMILY_ID {
            return attribute.u16().map(Some);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENL_ID_CTRL: u16 = 16;
    const CTRL_CMD_NEWFAMILY: u8 = 1;
    const CTRL_ATTR_OP_POLICY: u16 = 9;

    #[test]
    fn what_an_answer_says_beside_the_number_may_be_nonsense() {
        let mut batch = Batch::default();
        batch.generic(GENL_ID_CTRL, CTRL_CMD_NEWFAMILY, 2, |encoder| {
            // An attribute that is shorter than its own header.
            encoder.bytes(CTRL_ATTR_OP_POLICY, &[0, 0, 1, 0]);
            encoder.u16(CTRL_ATTR_FAMILY_ID, 0x1f);
        });
        let payload = batch.as_bytes().get(16..).unwrap();
        let reply = Reply { kind: GENL_ID_CTRL, flags: 0, sequence: 1, payload };
        assert_eq!(number(&reply).unwrap(), Some(0x1f));
    }
}
