//! The real kernel.

use std::{
    fs::File,
    io::{self, BufReader, Seek},
    num::NonZeroU32,
    path::Path,
};

use netlink::{Batch, Errno, Protocol, Reply, Socket};
use nix::{
    sys::time::TimeValLike as _,
    time::{ClockId, clock_getres},
};

use super::{
    Error, FailedRequest, Ipvs, decode,
    encode::{Requests, Verb},
    error::explained,
    idempotency,
    uapi::{FAMILY, command},
};
use crate::{
    Command, Info, ObservedRealServer, ObservedVirtualServer, Scheduler, Timeouts, VirtualServerId,
    proc_net::{VirtualServerSummary, for_each_virtual_server},
};

/// The summary of the table in this thread's network namespace, not the process's.
const PROC_NET_IP_VS: &str = "/proc/thread-self/net/ip_vs";

/// How many commands are encoded before they are sent: about one datagram. The buffer stays in the
/// processor's cache and its size does not grow with the number of commands.
const CHUNK: usize = 1024;

/// The kernel gives a page at a time, or as much as its largest virtual server takes (`seq_read_iter` in
/// fs/seq_file.c).
const READ_AT_ONCE: usize = 64 << 10;

/// The kernel's IPVS table, in the network namespace of the thread that opened it.
///
/// Every method blocks until the kernel has answered. The kernel executes IPVS requests one at a time, so a second
/// client speeds nothing up.
///
/// ```no_run
/// use ipvs::{KernelIpvs, Timeouts};
///
/// let mut kernel = KernelIpvs::open()?;
/// let (major, minor, patch) = kernel.info()?.version;
/// println!("IPVS {major}.{minor}.{patch}, established TCP connections stay {} s", kernel.timeouts()?.tcp);
/// kernel.set_timeouts(Timeouts::UNCHANGED.udp(60))?;
/// # Ok::<(), ipvs::Error>(())
/// ```
#[derive(Debug)]
pub struct KernelIpvs {
    bulk: Socket,
    short_dumps: Socket,
    /// Stays in its network namespace, as the sockets do. `None` where there is no such file.
    summary: Option<File>,
    /// How many ticks of the kernel's clock a second has, if that is known.
    hertz: Option<NonZeroU32>,
    requests: Requests,
    /// Kept between calls for its memory.
    batch: Batch,
}

impl KernelIpvs {
    /// Opens the IPVS of the calling thread's network namespace. The client stays in it even when the thread leaves
    /// it.
    ///
    /// The kernel loads the module ip_vs by itself if it can; [`Error::NoIpvs`] means that it can't. The other methods
    /// need CAP_NET_ADMIN, this one does not.
    pub fn open() -> Result<Self, Error> {
        let cannot = Error::during("open IPVS");
        let mut bulk = Socket::open(Protocol::Generic).map_err(&cannot)?;
        let short_dumps = Socket::open_for_short_dumps(Protocol::Generic).map_err(&cannot)?;
        let family = bulk.generic_family(FAMILY).map_err(cannot)?;
        // Not before the module has been loaded, which the line before sees to.
        let summary = File::open(PROC_NET_IP_VS).ok();
        let requests = Requests { family };
        Ok(Self { bulk, short_dumps, summary, hertz: hertz(), requests, batch: Batch::default() })
    }

    /// Reads the connection timeouts (`IPVS_CMD_GET_CONFIG`).
    pub fn timeouts(&mut self) -> Result<Timeouts, Error> {
        self.get("read the IPVS timeouts", command::GET_CONFIG, decode::timeouts)
    }

    /// Sets the connection timeouts that are not 0 and leaves the others (`IPVS_CMD_SET_CONFIG`). Connections take a
    /// new timeout with their next packet.
    ///
    /// The kernel refuses values above `i32::MAX` clock ticks (about 24 days at 1000 Hz) with EINVAL.
    pub fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<(), Error> {
        self.batch.clear();
        self.requests.timeouts(&mut self.batch, timeouts);
        self.execute("set the IPVS timeouts")
    }

    /// Reads the version and the size of the connection table (`IPVS_CMD_GET_INFO`).
    pub fn info(&mut self) -> Result<Info, Error> {
        self.get("read the IPVS version", command::GET_INFO, decode::info)
    }

    /// Sets the counters of a virtual server and its real servers to zero; without an `id`, those of all
    /// (`IPVS_CMD_ZERO`). A virtual server that does not exist is an error (ESRCH).
    pub fn zero(&mut self, id: Option<VirtualServerId>) -> Result<(), Error> {
        self.batch.clear();
        match id {
            Some(id) => self.requests.about(&mut self.batch, command::ZERO, &id),
            None => self.requests.about_all(&mut self.batch, command::ZERO),
        }
        self.execute("zero counters")
    }

    /// Removes every virtual server of the network namespace, also those of other programs (`IPVS_CMD_FLUSH`).
    pub fn flush(&mut self) -> Result<(), Error> {
        self.batch.clear();
        self.requests.about_all(&mut self.batch, command::FLUSH);
        self.execute("remove all virtual servers")
    }

