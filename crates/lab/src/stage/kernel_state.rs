//! What a proxy has programmed on a node, as the kernel's own programs list it.

use std::collections::BTreeSet;

use anyhow::Result;
use serde_json::Value;
use testkit::lab::Host;

/// Lines, in whatever order they were programmed. Two are equal if the kernel does the same to packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelState(BTreeSet<String>);

impl KernelState {
    pub(crate) fn read(node: &Host) -> Result<Self> {
        let mut lines: BTreeSet<String> = node.run("ipvsadm", &["-Sn"])?.lines().map(str::to_owned).collect();
        let device = node.run("ip", &["-o", "link", "show", "kube-ipvs0"])?;
        lines.insert(format!("kube-ipvs0 does ARP: {}", !device.contains("NOARP")));
        let addresses = node.run("ip", &["-o", "addr", "show", "dev", "kube-ipvs0"])?;
        lines.extend(
            words(&addresses, 2..4)
                .filter(|address| is_programmed(address))
                .map(|vip| format!("kube-ipvs0 {vip}")),
        );
        let devices = node.run("ip", &["-o", "addr", "show"])?;
        let tunnels = devices.lines().filter(|line| line.contains(" kube-ipvs-tun"));
        let with_name = tunnels.filter(|line| words(line, 2..4).all(|address| is_programmed(&address)));
        lines.extend(with_name.flat_map(|line| words(line, 1..4)));
        let devices = node.run("ip", &["-o", "link", "show", "up"])?;
        let tunnels = devices.lines().filter(|line| line.contains(" kube-ipvs-tun"));
        lines.extend(tunnels.flat_map(|line| words(line, 1..2)).map(|name| format!("{name} is up")));
        for family in ["-4", "-6"] {
            let routes = node.run("ip", &[family, "route", "show", "table", "local", "proto", "73"])?;
            lines.extend(routes.lines().map(|route| format!("route {}", route.trim_end())));
        }
        for family in ["ip", "ip6"] {
            let table = node.run("nft", &["-j", "list", "table", family, "kube-ipvs"])?;
            lines.extend(table_lines(&serde_json::from_str(&table)?));
        }
        Ok(Self(lines))
    }

    /// What is in one of them alone: in this one with `-`, in the other with `+`.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let missing = self.0.difference(&other.0).map(|line| format!("- {line}"));
        let added = other.0.difference(&self.0).map(|line| format!("+ {line}"));
        missing.chain(added).collect()
    }

    /// What does not contain these words.
    pub(crate) fn without(mut self, words: &str) -> Self {
        self.0.retain(|line| !line.contains(words));
        self
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Whether an address is one of ours, not the link-local one that the kernel gives to a device when it is set up. The state
/// of kube-ipvs0 does not matter to VIPs and is left alone: setting it down would lose IPv6 addresses.
fn is_programmed(address: &str) -> bool {
    !address.starts_with("inet6 fe80:")
}

/// Some words of each line.
fn words(text: &str, which: std::ops::Range<usize>) -> impl Iterator<Item = String> {
    text.lines().map(move |line| {
        let words = line.split_whitespace().skip(which.start).take(which.len());
        words.collect::<Vec<_>>().join(" ")
    })
}

/// A table as `nft -j` lists it, one object or element per line, rules with their number in their chain.
fn table_lines(listed: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rules = 0;
    let objects = listed.get("nftables").and_then(Value::as_array).into_iter().flatten();
    for (kind, object) in objects.filter_map(Value::as_object).flatten() {
        // The version of nft.
        if kind == "metainfo" {
            continue;
        }
        let mut object = object.clone();
        let Some(fields) = object.as_object_mut() else { continue };
        // By its handle the kernel knows it, and after a repair it has another.
        fields.remove("handle");
        if kind == "counter" {
            fields.retain(|field, _| !["packets", "bytes"].contains(&field.as_str()));
        }
        let [family, name] = ["family", "name"].map(|field| fields.get(field).cloned().unwrap_or_default());
        let elements = fields.remove("elem");
        for element in elements.iter().filter_map(Value::as_array).flatten() {
            lines.push(format!("{kind} {family} {name} element {element}"));
        }
        let number = if kind == "rule" {
            rules += 1;
            rules
        } else {
            0
        };
        lines.push(format!("{kind} {number} {object}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn state(lines: &[&str]) -> KernelState {
        KernelState(lines.iter().map(|&line| line.to_owned()).collect())
    }

    #[test]
    fn what_only_one_has_is_named_with_its_side() {
        assert_eq!(state(&["a", "b"]).differences(&state(&["b", "c"])), ["- a", "+ c"]);
        assert!(state(&["a"]).differences(&state(&["a"])).is_empty());
    }

    #[test]
    fn tables_are_equal_whatever_their_handles_counts_and_order_of_elements() {
        let table = |handle: u32, elements: Value| {
            json!({"nftables": [
                {"metainfo": {"version": "1"}},
                {"set": {"family": "ip", "name": "vips", "handle": handle, "elem": elements}},
                {"counter": {"family": "ip", "name": "drops", "handle": handle, "packets": handle, "bytes": 60}},
                {"rule": {"family": "ip", "chain": "c", "handle": handle, "expr": [{"drop": null}]}},
            ]})
        };
        let sorted = |table: &Value| table_lines(table).into_iter().collect::<BTreeSet<_>>();
        assert_eq!(sorted(&table(1, json!(["a", "b"]))), sorted(&table(2, json!(["b", "a"]))));
        assert_ne!(sorted(&table(1, json!(["a"]))), sorted(&table(1, json!(["b"]))));
        assert_eq!(sorted(&table(1, json!([]))).len(), 3);
    }
}
