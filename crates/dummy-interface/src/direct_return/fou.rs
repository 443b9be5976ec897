//! The UDP ports at which the kernel removes generic UDP encapsulation: the family `fou` of generic netlink.
//!
//! The IP packet inside then goes to the tunnel device, as with IP in IP.

use std::net::IpAddr;

use ipvs::Family;
use netfilter::tunnel::{GUE_PORT, end};
use netlink::{Batch, Encoder, Errno, Error, KernelError, Protocol, Reply, Socket, find, if_exists};

// include/uapi/linux/fou.h.
const VERSION: u8 = 1;
const FOU_CMD_ADD: u8 = 1;
const FOU_CMD_DEL: u8 = 2;
const FOU_CMD_GET: u8 = 3;
const FOU_ATTR_PORT: u16 = 1;
const FOU_ATTR_AF: u16 = 2;
const FOU_ATTR_TYPE: u16 = 4;
const FOU_ATTR_LOCAL_V4: u16 = 6;
const FOU_ATTR_LOCAL_V6: u16 = 7;
const FOU_ENCAP_GUE: u8 = 2;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// The kernel's ports of this kind. Opening this loads the module `fou`.
#[derive(Debug)]
pub(crate) struct Ports {
    socket: Socket,
    fou: u16,
}

impl Ports {
    pub(crate) fn open() -> Result<Self, Error> {
        let mut socket = Socket::open(Protocol::Generic)?;
        match socket.generic_family("fou") {
            Ok(fou) => Ok(Self { socket, fou }),
            // The errno for a device that the kernel lacks.
            Err(Error::NoSuchFamily(_)) => Err(KernelError::new(Errno::EOPNOTSUPP).into()),
            Err(error) => Err(error),
        }
    }

    /// Whether the port at the end of a family's tunnel is open.
    pub(crate) fn is_open(&mut self, family: Family) -> Result<bool, Error> {
        let mut request = self.request(FOU_CMD_GET, family);
        let kind = if_exists(self.socket.get(&mut request, kind), &[Errno::ESRCH])?.flatten();
        Ok(kind == Some(FOU_ENCAP_GUE))
    }

    /// Opens the port, unless it is open.
    pub(crate) fn add(&mut self, family: Family) -> Result<(), Error> {
        match self.execute(FOU_CMD_ADD, family) {
            // The kernel binds the port before it checks whether it is open already: another program may have it.
            Err(error) if matches!(error.errno(), Some(Errno::EALREADY | Errno::EADDRINUSE)) => {
                if self.is_open(family)? { Ok(()) } else { Err(error) }
            }
            outcome => outcome,
        }
    }

    /// Closes the port, unless it is closed.
    pub(crate) fn remove(&mut self, family: Family) -> Result<(), Error> {
        if_exists(self.execute(FOU_CMD_DEL, family), &[Errno::EINVAL]).map(drop)
    }

    fn execute(&mut self, command: u8, family: Family) -> Result<(), Error> {
        let mut request = self.request(command, family);
        self.socket.execute(&mut request)
    }

    fn request(&self, command: u8, family: Family) -> Batch {
        let mut batch = Batch::default();
        batch.generic(self.fou, command, VERSION, |encoder| port(encoder, family));
        batch
    }
}

/// The port as the kernel identifies it: bound to the end of the tunnel, so that it stays free at other addresses.
fn port(encoder: &mut Encoder<'_>, family: Family) {
    encoder.u16_be(FOU_ATTR_PORT, GUE_PORT);
    encoder.u8(FOU_ATTR_TYPE, FOU_ENCAP_GUE);
    match end(family) {
        IpAddr::V4(end) => {
            encoder.u8(FOU_ATTR_AF, AF_INET);
            encoder.bytes(FOU_ATTR_LOCAL_V4, &end.octets());
        }
        IpAddr::V6(end) => {
            encoder.u8(FOU_ATTR_AF, AF_INET6);
            encoder.bytes(FOU_ATTR_LOCAL_V6, &end.octets());
        }
    }
}

/// The encapsulation of the port that an answer describes.
fn kind(reply: &Reply<'_>) -> Result<Option<u8>, Error> {
    find(reply.generic()?.1, FOU_ATTR_TYPE).map(|kind| kind.u8()).transpose()
}
