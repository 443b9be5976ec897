//! The Services of type LoadBalancer: each gets an address, and is kept until nothing leads to it any more.

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Mutex, time::Duration};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::locked;
use crate::kubectl::{self, patiently};

/// The addresses: this network's, but for its first and its last.
const NETWORK: Ipv4Addr = Ipv4Addr::new(10, 201, 0, 0);
const HOSTS: std::ops::Range<u32> = 1..255;

/// What a cloud keeps a Service by until its load balancer is gone.
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// How long a change of a Service is tried: no other event repeats it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Those that have an address, by namespace and name.
pub(super) type Balanced = BTreeMap<String, Service>;

/// One of them.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Service {
    pub(super) address: Ipv4Addr,
    /// Where a node says whether it has endpoints, if it matters.
    pub(super) health_check: Option<u16>,
    /// Whether a client stays with one node: each has an affinity of its own to endpoints.
    pub(super) is_sticky: bool,
}

/// Does what an event about a Service asks for.
pub(super) fn balance(event: &Value, balanced: &Mutex<Balanced>) -> Result<()> {
    let seen = Seen(event);
    if seen.wants_an_address() {
        let address = reserve(&seen, balanced)?;
        seen.give(address)
    } else {
        locked(balanced).remove(&seen.key());
        seen.let_go()
    }
}

/// The address that it has, or a free one.
fn reserve(seen: &Seen<'_>, balanced: &Mutex<Balanced>) -> Result<Ipv4Addr> {
    let mut balanced = locked(balanced);
    let key = seen.key();
    let known = balanced.get(&key).map(|service| service.address);
    let is_free = |address: &Ipv4Addr| balanced.values().all(|service| service.address != *address);
    let mut all = HOSTS.map(|host| Ipv4Addr::from(u32::from(NETWORK) + host));
    let address = known.or_else(|| all.find(is_free)).context("no address is left")?;
    let (health_check, is_sticky) = (seen.health_check(), seen.text("/spec/sessionAffinity") == "ClientIP");
    balanced.insert(key, Service { address, health_check, is_sticky });
    Ok(address)
}

/// What an event says of a Service.
struct Seen<'a>(&'a Value);

impl Seen<'_> {
    fn field(&self, pointer: &str) -> Option<&Value> {
        self.0.pointer(&format!("/object{pointer}"))
    }

    fn text(&self, pointer: &str) -> &str {
        self.field(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    fn key(&self) -> String {
        format!("{}/{}", self.text("/metadata/namespace"), self.text("/metadata/name"))
    }

    fn is_gone(&self) -> bool {
        self.0.pointer("/type") == Some(&json!("DELETED"))
    }

    fn is_deleted(&self) -> bool {
        self.is_gone() || !self.text("/metadata/deletionTimestamp").is_empty()
    }

    fn wants_an_address(&self) -> bool {
        self.text("/spec/type") == "LoadBalancer"
            && self.text("/spec/loadBalancerClass").is_empty()
            && !self.is_deleted()
    }

    /// Whether it is one of ours.
    fn is_kept(&self) -> bool {
        let finalizers = self.field("/metadata/finalizers").and_then(Value::as_array);
        finalizers.is_some_and(|all| all.iter().any(|one| one == FINALIZER))
    }

    fn health_check(&self) -> Option<u16> {
        let port = self.field("/spec/healthCheckNodePort").and_then(Value::as_u64);
        port.and_then(|port| u16::try_from(port).ok())
    }

    /// Writes the address into it.
    fn give(&self, address: Ipv4Addr) -> Result<()> {
        if !self.is_kept() {
            self.patch(&json!({"metadata": {"finalizers": [FINALIZER]}}), &[])?;
        }
        if self.text("/status/loadBalancer/ingress/0/ip") != address.to_string() {
            self.patch_status(&json!({"ingress": [{"ip": address, "ipMode": "VIP"}]}))?;
        }
        Ok(())
    }

    /// Takes the address out of it, and lets it be deleted.
    fn let_go(&self) -> Result<()> {
        if self.is_gone() || !self.is_kept() {
            return Ok(());
        }
        if !self.is_deleted() {
            self.patch_status(&Value::Null)?;
        }
        self.patch(&json!({"metadata": {"finalizers": null}}), &[])
    }

    fn patch_status(&self, load_balancer: &Value) -> Result<()> {
        self.patch(&json!({"status": {"loadBalancer": load_balancer}}), &["--subresource=status"])
    }

    fn patch(&self, change: &Value, options: &[&str]) -> Result<()> {
        let (namespace, name) = (self.text("/metadata/namespace"), self.text("/metadata/name"));
        let change = change.to_string();
        let patch = ["--namespace", namespace, "patch", "service", name, "--type=merge", "--patch", &change];
        let words = [&patch[..], options].concat();
        patiently(PATIENCE, || match kubectl::output_of(&words) {
            // It was deleted meanwhile.
            Err(error) if format!("{error:#}").contains("(NotFound)") => Ok(()),
            done => done.map(drop),
        })
    }
}
