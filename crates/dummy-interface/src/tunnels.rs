//! The tunnel devices of a node with what stands before them: the UDP ports of generic UDP encapsulation.

use std::collections::BTreeMap;

use ipvs::Family;
use netfilter::tunnel::end;
use netlink::{Errno, Socket};

use crate::{
    Error, TunnelDevice,
    fou::Ports,
    links::Link,
    observe::InterfaceAddress,
    tunnel::{self, is_named, is_right},
};

/// The tunnels of one network namespace.
#[derive(Debug, Default)]
pub(crate) struct Tunnels {
    /// Whether they are to take generic UDP encapsulation too. Where nobody wants it, nobody asks for it either: that
    /// would load a module.
    gue: bool,
    /// Once they were asked for.
    ports: Option<Ports>,
}

impl Tunnels {
    pub(crate) fn with_gue(gue: bool) -> Self {
        Self { gue, ports: None }
    }

    /// Makes the tunnel of a family, or makes it right.
    pub(crate) fn ensure(&mut self, socket: &mut Socket, family: Family) -> Result<(), netlink::Error> {
        if !self.gue {
            return tunnel::ensure(socket, family);
        }
        // Without the module there is to be no device; and without the device's address there can be no port.
        self.ports()?;
        tunnel::ensure(socket, family)?;
        self.ports()?.add(family)
    }

    /// Removes the tunnel of a family.
    pub(crate) fn remove(&mut self, socket: &mut Socket, family: Family) -> Result<(), netlink::Error> {
        let removed = if self.gue { self.ports().and_then(|ports| ports.remove(family)) } else { Ok(()) };
        tunnel::remove(socket, family)?;
        match removed {
            Err(error) if error.errno() == Some(Errno::EOPNOTSUPP) => Ok(()),
            outcome => outcome,
        }
    }

    /// Looks at those that exist, among links and addresses that were just read.
    pub(crate) fn observe(
        &mut self,
        socket: &mut Socket,
        links: &[Link],
        addresses: &[InterfaceAddress],
    ) -> Result<BTreeMap<Family, TunnelDevice>, Error> {
        let mut found = BTreeMap::new();
        for family in Family::BOTH {
            if links.iter().any(|link| is_named(link, family))
                && let Some(link) =
                    tunnel::find(socket, family).map_err(Error::during("read a tunnel device"))?
            {
                let has_end = addresses
                    .iter()
                    .any(|found| (found.interface, found.address) == (link.index, end(family)));
                let right = is_right(&link, family) && has_end && self.takes_what_it_should(family)?;
                found.insert(family, TunnelDevice { right, received: link.received.unwrap_or(0) });
            }
        }
        Ok(found)
    }

    fn takes_what_it_should(&mut self, family: Family) -> Result<bool, Error> {
        if !self.gue {
            return Ok(true);
        }
        match self.ports().and_then(|ports| ports.is_open(family)) {
            // The module is not there, or was taken out and has another number when it comes again.
            Err(error) if [Some(Errno::EOPNOTSUPP), Some(Errno::ENOENT)].contains(&error.errno()) => {
                self.ports = None;
                Ok(false)
            }
            open => open.map_err(Error::during("read the UDP ports of tunnels")),
        }
    }

    fn ports(&mut self) -> Result<&mut Ports, netlink::Error> {
        let ports = match self.ports.take() {
            Some(ports) => ports,
            None => Ports::open()?,
        };
        Ok(self.ports.insert(ports))
    }
}
