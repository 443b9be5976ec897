//! A kernel in memory that behaves like the real one where the project relies on it, and that can
//! fail with any errno at any call.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    io,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use ipvs::{
    Command, Family, Ipvs, ObservedRealServer, ObservedVirtualServer, RealServerAddress, Scheduler,
    Summaries, VirtualServer, VirtualServerId, proc_net::VirtualServerSummary,
};
use netfilter::{Element, Netfilter};
use netlink::{Errno, FailedRequest, KernelError, OperationError};

/// The fake kernel. Clones share one state, so that a test can keep one and give the others away.
#[derive(Clone, Debug, Default)]
pub struct FakeKernel {
    state: Arc<Mutex<State>>,
}

/// The state of the fake. Tests read and change it as another program would.
#[derive(Debug, Default)]
pub struct State {
    /// Virtual servers with their real servers.
    pub virtual_servers:
        BTreeMap<VirtualServerId, (VirtualServer, BTreeMap<RealServerAddress, ObservedRealServer>)>,
    /// kube-ipvs0, and the node's own addresses.
    pub dummy_interface: dummy_interface::Observed,
    /// The families whose table is as it should be.
    pub tables: BTreeSet<Family>,
    /// The families whose table exists without the rules that take flows from others.
    pub prepared_tables: BTreeSet<Family>,
    /// The elements in our sets.
    pub elements: HashSet<Element>,
    /// Elements that the kernel refuses to add and to delete (EINVAL).
    pub refused_elements: HashSet<Element>,
    /// The families whose table has direct return.
    pub direct_return: BTreeSet<Family>,
    /// The families in which the kernel has no tunnel devices.
    pub missing_tunnels: BTreeSet<Family>,
    /// The families in which the kernel lacks what the rules of direct return need.
    pub missing_rules: BTreeSet<Family>,
    /// VIPs that the kernel refuses to bind (EINVAL), and says why.
    pub refused_vips: HashSet<IpAddr>,
    /// Schedulers that the kernel does not have.
    pub missing_schedulers: HashSet<Scheduler>,
    /// Schedulers that the kernel should not be asked to load.
    pub dangerous_schedulers: HashSet<Scheduler>,
    /// Every write that was carried out, as text, in order.
    pub writes: Vec<String>,
    /// How many full reads of virtual servers there were.
    pub full_reads: usize,
    /// How often reading everything as text was prepared (`Ipvs::widen_summaries`).
    pub widened: usize,
    /// How often everything was read as text (`Ipvs::summaries`).
    pub summary_reads: usize,
    /// How often the real servers of one virtual server were read.
    pub real_server_reads: usize,
    /// How long each of these takes.
    pub real_server_reads_take: Duration,
    /// Whether `Ipvs::summaries` fails, or its next item if it has begun.
    pub no_summaries: bool,
    /// How many summaries the last reading of everything as text has shown.
    pub shown_summaries: usize,
    /// How many summaries may be shown; the next one takes until it may.
    pub most_summaries: Option<usize>,
    /// Whether no other program has changed nf_tables (`Netfilter::may_differ`).
    pub same_generation: bool,
    /// How often kube-ipvs0 or the node's addresses were read or changed, which takes the lock of rtnetlink.
    pub link_calls: usize,
    /// How many calls there were: reads, and each command of a batch.
    pub calls: usize,
    /// The number of a call, and its outcome.
    failure: Option<(usize, Fault)>,
}

/// The outcome of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The kernel refuses it. Other calls of a batch are still carried out, but none of a transaction.
    Refused(Errno),
    /// It is carried out, and so is the rest of its batch, but the answers are lost (ENOBUFS).
    Unheard,
    /// Neither it nor what follows in its batch is carried out, and no answer comes.
    BrokenOff,
}

