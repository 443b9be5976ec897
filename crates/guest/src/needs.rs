//! What each command of `cargo xtask` takes of the machine, found before the command begins.
//!
//! One table, [`TABLE`], names it. Missing packages are installed, or one message names them all.

use anyhow::{Result, bail};

use crate::{
    Kernel,
    go::{
        CLIENTS, CLUSTER, COREDNS, COSIGN, CRANE, FLANNEL, Module, NFPM, PROM2JSON, PROMTOOL, control_plane,
    },
    platform::Platform,
    programs::{self, Program},
    uml,
};

/// A command of `cargo xtask`, or one of its tiers of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// `api-servers`.
    ApiServers,
    /// `book`, `man`, and the tier unit.
    Texts,
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
    Scale,
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
    /// Whether programs for images are built, with a compiler of C for each platform.
    image: Images,
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Images {
    None,
    /// For this machine's processor.
    Here,
    /// For 64-bit ARM.
    Arm64,
    All,
}

const NOTHING: Row =
    Row { task: Task::Texts, kernel: TestKernel::None, go: &[], image: Images::None, programs: &[] };

/// The nodes of a cluster, their router, and the commands on them.
const NODES: &[Program] = &[
    Program { name: "ip", package: "iproute2" },
    Program { name: "nft", package: "nftables" },
    Program { name: "sysctl", package: "procps" },
    Program { name: "ssh", package: "openssh-client" },
    Program { name: "curl", package: "curl" },
];

/// Makes the file system of a node.
pub(crate) const MMDEBSTRAP: Program = Program { name: "mmdebstrap", package: "mmdebstrap" };

/// Their disk.
const DISK: &[Program] = &[
    Program { name: "mkfs.ext4", package: "e2fsprogs" },
    MMDEBSTRAP,
    Program { name: "ssh-keygen", package: "openssh-client" },
    Program { name: "gcc", package: "gcc" },
];

/// What an operator who installs a release has, beside what every Debian has.
const OPERATOR: &[Program] = &[
    Program { name: "minisign", package: "minisign" },
    Program { name: "rpm", package: "rpm" },
    Program { name: "skopeo", package: "skopeo" },
    Program { name: "systemd-analyze", package: "systemd" },
    Program { name: "curl", package: "curl" },
];

/// libFuzzer is compiled from C++.
const FUZZER: &[Program] = &[Program { name: "c++", package: "g++" }];

/// Counts instructions.
pub const VALGRIND: Program = Program { name: "valgrind", package: "valgrind" };

/// Draws the way of a packet.
pub const GRAPHVIZ: Program = Program { name: "dot", package: "graphviz" };

/// Fetches Go.
pub(crate) const PIP: Program = Program { name: "pip3", package: "python3-pip" };

const SERVERS: &Module = &control_plane::MODULE;

/// The table.
const TABLE: &[Row] = &[
    NOTHING,
    Row { task: Task::Vm, kernel: TestKernel::Chosen, ..NOTHING },
    Row { task: Task::Kernel, kernel: TestKernel::Chosen, ..NOTHING },
    Row { task: Task::Demo, kernel: TestKernel::Chosen, ..NOTHING },
    Row { task: Task::DemoWithApi, kernel: TestKernel::Chosen, go: &[SERVERS], ..NOTHING },
    Row { task: Task::Scale, go: &[SERVERS], ..NOTHING },
    Row { task: Task::Chaos, kernel: TestKernel::Chosen, go: &[SERVERS], image: Images::Here, ..NOTHING },
    Row { task: Task::Faults, kernel: TestKernel::Chosen, go: &[SERVERS], ..NOTHING },
    Row { task: Task::Count, programs: &[&[VALGRIND]], ..NOTHING },
    Row {
        task: Task::Measure,
        kernel: TestKernel::Chosen,
        go: &[SERVERS],
        image: Images::Here,
        programs: &[&[VALGRIND]],
    },
    Row {
        task: Task::Bench,
        kernel: TestKernel::Chosen,
        go: &[SERVERS],
        programs: &[&[VALGRIND]],
        ..NOTHING
    },
    Row { task: Task::Api, kernel: TestKernel::Chosen, go: &[SERVERS, &CLIENTS, &PROMTOOL], ..NOTHING },
    Row { task: Task::Peer, kernel: TestKernel::Chosen, go: &[SERVERS, &PROM2JSON], ..NOTHING },
    Row {
        task: Task::ApiServers,
        kernel: TestKernel::Chosen,
        go: &[
            SERVERS,
            &CLIENTS,
            &PROMTOOL,
            &PROM2JSON,
            &control_plane::ALL[0].0,
            &control_plane::ALL[1].0,
            &control_plane::ALL[2].0,
            &control_plane::ALL[3].0,
            &control_plane::ALL[4].0,
        ],
        ..NOTHING
    },
    Row {
        task: Task::Pictures,
        kernel: TestKernel::Chosen,
        go: &[SERVERS],
        programs: &[&[GRAPHVIZ]],
        ..NOTHING
    },
    Row { task: Task::Fuzz, programs: &[FUZZER], ..NOTHING },
    Row { task: Task::Image, image: Images::All, ..NOTHING },
    Row { task: Task::Package, image: Images::All, go: &[&NFPM], ..NOTHING },
    Row { task: Task::Release, image: Images::All, go: &[&NFPM, &CLIENTS], ..NOTHING },
    Row {
        task: Task::TryRelease,
        kernel: TestKernel::Chosen,
        image: Images::All,
        go: &[&NFPM, &CLIENTS, &COSIGN, &CRANE],
        programs: &[OPERATOR],
    },
    Row {
        task: Task::Arm64,
        image: Images::Arm64,
        go: &[SERVERS],
        programs: &[programs::CROSS_CHECKS, programs::GUEST_TOOLS, &[Platform::Arm64.qemu()]],
        ..NOTHING
    },
    Row { task: Task::Cluster, go: &[&CLIENTS, &CLUSTER], programs: &[NODES], ..NOTHING },
    Row {
        task: Task::ClusterUp,
        kernel: TestKernel::UserModeLinux,
        go: &[SERVERS, &CLIENTS, &CLUSTER, &COREDNS, &FLANNEL],
        image: Images::Here,
        programs: &[NODES, DISK],
    },
];

/// Makes sure that all the programs are there that these tasks take, and installs missing packages where it can. `kernel`
/// is the test kernel, which is asked for only if a task runs on one. An error names all that is missing.
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
    fn programs(&self, kernel: Option<&Kernel>) -> Result<Vec<Program>> {
        let mut wanted = self.programs.concat();
        match (self.kernel, kernel) {
            (TestKernel::Chosen, Some(kernel)) => wanted.extend(kernel.programs()?),
            (TestKernel::UserModeLinux, _) => wanted.extend(uml::tools()?),
            _ => {}
        }
        let platforms: &[Platform] = match self.image {
            Images::None => &[],
            Images::Here => &[Platform::HERE],
            Images::Arm64 => &[Platform::Arm64],
            Images::All => &Platform::ALL,
        };
        wanted.extend(platforms.iter().map(|platform| platform.compiler()));
        for module in self.go {
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
