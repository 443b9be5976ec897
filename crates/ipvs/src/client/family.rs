//! The family's number, which the kernel hands out when ip_vs is loaded.

use netlink::{Batch, Errno, Socket, attributes};

use super::{Error, uapi::FAMILY};

/// From include/uapi/linux/genetlink.h: the controller's own number, command and attributes.
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// Asks the controller. The kernel loads the module by itself if it can (`genl_request_module`).
pub(super) fn number(socket: &mut Socket) -> Result<u16, Error> {
    let mut batch = Batch::default();
    batch.generic(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 1, |e| e.string(CTRL_ATTR_FAMILY_NAME, FAMILY));
    let found = socket.get(&mut batch, |reply| {
        for attribute in attributes(reply.generic()?.1) {
            let attribute = attribute?;
            if attribute.kind == CTRL_ATTR_FAMILY_ID {
                return attribute.u16();
            }
        }
        Err(netlink::Error::Malformed { what: format!("the controller gave family {FAMILY} no number") })
    });
    match found {
        Ok(numbers) => numbers.first().copied().ok_or(Error::NoIpvs),
        Err(error) if error.errno() == Some(Errno::ENOENT) => Err(Error::NoIpvs),
        Err(error) => Err(Error::during("open IPVS")(error)),
    }
}
