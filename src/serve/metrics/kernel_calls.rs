//! Metrics of calls of the kernel, counted by wrappers around its traits.

use std::io;

use dummy_interface::DummyInterface;
use ipvs::{Command, Ipvs, ObservedRealServer, ObservedVirtualServer, Scheduler, Summaries, VirtualServerId};
use netfilter::Netfilter;
use reconciler::Subsystem;
use watcher::Kernel;

use super::text::{Registry, Total, labels};

/// Counts what is read and what is written, by subsystem. Clones count in the same metrics.
#[derive(Clone, Debug)]
pub struct KernelCalls {
    ipvs: Calls,
    nf_tables: Calls,
    dummy_interface: Calls,
}

#[derive(Clone, Debug, Default)]
struct Calls {
    /// Readings: of all virtual servers, of one, of its real servers, of everything in short; of our tables;
    /// of kube-ipvs0.
    reads: Total,
    /// Operations sent, including refused ones.
    writes: Total,
}

impl KernelCalls {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let calls =
            Self { ipvs: Calls::default(), nf_tables: Calls::default(), dummy_interface: Calls::default() };
        let by_subsystem = |total: fn(&Calls) -> &Total| {
            Subsystem::ALL.map(|subsystem| {
                (labels([("subsystem", subsystem.name())]), total(calls.at(subsystem)).clone())
            })
        };
        registry.register_labelled(
            "kube_ipvs_kernel_reads_total",
            "Reads of the kernel's state",
            by_subsystem(|calls| &calls.reads),
        );
        registry.register_labelled(
            "kube_ipvs_kernel_writes_total",
            "Operations sent to the kernel",
            by_subsystem(|calls| &calls.writes),
        );
        calls
    }

    /// Wraps a kernel, so that its calls are counted.
    pub fn counted(&self, Kernel { ipvs, netfilter, dummy_interface }: Kernel) -> Kernel {
        Kernel {
            ipvs: Box::new(CountedCalls { subsystem: ipvs, calls: self.ipvs.clone() }),
            netfilter: Box::new(CountedCalls { subsystem: netfilter, calls: self.nf_tables.clone() }),
            dummy_interface: Box::new(CountedCalls {
                subsystem: dummy_interface,
                calls: self.dummy_interface.clone(),
            }),
        }
    }

    /// Wraps another connection to IPVS, so that its calls are counted.
    pub fn counted_ipvs(&self, ipvs: impl Ipvs + Send + 'static) -> impl Ipvs + Send + 'static {
        CountedCalls::<dyn Ipvs + Send> { subsystem: Box::new(ipvs), calls: self.ipvs.clone() }
    }

    fn at(&self, subsystem: Subsystem) -> &Calls {
        match subsystem {
            Subsystem::Ipvs => &self.ipvs,
            Subsystem::NfTables => &self.nf_tables,
            Subsystem::DummyInterface => &self.dummy_interface,
        }
    }
}

/// A connection to a subsystem, and what goes through it.
struct CountedCalls<T: ?Sized> {
    calls: Calls,
    subsystem: Box<T>,
}

impl Ipvs for CountedCalls<dyn Ipvs + Send> {
    fn virtual_servers(&mut self) -> Result<Vec<ObservedVirtualServer>, ipvs::Error> {
        self.calls.reads.add(1);
        self.subsystem.virtual_servers()
    }

    fn virtual_server(&mut self, id: VirtualServerId) -> Result<Option<ObservedVirtualServer>, ipvs::Error> {
        self.calls.reads.add(1);
        self.subsystem.virtual_server(id)
    }

    fn real_servers(&mut self, of: VirtualServerId) -> Result<Vec<ObservedRealServer>, ipvs::Error> {
        self.calls.reads.add(1);
        self.subsystem.real_servers(of)
    }

    fn summaries(&mut self) -> io::Result<Summaries> {
        self.calls.reads.add(1);
        self.subsystem.summaries()
    }

    fn widen_summaries(&mut self, scheduler: Scheduler) -> Result<bool, ipvs::Error> {
        self.subsystem.widen_summaries(scheduler)
    }

    fn may_load(&mut self, scheduler: Scheduler) -> bool {
        self.subsystem.may_load(scheduler)
    }

    fn apply(&mut self, commands: &[Command]) -> Result<Vec<ipvs::FailedRequest>, ipvs::Error> {
        self.calls.writes.add(commands.len());
        self.subsystem.apply(commands)
    }
}

impl Netfilter for CountedCalls<dyn Netfilter + Send> {
    fn observe(&mut self) -> Result<netfilter::Observed, netfilter::Error> {
        self.calls.reads.add(1);
        self.subsystem.observe()
    }

    fn may_differ(&mut self, observed: &netfilter::Observed) -> Result<bool, netfilter::Error> {
        self.calls.reads.add(1);
        self.subsystem.may_differ(observed)
    }

    fn apply(&mut self, changes: &[netfilter::Operation]) -> Result<(), netfilter::Error> {
        self.calls.writes.add(changes.len());
        self.subsystem.apply(changes)
    }
}

impl DummyInterface for CountedCalls<dyn DummyInterface + Send> {
    fn observe(&mut self) -> Result<dummy_interface::Observed, dummy_interface::Error> {
        self.calls.reads.add(1);
        self.subsystem.observe()
    }

    fn apply(
        &mut self,
        changes: &[dummy_interface::Operation],
    ) -> Result<Vec<dummy_interface::FailedRequest>, dummy_interface::Error> {
        self.calls.writes.add(changes.len());
        self.subsystem.apply(changes)
    }
}

#[cfg(test)]
mod tests {
    use ipvs::{Protocol, ServiceAddress, VirtualServer};
    use testkit::FakeKernel;
    use watcher::Observed;

    use super::*;

    #[test]
    fn what_is_read_and_written_is_counted_at_its_seam() {
        let mut registry = Registry::default();
        let calls = KernelCalls::register(&mut registry);
        let (ipvs, netfilter, dummy_interface) = FakeKernel::new().subsystems();
        let mut kernel = calls.counted(Kernel { ipvs, netfilter, dummy_interface });
        kernel.dummy_interface.apply(&[dummy_interface::Operation::EnsureDevice]).unwrap();
        let server = |port| {
            let address = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 1].into(), port };
            Command::AddVirtualServer(VirtualServer::new(address, Scheduler::RR))
        };
        kernel.ipvs.apply(&[server(80), server(81)]).unwrap();
        // The virtual servers, and the real servers of each.
        Observed::read(&mut kernel).unwrap();
        calls.counted_ipvs(FakeKernel::new()).virtual_servers().unwrap();
        let page = registry.text();
        for line in [
            r#"kube_ipvs_kernel_reads_total{subsystem="ipvs"} 4"#,
            r#"kube_ipvs_kernel_reads_total{subsystem="nf_tables"} 1"#,
            r#"kube_ipvs_kernel_reads_total{subsystem="links"} 1"#,
            r#"kube_ipvs_kernel_writes_total{subsystem="ipvs"} 2"#,
            r#"kube_ipvs_kernel_writes_total{subsystem="nf_tables"} 0"#,
            r#"kube_ipvs_kernel_writes_total{subsystem="links"} 1"#,
        ] {
            assert!(page.lines().any(|it| it == line), "{line} is not in\n{page}");
        }
    }
}