    /// Executes changes in order; returns those that were refused, by position.
    fn change<'a>(
        &mut self,
        changes: impl Iterator<Item = (&'a Command, Verb)>,
    ) -> Result<Vec<netlink::FailedRequest>, Error> {
        const OPERATION: &str = "change virtual servers";
        self.batch.clear();
        for (command, verb) in changes {
            self.requests.change(&mut self.batch, command, verb);
        }
        let refused = self.bulk.pipeline(&mut self.batch).map_err(Error::during(OPERATION))?;
        if refused.iter().any(|failure| failure.error.errno == Errno::EPERM) {
            return Err(Error::NotPermitted { operation: OPERATION });
        }
        Ok(refused)
    }

    fn execute(&mut self, operation: &'static str) -> Result<(), Error> {
        self.bulk.execute(&mut self.batch).map_err(Error::during(operation))
    }

    fn get<T>(
        &mut self,
        operation: &'static str,
        command: u8,
        decode: fn(&[u8]) -> Result<T, netlink::Error>,
    ) -> Result<T, Error> {
        self.batch.clear();
        self.requests.about_all(&mut self.batch, command);
        self.bulk
            .get(&mut self.batch, |reply| decode(reply.generic()?.1))
            .and_then(|found| {
                let nothing =
                    || netlink::Error::Malformed { what: "an acknowledgement without an answer".into() };
                found.into_iter().next().ok_or_else(nothing)
            })
            .map_err(Error::during(operation))
    }
}

impl Ipvs for KernelIpvs {
    fn virtual_servers(&mut self) -> Result<Vec<ObservedVirtualServer>, Error> {
        self.batch.clear();
        self.requests.about_all(&mut self.batch, command::GET_SERVICE);
        let entries = self.bulk.dump(&mut self.batch, |reply| Ok(entry(reply, decode::virtual_server)));
        Ok(entries.map_err(Error::during("read virtual servers"))?.into_iter().flatten().collect())
    }

    fn virtual_server(&mut self, id: VirtualServerId) -> Result<Option<ObservedVirtualServer>, Error> {
        self.batch.clear();
        self.requests.about(&mut self.batch, command::GET_SERVICE, &id);
        match self.bulk.get(&mut self.batch, |reply| decode::virtual_server(reply.generic()?.1)) {
            Ok(found) => Ok(found.into_iter().next()),
            Err(error) if error.errno() == Some(Errno::ESRCH) => Ok(None),
            Err(error) => Err(Error::during("read a virtual server")(error)),
        }
    }

    fn real_servers(&mut self, of: VirtualServerId) -> Result<Vec<ObservedRealServer>, Error> {
        self.batch.clear();
        self.requests.about(&mut self.batch, command::GET_DEST, &of);
        let family = of.family();
        let entries = self.short_dumps.dump(&mut self.batch, |reply| {
            Ok(entry(reply, |attributes| decode::real_server(attributes, family)))
        });
        Ok(entries.map_err(Error::during("read real servers"))?.into_iter().flatten().collect())
    }

    fn for_each_summary(&mut self, visit: &mut dyn FnMut(&VirtualServerSummary)) -> io::Result<()> {
        let open = self.summary.as_ref().zip(self.hertz);
        let (mut file, hertz) = open.ok_or(io::ErrorKind::NotFound)?;
        file.rewind()?;
        for_each_virtual_server(BufReader::with_capacity(READ_AT_ONCE, file), hertz, visit)
    }

    fn may_load(&mut self, scheduler: Scheduler) -> bool {
        let waits_for_namespaces = matches!(scheduler, Scheduler::LBLC | Scheduler::LBLCR);
        // Each has this parameter in every namespace, once it is there.
        !waits_for_namespaces || Path::new(&format!("/proc/sys/net/ipv4/vs/{scheduler}_expiration")).exists()
    }

    fn apply(&mut self, commands: &[Command]) -> Result<Vec<FailedRequest>, Error> {
        let mut refused = Vec::new();
        for (number, chunk) in commands.chunks(CHUNK).enumerate() {
            let first = number * CHUNK;
            let failures = self.change(chunk.iter().map(|command| (command, Verb::first_for(command))))?;
            refused.extend(failures.into_iter().map(|failure| netlink::FailedRequest {
                index: first + failure.index,
                error: failure.error,
            }));
        }
        if refused.is_empty() {
            return Ok(Vec::new());
        }
        let (again, mut failed) = idempotency::sort(commands, refused);
        for chunk in again.chunks(CHUNK) {
            let failures = self.change(chunk.iter().map(|step| (step.command, step.verb)))?;
            failed.extend(failures.into_iter().filter_map(|netlink::FailedRequest { index, error }| {
                let step = chunk.get(index)?;
                Some(netlink::FailedRequest { index: step.index, error: explained(step.command, error) })
            }));
        }
        failed.sort_by_key(|failed| failed.index);
        Ok(failed.into_iter().map(FailedRequest::from_netlink).collect())
    }
}

/// `CONFIG_HZ`: this clock goes on with each tick (`posix_get_coarse_res` in kernel/time/posix-timers.c).
fn hertz() -> Option<NonZeroU32> {
    const SECOND: i64 = 1_000_000_000;
    let tick = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).ok()?.num_nanoseconds();
    let hertz = (SECOND + tick / 2).checked_div(tick)?;
    NonZeroU32::new(u32::try_from(hertz).ok()?)
}

/// An entry of a dump, or nothing if it can't be understood: it must not hide the others.
fn entry<T>(reply: &Reply<'_>, decode: impl FnOnce(&[u8]) -> Result<T, netlink::Error>) -> Option<T> {
    reply.generic().and_then(|(_, attributes)| decode(attributes)).ok()
}
