//! The device itself: finding it, creating it, making it NOARP.

use netlink::{Batch, Errno, Socket};
use netlink_packet_core::{DecodeError, NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::{
    LinkDummy, LinkUnspec,
    packet_route::{
        RouteNetlinkMessage,
        link::{LinkFlags, LinkHeader, LinkMessage},
    },
};

use crate::{
    DEVICE, Error, ipv6_switch,
    message::{IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINKINFO, LINK_HEADER, find},
    request::packet,
};

/// kube-ipvs0, whatever it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) index: u32,
    /// `None` for a device of no kind: a physical one.
    kind: Option<Box<str>>,
    noarp: bool,
    /// Whether the device has its name: somebody may have given it another one.
    named: bool,
}

impl Device {
    /// Looks the device up by name; `None` if there is none.
    pub(crate) fn find(socket: &mut Socket) -> Result<Option<Self>, Error> {
        Self::get(socket, LinkUnspec::new_with_name(DEVICE).build())
    }

    /// Looks the device up by name, and if it has lost that, by the number that it had: with a name or
    /// without, the VIPs are on it.
    pub(crate) fn find_again(socket: &mut Socket, index: Option<u32>) -> Result<Option<Self>, Error> {
        match (Self::find(socket)?, index) {
            (None, Some(index)) => {
                let found = Self::get(socket, LinkUnspec::new_with_index(index).build())?;
                Ok(found.filter(Self::is_dummy))
            }
            (found, _) => Ok(found),
        }
    }

    fn get(socket: &mut Socket, message: LinkMessage) -> Result<Option<Self>, Error> {
        let mut batch = request(RouteNetlinkMessage::GetLink(message), 0);
        let found = socket.get(&mut batch, |reply| {
            Self::from_message(reply.payload)
                .map_err(|error| netlink::Error::Malformed { what: error.to_string() })
        });
        match found {
            Ok(devices) => Ok(devices.into_iter().next()),
            Err(error) if error.errno() == Some(Errno::ENODEV) => Ok(None),
            Err(error) => Err(Error::during("look up kube-ipvs0")(error)),
        }
    }

    /// Creates the device if it is missing, and makes it NOARP if it is not. One that had this number, and has been
    /// renamed, gets its name back.
    pub(crate) fn ensure(socket: &mut Socket, index: Option<u32>) -> Result<Self, Error> {
        let mut device = match Self::find_again(socket, index)? {
            Some(device) if device.named => device,
            Some(device) => device.renamed(socket).map_err(Error::during("give kube-ipvs0 its name back"))?,
            None => Self::create(socket)?,
        };
        if !device.is_dummy() {
            return Err(Error::NotADummy { kind: device.kind_name() });
        }
        ipv6_switch::ensure_on(DEVICE);
        if !device.noarp {
            let message = LinkUnspec::new_with_index(device.index).arp(false).build();
            let mut batch = request(RouteNetlinkMessage::SetLink(message), 0);
            socket.execute(&mut batch).map_err(Error::during("make kube-ipvs0 NOARP"))?;
            device.noarp = true;
        }
        Ok(device)
    }

    /// Gives the device its name. Before 6.2 a device that is up keeps the one it has (`dev_change_name` in
    /// net/core/dev.c); it has no need to be up.
    fn renamed(self, socket: &mut Socket) -> Result<Self, netlink::Error> {
        let mut change = |message| socket.execute(&mut request(RouteNetlinkMessage::SetLink(message), 0));
        let named = || LinkUnspec::new_with_index(self.index).name(DEVICE.to_owned()).build();
        match change(named()) {
            Err(error) if error.errno() == Some(Errno::EBUSY) => {
                change(LinkUnspec::new_with_index(self.index).down().build())?;
                change(named())?;
            }
            done => done?,
        }
        tracing::info!(device = DEVICE, "has its name again");
        Ok(Self { named: true, ..self })
    }

    /// A dummy is created DOWN and NOARP (`dummy_setup` in drivers/net/dummy.c).
    fn create(socket: &mut Socket) -> Result<Self, Error> {
        let message = RouteNetlinkMessage::NewLink(LinkDummy::new(DEVICE).build());
        match socket.execute(&mut request(message, NLM_F_CREATE | NLM_F_EXCL)) {
            Err(error) if error.errno() == Some(Errno::EOPNOTSUPP) => return Err(Error::NoDummyModule),
            Err(error) if error.errno() != Some(Errno::EEXIST) => {
                return Err(Error::during("create kube-ipvs0")(error));
            }
            _ => tracing::info!(device = DEVICE, "created"),
        }
        Self::find(socket)?.ok_or_else(|| {
            Error::during("find kube-ipvs0 just created")(netlink::KernelError::new(Errno::ENODEV).into())
        })
    }

    /// Deletes the device with all its addresses; says whether there was one.
    pub(crate) fn delete(socket: &mut Socket) -> Result<bool, Error> {
        let Some(device) = Self::find(socket)? else { return Ok(false) };
        if !device.is_dummy() {
            return Err(Error::NotADummy { kind: device.kind_name() });
        }
        let message = RouteNetlinkMessage::DelLink(LinkUnspec::new_with_index(device.index).build());
        match socket.execute(&mut request(message, 0)) {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Some(Errno::ENODEV) => Ok(false),
            Err(error) => Err(Error::during("delete kube-ipvs0")(error)),
        }
    }

    pub(crate) fn is_dummy(&self) -> bool {
        self.kind.as_deref() == Some("dummy")
    }

    /// Whether the device is what [`Self::ensure`] makes of it.
    pub(crate) fn is_right(&self) -> bool {
        self.is_dummy() && self.noarp && self.named
    }

    fn kind_name(&self) -> String {
        self.kind.as_deref().unwrap_or("physical").to_owned()
    }

    fn from_message(message: &[u8]) -> Result<Self, DecodeError> {
        let header = LinkHeader::parse(message)?;
        let kind = find(message, LINK_HEADER, IFLA_LINKINFO)
            .and_then(|info| find(info.payload, 0, IFLA_INFO_KIND))
            .and_then(|kind| kind.string().ok().map(Into::into));
        let name = find(message, LINK_HEADER, IFLA_IFNAME).and_then(|name| name.string().ok());
        let noarp = header.flags.contains(LinkFlags::Noarp);
        Ok(Self { index: header.index, kind, noarp, named: name == Some(DEVICE) })
    }
}

fn request(message: RouteNetlinkMessage, flags: u16) -> Batch {
    let mut batch = Batch::default();
    batch.packet(packet(message, flags));
    batch
}
