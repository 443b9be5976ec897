//! The real kernel.

use std::{
    fs::File,
    io::{self, BufReader, Seek},
    num::NonZeroU32,
    path::Path,
};

use netlink::{Batch, Errno, FailedRequest, Protocol, Reply, Socket};
use nix::{
    sys::time::TimeValLike as _,
    time::{ClockId, clock_getres},
};

use super::{
    Error, Ipvs, decode,
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

/// The IPVS of the network namespace of the thread that opened it.
///
/// Every method blocks until the kernel has answered. The kernel executes IPVS requests one at a time,
/// so a second client speeds nothing up.
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
    /// Opens the IPVS of the calling thread's network namespace, which the client stays in even when
    /// the thread leaves it.
    ///
    /// The kernel loads the module ip_vs by itself if it can; [`Error::NoIpvs`] means that it can't.
    /// Permission is asked for by the methods, not here.
    pub fn open() -> Result<Self, Error> {
        let cannot = Error::during("open IPVS");
        let bulk = Socket::open(Protocol::Generic).map_err(&cannot)?;
        let short_dumps = Socket::open_for_short_dumps(Protocol::Generic).map_err(cannot)?;
        Self::over(bulk, short_dumps)
    }

    /// Opens IPVS over two generic netlink sockets that are open already, in the calling thread's network
    /// namespace. The second is for very many short dumps.
    pub fn over(mut bulk: Socket, short_dumps: Socket) -> Result<Self, Error> {
        let family = bulk.generic_family(FAMILY).map_err(Error::during("open IPVS"))?;
        // Not before the module has been loaded, which the line before sees to.
        let summary = File::open(PROC_NET_IP_VS).ok();
        let requests = Requests { family };
        Ok(Self { bulk, short_dumps, summary, hertz: hertz(), requests, batch: Batch::default() })
    }

    /// The connection timeouts.
    pub fn timeouts(&mut self) -> Result<Timeouts, Error> {
        self.get("read the IPVS timeouts", command::GET_CONFIG, decode::timeouts)
    }

    /// Sets the connection timeouts that are not 0 and leaves the others. Connections take a new
    /// timeout with their next packet.
    ///
    /// The kernel refuses values above `i32::MAX` clock ticks (about 24 days at 1000 Hz) with EINVAL.
    pub fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<(), Error> {
        self.batch.clear();
        self.requests.timeouts(&mut self.batch, timeouts);
        self.execute("set the IPVS timeouts")
    }

    /// The version and the size of the connection table.
    pub fn info(&mut self) -> Result<Info, Error> {
        self.get("read the IPVS version", command::GET_INFO, decode::info)
    }

    /// Sets the counters of a virtual server and its real servers to zero; of all without an `id`.
    /// A virtual server that does not exist is an error (ESRCH).
    pub fn zero(&mut self, id: Option<VirtualServerId>) -> Result<(), Error> {
        self.batch.clear();
        match id {
            Some(id) => self.requests.about(&mut self.batch, command::ZERO, &id),
            None => self.requests.about_all(&mut self.batch, command::ZERO),
        }
        self.execute("zero counters")
    }

    /// Removes every virtual server of the network namespace, whoever made it.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.batch.clear();
        self.requests.about_all(&mut self.batch, command::FLUSH);
        self.execute("remove all virtual servers")
    }

    /// Appends the requests that [`apply`](Ipvs::apply) sends first, one for each command, so that
    /// they can be inspected, or sent without what it does besides.
    pub fn encode(&self, commands: &[Command], batch: &mut Batch) {
        Self::encode_for(self.requests.family, commands, batch);
    }

    /// Appends the same requests without a kernel: `family` is the number that it has given IPVS among the
    /// families of generic netlink.
    pub fn encode_for(family: u16, commands: &[Command], batch: &mut Batch) {
        for command in commands {
            Requests { family }.change(batch, command, Verb::first_for(command));
        }
    }

    /// Executes changes in order; returns those that were refused, by position.
    fn change<'a>(
        &mut self,
        changes: impl Iterator<Item = (&'a Command, Verb)>,
    ) -> Result<Vec<FailedRequest>, Error> {
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
            refused.extend(
                failures
                    .into_iter()
                    .map(|FailedRequest { index, error }| FailedRequest { index: first + index, error }),
            );
        }
        if refused.is_empty() {
            return Ok(Vec::new());
        }
        let (again, mut failed) = idempotency::sort(commands, refused);
        for chunk in again.chunks(CHUNK) {
            let failures = self.change(chunk.iter().map(|step| (step.command, step.verb)))?;
            failed.extend(failures.into_iter().filter_map(|FailedRequest { index, error }| {
                let step = chunk.get(index)?;
                Some(FailedRequest { index: step.index, error: explained(step.command, error) })
            }));
        }
        failed.sort_by_key(|failed| failed.index);
        Ok(failed)
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
