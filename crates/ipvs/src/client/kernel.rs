//! The IPVS table of the real kernel.

use std::{
    fmt,
    fs::{File, metadata},
    io::{self, BufReader, Read, Seek, SeekFrom},
    iter,
    num::NonZeroU32,
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use netlink::{Batch, Errno, Protocol, Reply, Socket, if_exists};
use nix::{
    sys::time::TimeValLike as _,
    time::{ClockId, clock_getres},
};

use super::{
    Error, FailedRequest, Ipvs, PROBE_ADDRESS, decode,
    encode::{Requests, Verb},
    error::explained,
    idempotency,
    uapi::{FAMILY, command},
};
use crate::{
    Command, Info, ObservedRealServer, ObservedVirtualServer, RealServer, Scheduler, Summaries, Timeouts,
    VirtualServer, VirtualServerId, proc_net,
};

/// The summary of the table in this thread's network namespace, not the process's.
const PROC_NET_IP_VS: &str = "/proc/thread-self/net/ip_vs";

/// The network namespace of this thread: the inode says which.
const NAMESPACE: &str = "/proc/thread-self/ns/net";

/// How many commands are encoded before they are sent: about one datagram. The buffer stays in the
/// processor's cache and its size does not grow with the number of commands.
const CHUNK: usize = 1024;

/// The kernel gives a page at a time, or as much as its largest virtual server takes (`seq_read_iter` in
/// fs/seq_file.c).
const READ_AT_ONCE: usize = 64 << 10;

/// How many real servers have a text of more than half of that, at 61 bytes each: the kernel doubles its piece until
/// one virtual server fits.
const WIDE: u16 = 560;

/// How often the kernel is prepared for large pieces if it then does not return them: while it makes its table larger it
/// shows no new virtual server.
const MAX_WIDENINGS: u8 = 3;

/// The kernel's IPVS table, in the network namespace of the thread that opened it.
///
/// Every method blocks until the kernel has answered. The kernel executes IPVS requests one at a time, so a
/// second client speeds nothing up.
///
/// The module ip_vs may be unloaded and loaded again, which leaves nothing of the table and gives IPVS
/// another number among the families of generic netlink. The client then finds it again, and loads the module
/// if need be: requests are repeated, but for commands ([`Error::Reloaded`]).
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
    /// Stays in its network namespace, as the sockets do. `None` if the file does not exist.
    summary: Option<File>,
    /// How often the kernel may still be prepared for large pieces of it.
    widenings_left: u8,
    /// The inode of that namespace, if it is known.
    namespace: Option<u64>,
    /// How many ticks of the kernel's clock a second has, if that is known.
    hertz: Option<NonZeroU32>,
    pub(super) requests: Requests,
    /// Kept between calls for its memory.
    batch: Batch,
    on_reload: OnReload,
}

/// What is called once the module has been loaded again.
#[derive(Default)]
struct OnReload(Option<Prepare>);

type Prepare = Box<dyn FnMut(&mut KernelIpvs) + Send>;

impl fmt::Debug for OnReload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnReload").finish_non_exhaustive()
    }
}

impl KernelIpvs {
    /// Opens the IPVS of the calling thread's network namespace. The client stays in it even when the thread
    /// leaves it.
    ///
    /// The kernel loads the module ip_vs by itself if it can; [`Error::NoIpvs`] means that it cannot. The
    /// other methods need CAP_NET_ADMIN, this one does not.
    pub fn open() -> Result<Self, Error> {
        let cannot = Error::during("open IPVS");
        let mut bulk = Socket::open(Protocol::Generic).map_err(&cannot)?;
        let short_dumps = Socket::open_for_short_dumps(Protocol::Generic).map_err(&cannot)?;
        let family = bulk.generic_family(FAMILY).map_err(cannot)?;
        // The file exists once the module is loaded, which the line before causes.
        let summary = File::open(PROC_NET_IP_VS).ok();
        Ok(Self {
            bulk,
            short_dumps,
            summary,
            widenings_left: MAX_WIDENINGS,
            namespace: namespace(),
            hertz: hertz(),
            requests: Requests { family },
            batch: Batch::default(),
            on_reload: OnReload::default(),
        })
    }

    /// Calls `prepare` each time the module ip_vs turns out to have been unloaded and loaded again: the
    /// timeouts and `net.ipv4.vs.*` are the kernel's own then.
    #[must_use]
    pub fn on_reload(mut self, prepare: impl FnMut(&mut Self) + Send + 'static) -> Self {
        self.on_reload = OnReload(Some(Box::new(prepare)));
        self
    }