impl FakeKernel {
    /// A kernel without anything of ours in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// The state, to look at or to change.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The summary at this position of the table as it is now, as the kernel counts: what comes after something that
    /// is removed meanwhile is omitted.
    fn summary(&self, position: usize) -> Option<io::Result<VirtualServerSummary>> {
        let mut state = self.state();
        while state.most_summaries.is_some_and(|most| most <= position) {
            drop(state);
            thread::sleep(Duration::from_millis(1));
            state = self.state();
        }
        state.shown_summaries = position + 1;
        let has_address =
            |(config, _): &&(VirtualServer, _)| matches!(config.id, VirtualServerId::Address(_));
        let (config, servers) = state.virtual_servers.values().filter(has_address).nth(position)?;
        let summary = VirtualServerSummary::new(config, servers.values().map(|server| &server.config));
        if state.no_summaries { Some(Err(io::ErrorKind::InvalidData.into())) } else { summary.map(Ok) }
    }

    /// Makes call number `call`, counted from 0 from now on, fail with `errno`.
    pub fn fail_call(&self, call: usize, errno: Errno) {
        self.inject(call, Fault::Refused(errno));
    }

    /// Makes the answer to call number `call` get lost (ENOBUFS) although it is carried out.
    pub fn lose_answer(&self, call: usize) {
        self.inject(call, Fault::Unheard);
    }

    /// Sets the outcome of call number `call`, counted from 0 from now on.
    pub fn inject(&self, call: usize, fault: Fault) {
        let mut state = self.state();
        state.calls = 0;
        state.failure = Some((call, fault));
    }

    /// Makes every call succeed again, and forgets the writes so far.
    pub fn heal(&self) {
        let mut state = self.state();
        state.failure = None;
        state.calls = 0;
        state.writes.clear();
        state.full_reads = 0;
        state.real_server_reads = 0;
        state.summary_reads = 0;
        state.link_calls = 0;
    }

    /// The writes since the last [`FakeKernel::heal`], one per line, each ended by a newline.
    pub fn writes(&self) -> String {
        let state = self.state();
        state.writes.iter().flat_map(|write| [write.as_str(), "\n"]).collect()
    }

    /// The three subsystems: IPVS, nf_tables, kube-ipvs0.
    pub fn subsystems(
        &self,
    ) -> (Box<dyn Ipvs + Send>, Box<dyn Netfilter + Send>, Box<dyn dummy_interface::DummyInterface + Send>)
    {
        (Box::new(self.clone()), Box::new(self.clone()), Box::new(self.clone()))
    }
}

/// The error of a call that is broken off.
const NO_ANSWER: netlink::Error = netlink::Error::TimedOut { seconds: 10 };

impl State {
    /// Whether an address is local to the fake node.
    pub fn is_bound(&self, vip: IpAddr) -> bool {
        self.dummy_interface.bound.contains(&vip)
    }

    /// Counts a call, and returns its outcome unless it works.
    fn call(&mut self) -> Option<Fault> {
        let number = self.calls;
        self.calls += 1;
        self.failure.filter(|(call, _)| *call == number).map(|(_, fault)| fault)
    }

    fn read<E>(&mut self, error: impl Fn(netlink::Error) -> E) -> Result<(), E> {
        match self.call() {
            None => Ok(()),
            Some(Fault::Refused(errno)) => Err(error(refused(errno))),
            Some(Fault::Unheard) => Err(error(netlink::Error::StateUnknown)),
            Some(Fault::BrokenOff) => Err(error(NO_ANSWER)),
        }
    }

    /// Carries out a batch, each command separately. Returns the answers of those that fail, by position;
    /// none if they are lost.
    fn batch<T>(
        &mut self,
        batch: &[T],
        execute: impl Fn(&mut Self, &T) -> Result<(), KernelError>,
    ) -> Result<Vec<FailedRequest>, netlink::Error> {
        let (mut failed, mut unheard) = (Vec::new(), false);
        for (index, one) in batch.iter().enumerate() {
            let done = match self.call() {
                Some(Fault::BrokenOff) => return Err(NO_ANSWER),
                Some(Fault::Refused(errno)) => Err(KernelError::new(errno)),
                fault => {
                    unheard |= fault == Some(Fault::Unheard);
                    execute(self, one)
                }
            };
            failed.extend(done.err().map(|error| FailedRequest { index, error }));
        }
        if unheard { Err(netlink::Error::StateUnknown) } else { Ok(failed) }
    }

