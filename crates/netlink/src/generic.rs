//! Finding a generic netlink family's number.

use netlink_packet_core::{NetlinkHeader, NetlinkMessage, ParseableParametrized};
use netlink_packet_generic::{
    GenlMessage,
    ctrl::{GenlCtrl, GenlCtrlCmd, nlas::GenlCtrlAttrs},
};
use nix::errno::Errno;

use crate::{Batch, Error, Socket};

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
        let found = self.get(&mut batch, |reply| {
            let (command, attributes) = reply.generic()?;
            let header = netlink_packet_generic::GenlHeader { cmd: command, version: 2 };
            let family = GenlCtrl::parse_with_param(attributes, header)
                .map_err(|error| Error::Malformed { what: error.to_string() })?;
            Ok(family.nlas.iter().find_map(|nla| match nla {
                GenlCtrlAttrs::FamilyId(id) => Some(*id),
                _ => None,
            }))
        });
        match found {
            Ok(ids) => ids.into_iter().flatten().next().ok_or_else(|| Error::Malformed {
                what: format!("the controller gave family {name} no number"),
            }),
            Err(error) if error.errno() == Some(Errno::ENOENT) => Err(Error::NoSuchFamily(name.to_owned())),
            Err(error) => Err(error),
        }
    }
}