    /// Reads the connection timeouts (`IPVS_CMD_GET_CONFIG`).
    pub fn timeouts(&mut self) -> Result<Timeouts, Error> {
        self.get("read the IPVS timeouts", command::GET_CONFIG, decode::timeouts)
    }

    /// Sets the connection timeouts that are not 0 and leaves the others (`IPVS_CMD_SET_CONFIG`). Connections
    /// take a new timeout with their next packet.
    ///
    /// The kernel refuses values above `i32::MAX` clock ticks (about 24 days at 1000 Hz) with EINVAL.
    pub fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<(), Error> {
        self.execute("set the IPVS timeouts", |requests, batch| requests.timeouts(batch, timeouts))
    }

    /// Reads the version and the size of the connection table (`IPVS_CMD_GET_INFO`).
    pub fn info(&mut self) -> Result<Info, Error> {
        self.get("read the IPVS version", command::GET_INFO, decode::info)
    }

    /// Sets the counters of a virtual server and its real servers to zero; without an `id`, those of all
    /// (`IPVS_CMD_ZERO`). A virtual server that does not exist is an error (ESRCH).
    pub fn zero(&mut self, id: Option<VirtualServerId>) -> Result<(), Error> {
        self.execute("zero counters", |requests, batch| match id {
            Some(id) => requests.about(batch, command::ZERO, &id),
            None => requests.about_all(batch, command::ZERO),
        })
    }

    /// Removes every virtual server of the network namespace, also those of other programs
    /// (`IPVS_CMD_FLUSH`).
    pub fn flush(&mut self) -> Result<(), Error> {
        self.execute("remove all virtual servers", |requests, batch| {
            requests.about_all(batch, command::FLUSH);
        })
    }

    /// Makes an exchange, and once more if the module was loaded again: the kernel has not seen the first.
    fn exchange<T>(
        &mut self,
        operation: &'static str,
        exchange: impl Fn(&mut Self) -> Result<T, netlink::Error>,
    ) -> Result<T, Error> {
        let mut outcome = exchange(self);
        if let Err(error) = &outcome
            && error.errno() == Some(Errno::ENOENT)
            && self.reopen()?
        {
            outcome = exchange(self);
        }
        outcome.map_err(Error::during(operation))
    }

    /// Opens IPVS again if the module was unloaded and loaded again; returns whether it was. To be called after
    /// an ENOENT, the kernel's answer to requests to a family that does not exist (`genl_rcv_msg` in
    /// net/netlink/genetlink.c). IPVS itself answers the same about schedulers, persistence engines and real servers
    /// that it lacks.
    fn reopen(&mut self) -> Result<bool, Error> {
        let family = self.bulk.generic_family(FAMILY).map_err(Error::during("open IPVS again"))?;
        if family == self.requests.family {
            return Ok(false);
        }
        self.requests.family = family;
        // A file of a module that was unloaded cannot be read any more (`proc_reg_read` in fs/proc/inode.c).
        let is_here = self.namespace.is_some() && self.namespace == namespace();
        self.summary = if is_here { File::open(PROC_NET_IP_VS).ok() } else { None };
        self.widenings_left = MAX_WIDENINGS;
        if let Some(mut prepare) = self.on_reload.0.take() {
            prepare(self);
            self.on_reload.0 = Some(prepare);
        }
        Ok(true)
    }

    /// How many bytes of the summary the kernel returns at once.
    pub(super) fn first_piece(&self) -> io::Result<usize> {
        let mut file = self.summary.as_ref().ok_or(io::ErrorKind::NotFound)?;
        file.rewind()?;
        file.read(&mut vec![0; READ_AT_ONCE])
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
        if refused.iter().any(|failure| failure.error.errno == Errno::ENOENT) && self.reopen()? {
            return Err(Error::Reloaded);
        }
        Ok(refused)
    }

    /// Executes one request that `encode` makes.
    fn execute(
        &mut self,
        operation: &'static str,
        encode: impl Fn(Requests, &mut Batch),
    ) -> Result<(), Error> {
        self.exchange(operation, |client| {
            client.batch.clear();
            encode(client.requests, &mut client.batch);
            client.bulk.execute(&mut client.batch)
        })
    }