    fn execute(&mut self, command: &Command) -> Result<(), KernelError> {
        let missing = |server: &VirtualServer, schedulers: &HashSet<Scheduler>| {
            let reason = format!("load the module ip_vs_{}", server.scheduler);
            match schedulers.contains(&server.scheduler) {
                true => Err(KernelError { errno: Errno::ENOENT, message: Some(reason.into()) }),
                false => Ok(()),
            }
        };
        match command {
            Command::AddVirtualServer(server) | Command::EditVirtualServer(server) => {
                missing(server, &self.missing_schedulers)?;
                let entry = self.virtual_servers.entry(server.id);
                entry.or_insert_with(|| (server.clone(), BTreeMap::new())).0 = server.clone();
            }
            Command::DeleteVirtualServer(id) => {
                self.virtual_servers.remove(id);
            }
            Command::AddRealServer(id, real) | Command::EditRealServer(id, real) => {
                let Some((_, servers)) = self.virtual_servers.get_mut(id) else {
                    return Err(KernelError::new(Errno::ESRCH));
                };
                if real.address.ip.is_multicast() {
                    return Err(KernelError::new(Errno::EINVAL));
                }
                let entry = servers.entry(real.address);
                entry.or_insert(ObservedRealServer::new(*real)).config = *real;
            }
            Command::DeleteRealServer(id, address) => {
                if let Some((_, servers)) = self.virtual_servers.get_mut(id) {
                    servers.remove(address);
                }
            }
        }
        self.writes.push(command.to_string());
        Ok(())
    }

    fn change_dummy_interface(&mut self, change: dummy_interface::Operation) -> Result<(), KernelError> {
        use dummy_interface::Operation;

        match change {
            Operation::EnsureDevice => self.dummy_interface.device = true,
            Operation::Bind(_) if !self.dummy_interface.device => {
                return Err(KernelError::new(Errno::ENODEV));
            }
            Operation::Bind(vip) if self.refused_vips.contains(&vip) => {
                let message = Some("Invalid prefsrc address".into());
                return Err(KernelError { errno: Errno::EINVAL, message });
            }
            Operation::Bind(vip) => {
                self.dummy_interface.bound.insert(vip);
                self.dummy_interface.stale_bindings.remove(&vip);
            }
            Operation::Unbind(vip) => {
                self.dummy_interface.bound.remove(&vip);
                self.dummy_interface.stale_bindings.remove(&vip);
            }
            Operation::EnsureTunnel(family) if self.missing_tunnels.contains(&family) => {
                return Err(KernelError::new(Errno::EOPNOTSUPP));
            }
            Operation::EnsureTunnel(family) => {
                self.dummy_interface.tunnels.entry(family).or_default().right = true;
            }
            Operation::RemoveTunnel(family) => {
                self.dummy_interface.tunnels.remove(&family);
            }
        }
        self.writes.push(change.to_string());
        Ok(())
    }

