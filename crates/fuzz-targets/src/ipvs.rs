//! IPVS by generic netlink.

use ipvs::{
    Command, Forwarding, Info, Ipvs, KernelIpvs, ObservedRealServer, ObservedVirtualServer, Protocol,
    RealServer, Scheduler, ServiceAddress, Timeouts, Tunnel, VirtualServer, VirtualServerId, wire,
};
use netlink::{Batch, Transcript};

/// The real servers of at most so many virtual servers are read.
const MOST_ASKED: usize = 8;
/// Some number for IPVS among the families of generic netlink.
const FAMILY: u16 = 0x20;

// include/uapi/linux/netlink.h and genetlink.h.
const NLMSG_DONE: u16 = 3;
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_NEWFAMILY: u8 = 1;
const CTRL_ATTR_FAMILY_ID: u16 = 1;

/// The decoded answers of a kernel.
#[derive(Debug, PartialEq)]
pub struct Answers {
    /// The version and the size of the connection table.
    pub info: Option<Info>,
    /// The connection timeouts.
    pub timeouts: Option<Timeouts>,
    /// Every virtual server, the first few with their real servers.
    pub table: Vec<(ObservedVirtualServer, Vec<ObservedRealServer>)>,
    /// How many commands were refused.
    pub refused: Option<usize>,
}

/// Reads what there is, and changes something.
///
/// A virtual or real server that was read, written, and read again is the same.
pub fn fuzz(input: &[u8]) {
    let Some(answers) = Transcript::decode(input).replay(converse) else { return };
    for (server, real_servers) in &answers.table {
        assert_eq!(read_back(&server.config), server.config);
        for real_server in real_servers {
            let written = as_written(real_server.config);
            assert_eq!(real_server_read_back(server.config.id, &written), written);
        }
    }
}

/// The conversation.
pub fn converse() -> Option<Answers> {
    let mut kernel = KernelIpvs::open().ok()?;
    let info = kernel.info().ok();
    let timeouts = kernel.timeouts().ok();
    let mut table = Vec::new();
    for (position, server) in kernel.virtual_servers().unwrap_or_default().into_iter().enumerate() {
        let id = server.config.id;
        let asked = position < MOST_ASKED;
        let real_servers = if asked { kernel.real_servers(id).unwrap_or_default() } else { Vec::new() };
        table.push((server, real_servers));
    }
    drop(kernel.virtual_server(vip().into()));
    let refused = kernel.apply(&commands()).ok().map(|failed| failed.len());
    Some(Answers { info, timeouts, table, refused })
}

fn vip() -> ServiceAddress {
    ServiceAddress { protocol: Protocol::Udp, ip: [10, 96, 0, 53].into(), port: 53 }
}

/// With what a kernel refuses: what is there already, and what is not there.
fn commands() -> [Command; 6] {
    let absent = ServiceAddress { port: 54, ..vip() };
    let server = RealServer::masquerade([10, 1, 0, 53].into(), 53);
    [
        Command::AddVirtualServer(VirtualServer::new(vip(), Scheduler::RR)),
        Command::EditVirtualServer(VirtualServer::new(absent, Scheduler::RR)),
        Command::AddRealServer(ServiceAddress { port: 56, ..vip() }.into(), server),
        Command::EditRealServer(vip().into(), server),
        Command::DeleteRealServer(absent.into(), server.address),
        Command::DeleteVirtualServer(ServiceAddress { port: 55, ..vip() }.into()),
    ]
}

fn read_back(server: &VirtualServer) -> VirtualServer {
    let command = Command::AddVirtualServer(server.clone());
    let mut servers = client_that_reads(&command, 2).virtual_servers().unwrap_or_default();
    assert_eq!(servers.len(), 1, "{server:?} is not read back");
    servers.remove(0).config
}

/// What a tunnel would be of a real server that is reached by none is read, and not written.
fn as_written(mut server: RealServer) -> RealServer {
    if server.forwarding != Forwarding::Tunnel {
        server.tunnel = Tunnel::default();
    }
    server
}

fn real_server_read_back(of: VirtualServerId, server: &RealServer) -> RealServer {
    let command = Command::AddRealServer(of, *server);
    let mut servers = client_that_reads(&command, 1).real_servers(of).unwrap_or_default();
    assert_eq!(servers.len(), 1, "{server:?} is not read back");
    servers.remove(0).config
}

/// A client of a kernel that has the one thing that the command is about, and says so to the request with this
/// sequence number.
fn client_that_reads(command: &Command, sequence: u32) -> KernelIpvs {
    let mut family = Batch::default();
    family.generic(GENL_ID_CTRL, CTRL_CMD_NEWFAMILY, 2, |encoder| encoder.u16(CTRL_ATTR_FAMILY_ID, FAMILY));
    let mut entry = Batch::default();
    wire::encode(FAMILY, std::slice::from_ref(command), &mut entry);
    let transcript = Transcript::default();
    transcript.push(&answer(&family, 1));
    transcript.push(&answer(&entry, sequence));
    match transcript.replay(KernelIpvs::open) {
        Ok(kernel) => kernel,
        Err(error) => unreachable!("{error:?}"),
    }
}

/// What was encoded as a request as the answer to the request with this sequence number, and the end of answers.
fn answer(encoded: &Batch, sequence: u32) -> Vec<u8> {
    let mut end = Batch::default();
    end.add(NLMSG_DONE, 0, |encoder| encoder.raw(&[0; 4]));
    let mut datagram = Vec::new();
    for message in [encoded, &end] {
        let bytes = message.as_bytes();
        let (before, after) = (bytes.get(..8).unwrap_or_default(), bytes.get(12..).unwrap_or_default());
        datagram.extend([before, &sequence.to_ne_bytes(), after].concat());
    }
    datagram
}