    fn get<T>(
        &mut self,
        operation: &'static str,
        command: u8,
        decode: fn(&[u8]) -> Result<T, netlink::Error>,
    ) -> Result<T, Error> {
        self.exchange(operation, |client| {
            client.batch.clear();
            client.requests.about_all(&mut client.batch, command);
            let found = client.bulk.get(&mut client.batch, |reply| decode(reply.generic()?.1).map(Some))?;
            found.ok_or_else(|| netlink::Error::Malformed {
                what: "an acknowledgement without an answer".into(),
            })
        })
    }
}

impl Ipvs for KernelIpvs {
    fn virtual_servers(&mut self) -> Result<Vec<ObservedVirtualServer>, Error> {
        self.exchange("read virtual servers", |client| {
            client.batch.clear();
            client.requests.about_all(&mut client.batch, command::GET_SERVICE);
            client.bulk.dump(&mut client.batch, |reply| Ok(entry(reply, decode::virtual_server)))
        })
    }

    fn virtual_server(&mut self, id: VirtualServerId) -> Result<Option<ObservedVirtualServer>, Error> {
        self.exchange("read a virtual server", |client| {
            client.batch.clear();
            client.requests.about(&mut client.batch, command::GET_SERVICE, &id);
            let decode = |reply: &Reply<'_>| decode::virtual_server(reply.generic()?.1).map(Some);
            Ok(if_exists(client.bulk.get(&mut client.batch, decode), &[Errno::ESRCH])?.flatten())
        })
    }

    fn real_servers(&mut self, of: VirtualServerId) -> Result<Vec<ObservedRealServer>, Error> {
        let family = of.family();
        self.exchange("read real servers", |client| {
            client.batch.clear();
            client.requests.about(&mut client.batch, command::GET_DEST, &of);
            client.short_dumps.dump(&mut client.batch, |reply| {
                Ok(entry(reply, |attributes| decode::real_server(attributes, family)))
            })
        })
    }

    fn summaries(&mut self) -> io::Result<Summaries> {
        let open = self.summary.as_ref().zip(self.hertz);
        let (file, hertz) = open.ok_or(io::ErrorKind::NotFound)?;
        let mut file = file.try_clone()?;
        file.rewind()?;
        Ok(Box::new(proc_net::virtual_servers(BufReader::with_capacity(READ_AT_ONCE, file), hertz)))
    }

    fn widen_summaries(&mut self, scheduler: Scheduler) -> Result<bool, Error> {
        let server = VirtualServer::new(PROBE_ADDRESS, scheduler);
        let id = server.id;
        if self.widenings_left == 0
            || self.summary.is_none()
            || !self.may_load(scheduler)
            || self.virtual_server(id)?.is_some()
        {
            return Ok(false);
        }
        self.widenings_left -= 1;
        let real_server = |port| RealServer::masquerade(PROBE_ADDRESS.ip, port).weight(0);
        let real_servers = (1..=WIDE).map(|port| Command::AddRealServer(id, real_server(port)));
        let commands: Vec<_> = iter::once(Command::AddVirtualServer(server)).chain(real_servers).collect();
        let added = self.apply(&commands);
        // To get there the kernel makes all of the text (`traverse` in fs/seq_file.c), again with each larger buffer.
        let _ = self.summary.as_ref().map(|mut file| file.seek(SeekFrom::Start(i64::MAX as u64)));
        self.apply(&[Command::DeleteVirtualServer(id)])?;
        added?;
        let is_wide = self.first_piece().is_ok_and(|bytes| bytes > READ_AT_ONCE / 2);
        if is_wide {
            self.widenings_left = 0;
        }
        Ok(is_wide)
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

fn namespace() -> Option<u64> {
    metadata(NAMESPACE).ok().map(|namespace| namespace.ino())
}

/// `CONFIG_HZ`: this clock goes on with each tick (`posix_get_coarse_res` in kernel/time/posix-timers.c).
fn hertz() -> Option<NonZeroU32> {
    const SECOND: i64 = 1_000_000_000;
    let tick = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).ok()?.num_nanoseconds();
    let hertz = (SECOND + tick / 2).checked_div(tick)?;
    NonZeroU32::new(u32::try_from(hertz).ok()?)
}

/// An entry of a dump, or nothing if it cannot be understood: it must not hide the others.
fn entry<T>(reply: &Reply<'_>, decode: impl FnOnce(&[u8]) -> Result<T, netlink::Error>) -> Option<T> {
    reply.generic().and_then(|(_, attributes)| decode(attributes)).ok()
}