    fn change_tables(&mut self, change: &netfilter::Operation) -> Result<(), Errno> {
        use netfilter::Operation;

        let family = change.family();
        let is_there = self.prepared_tables.contains(&family) || self.tables.contains(&family);
        match change {
            Operation::PrepareTable(family) => {
                if !is_there {
                    self.prepared_tables.insert(*family);
                }
            }
            Operation::InstallTable(family) => {
                self.prepared_tables.remove(family);
                self.tables.insert(*family);
            }
            _ if !is_there => return Err(Errno::ENOENT),
            Operation::AddDirectReturn(family) if self.missing_rules.contains(family) => {
                return Err(Errno::ENOENT);
            }
            Operation::AddDirectReturn(family) => {
                self.direct_return.insert(*family);
            }
            Operation::RemoveDirectReturn(family) => {
                self.direct_return.remove(family);
                self.elements.retain(|it| it.family() != *family || !it.is_of_direct_return());
            }
            Operation::AddElement(element) | Operation::DeleteElement(element)
                if element.is_of_direct_return() && !self.direct_return.contains(&family) =>
            {
                return Err(Errno::ENOENT);
            }
            Operation::AddElement(element) | Operation::DeleteElement(element)
                if self.refused_elements.contains(element) =>
            {
                return Err(Errno::EINVAL);
            }
            Operation::AddElement(element) => {
                if self.elements.iter().any(|other| overlap(other, element)) {
                    return Err(Errno::EEXIST);
                }
                self.elements.insert(*element);
            }
            // A missing element is as wanted: the real client's deletions behave like that.
            Operation::DeleteElement(element) => {
                self.elements.remove(element);
            }
        }
        Ok(())
    }
}

fn ipvs_error(operation: &'static str) -> impl Fn(netlink::Error) -> ipvs::Error {
    move |source| ipvs::Error::Netlink { operation, source: source.into() }
}

fn ipvs_failure(FailedRequest { index, error }: FailedRequest) -> ipvs::FailedRequest {
    let answer = ipvs::KernelError::new(error.errno as i32);
    let answer = match error.message {
        Some(message) => answer.because(message),
        None => answer,
    };
    ipvs::FailedRequest::new(index, answer)
}

fn refused(errno: Errno) -> netlink::Error {
    KernelError::new(errno).into()
}

impl Ipvs for FakeKernel {
    fn virtual_servers(&mut self) -> Result<Vec<ObservedVirtualServer>, ipvs::Error> {
        let mut state = self.state();
        state.full_reads += 1;
        state.read(ipvs_error("list virtual servers"))?;
        let observed = |(config, _): &(VirtualServer, _)| ObservedVirtualServer::new(config.clone());
        Ok(state.virtual_servers.values().map(observed).collect())
    }

    fn virtual_server(&mut self, id: VirtualServerId) -> Result<Option<ObservedVirtualServer>, ipvs::Error> {
        let mut state = self.state();
        state.read(ipvs_error("read a virtual server"))?;
        let found = state.virtual_servers.get(&id);
        Ok(found.map(|(config, _)| ObservedVirtualServer::new(config.clone())))
    }

    fn real_servers(&mut self, of: VirtualServerId) -> Result<Vec<ObservedRealServer>, ipvs::Error> {
        let takes = self.state().real_server_reads_take;
        thread::sleep(takes);
        let mut state = self.state();
        state.real_server_reads += 1;
        state.read(ipvs_error("list real servers"))?;
        Ok(state
            .virtual_servers
            .get(&of)
            .map_or(Vec::new(), |(_, servers)| servers.values().cloned().collect()))
    }

    fn summaries(&mut self) -> io::Result<Summaries> {
        let mut state = self.state();
        state.summary_reads += 1;
        state.shown_summaries = 0;
        if state.no_summaries {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.read(io::Error::other)?;
        drop(state);
        let kernel = self.clone();
        Ok(Box::new((0..).map_while(move |position| kernel.summary(position))))
    }

    fn widen_summaries(&mut self, _: Scheduler) -> Result<bool, ipvs::Error> {
        let mut state = self.state();
        state.widened += 1;
        state.read(ipvs_error("prepare for summaries")).map(|()| true)
    }

    fn may_load(&mut self, scheduler: Scheduler) -> bool {
        !self.state().dangerous_schedulers.contains(&scheduler)
    }

    fn apply(&mut self, commands: &[Command]) -> Result<Vec<ipvs::FailedRequest>, ipvs::Error> {
        let failed = self.state().batch(commands, State::execute);
        let failed = failed.map_err(ipvs_error("change virtual and real servers"))?;
        Ok(failed.into_iter().map(ipvs_failure).collect())
    }
}

impl Netfilter for FakeKernel {
    fn observe(&mut self) -> Result<netfilter::Observed, netfilter::Error> {
        let mut state = self.state();
        state.read(|source| OperationError::Failed { operation: "read our tables".into(), source })?;
        Ok(netfilter::Observed {
            installed: state.tables.clone(),
            prepared: state.prepared_tables.clone(),
            direct_return: state.direct_return.clone(),
            generation: None,
            elements: state.elements.iter().copied().collect(),
        })
    }

