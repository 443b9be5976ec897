//! What a proxy has made of its node, in lines, and how two nodes differ.
//!
//! The lines are those of `ipvsadm -Sn`, with every option that it prints, and `address IP/LENGTH` for
//! each address on kube-ipvs0.

use std::{collections::BTreeSet, fmt, process::Command};

use anyhow::{Context as _, Result, ensure};
use testkit::lab::Host;

/// The lines of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tables(pub(crate) BTreeSet<String>);

impl Tables {
    /// Reads the kernel.
    pub(crate) fn from_kernel(node: &Host) -> Result<Self> {
        // Started from a thread on the node, programs cost half of what `ip netns exec` takes.
        node.inside(|| {
            let servers = output(Command::new("ipvsadm").arg("-Sn"))?;
            let addresses = output(Command::new("ip").args(["-oneline", "addr", "show"]))?;
            Ok(Self::read(&servers, &addresses))
        })?
    }

    /// What `ipvsadm -Sn` and `ip -oneline addr show` have printed.
    pub(crate) fn read(servers: &str, addresses: &str) -> Self {
        let servers = servers.lines().map(|line| line.trim().to_owned());
        Self(servers.chain(addresses.lines().filter_map(vip)).collect())
    }

    /// Without the lines that are about these addresses.
    pub(crate) fn without(mut self, addresses: &[&str]) -> Self {
        self.0.retain(|line| !addresses.iter().any(|address| is_about(line, address)));
        self
    }
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}: {complaint}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Whether a virtual server, one of its real servers, or a VIP is at this address: whether the line's
/// first address is it.
fn is_about(line: &str, address: &str) -> bool {
    let at = line.split(' ').find(|word| word.contains(['.', ':', '/'])).unwrap_or_default();
    let ip = match at.strip_prefix('[') {
        Some(at) => at.split(']').next(),
        None if at.contains('/') => at.split('/').next(),
        None => at.split(':').next(),
    };
    ip == Some(address)
}

/// A line for `3: kube-ipvs0    inet 10.96.0.1/32 scope …`; none for another interface's address.
fn vip(line: &str) -> Option<String> {
    let mut words = line.split_whitespace().skip(1);
    let on_device = words.next()? == "kube-ipvs0";
    let address = words.nth(1)?;
    on_device.then(|| format!("address {address}"))
}

/// The lines that only one of two nodes has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) only_kube_proxy: BTreeSet<String>,
    pub(crate) only_kube_ipvs: BTreeSet<String>,
}

impl Difference {
    /// How two nodes differ.
    pub(crate) fn between(kube_proxy: &Tables, kube_ipvs: &Tables) -> Self {
        Self {
            only_kube_proxy: kube_proxy.0.difference(&kube_ipvs.0).cloned().collect(),
            only_kube_ipvs: kube_ipvs.0.difference(&kube_proxy.0).cloned().collect(),
        }
    }

    /// Reads declared lines: `kube-proxy: LINE` and `kube-ipvs: LINE`.
    pub(crate) fn parse(lines: &[&str]) -> Result<Self> {
        let mut difference = Self::default();
        for declared in lines {
            let (who, line) = declared.split_once(": ").context("kube-proxy: LINE or kube-ipvs: LINE")?;
            let lines = match who {
                "kube-proxy" => &mut difference.only_kube_proxy,
                "kube-ipvs" => &mut difference.only_kube_ipvs,
                _ => anyhow::bail!("{who} is neither kube-proxy nor kube-ipvs"),
            };
            let known = ["-A ", "-a ", "address "].iter().any(|start| line.starts_with(start));
            ensure!(known, "{line:?} is not a line of a table");
            ensure!(lines.insert(line.to_owned()), "{declared:?} is there twice");
        }
        ensure!(!lines.is_empty(), "there are no lines below");
        Ok(difference)
    }

    /// How many lines differ.
    pub(crate) fn len(&self) -> usize {
        self.only_kube_proxy.len() + self.only_kube_ipvs.len()
    }

    /// What is wrong with this difference where `declared` was expected; nothing if they are the same.
    pub(crate) fn faults(&self, declared: &Self) -> Vec<String> {
        let sides = [
            ("kube-proxy", &self.only_kube_proxy, &declared.only_kube_proxy),
            ("kube-ipvs", &self.only_kube_ipvs, &declared.only_kube_ipvs),
        ];
        let mut faults = Vec::new();
        for (who, seen, declared) in sides {
            faults.extend(seen.difference(declared).map(|line| format!("not declared: {who}: {line}")));
            faults.extend(declared.difference(seen).map(|line| format!("not seen: {who}: {line}")));
        }
        faults
    }
}

impl fmt::Display for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}