    fn may_differ(&mut self, _: &netfilter::Observed) -> Result<bool, netfilter::Error> {
        let mut state = self.state();
        state.read(|source| OperationError::Failed { operation: "read our tables".into(), source })?;
        Ok(!state.same_generation)
    }

    /// Atomic: the first change that fails undoes the others.
    fn apply(&mut self, changes: &[netfilter::Operation]) -> Result<(), netfilter::Error> {
        let mut state = self.state();
        let before = (
            state.prepared_tables.clone(),
            state.tables.clone(),
            state.direct_return.clone(),
            state.elements.clone(),
        );
        let failed = |source| OperationError::Failed { operation: "change our tables".into(), source };
        let mut unheard = false;
        for (index, change) in changes.iter().enumerate() {
            let rolled_back = |errno| netfilter::Error::RolledBack {
                operation: change.to_string(),
                source: netlink::Error::RolledBack(FailedRequest { index, error: KernelError::new(errno) }),
            };
            let done = match state.call() {
                Some(Fault::BrokenOff) => Err(failed(NO_ANSWER).into()),
                Some(Fault::Refused(errno)) => Err(rolled_back(errno)),
                fault => {
                    unheard |= fault == Some(Fault::Unheard);
                    state.change_tables(change).map_err(rolled_back)
                }
            };
            if let Err(error) = done {
                (state.prepared_tables, state.tables, state.direct_return, state.elements) = before;
                return Err(error);
            }
        }
        state.writes.extend(changes.iter().map(netfilter::Operation::to_string));
        if unheard { Err(failed(netlink::Error::StateUnknown).into()) } else { Ok(()) }
    }
}

/// Whether two elements cannot be in one set: ranges of one address's clients that overlap, or a key of a map with
/// another value. The real kernel finds most such pairs, except where the new range encloses the old one
/// (`nft_pipapo_insert`).
pub fn overlap(one: &Element, other: &Element) -> bool {
    match (one, other) {
        (Element::AllowedSource(a), Element::AllowedSource(b)) => {
            a != b && a.to == b.to && a.first <= b.last && b.first <= a.last
        }
        (Element::ClusterIpFor(a), Element::ClusterIpFor(b)) => a != b && a.to == b.to,
        (Element::MaxSegmentSize(a), Element::MaxSegmentSize(b)) => a != b && a.to == b.to,
        (Element::TunnelExit(a), Element::TunnelExit(b)) => a != b && a.to == b.to && a.pod.ip == b.pod.ip,
        _ => false,
    }
}

impl dummy_interface::DummyInterface for FakeKernel {
    fn observe(&mut self) -> Result<dummy_interface::Observed, dummy_interface::Error> {
        let mut state = self.state();
        state.link_calls += 1;
        state.read(|source| OperationError::Failed { operation: "read kube-ipvs0".into(), source })?;
        Ok(state.dummy_interface.clone())
    }

    fn apply(
        &mut self,
        changes: &[dummy_interface::Operation],
    ) -> Result<Vec<FailedRequest>, dummy_interface::Error> {
        let mut state = self.state();
        state.link_calls += 1;
        let failed = state.batch(changes, |state, change| state.change_dummy_interface(*change));
        failed
            .map_err(|source| OperationError::Failed { operation: "change kube-ipvs0".into(), source }.into())
    }
}
