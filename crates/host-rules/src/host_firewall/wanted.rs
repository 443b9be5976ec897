//! What rules of ours are to accept in a chain of the host that drops.

use netfilter::{HostFirewall, Policy};

use super::chain::{Hook, HostChain};

/// What one rule accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    /// Packets whose mark has these bits.
    Marked(u32),
    /// Packets of connections that conntrack knows, and of those that belong to one: `ct state
    /// established,related`.
    Known,
}

/// Whether the policy asks for rules of ours in this chain, if it drops.
pub fn wants_rules(policy: &Policy, chain: &HostChain) -> bool {
    !wanted(policy, chain).is_empty()
}

/// What the policy asks for in this chain; nothing if there is to be no rule of ours.
///
/// kube-proxy in ipvs mode has its rules in iptables' chains (`writeIptablesRules` in pkg/proxy/ipvs/proxier.go of
/// Kubernetes 1.36): in FORWARD both of these, in INPUT one for health checks, which have our mark.
pub(super) fn wanted(policy: &Policy, chain: &HostChain) -> Vec<Accepted> {
    match policy.host_firewall {
        HostFirewall::Warn => Vec::new(),
        HostFirewall::AsKubeProxy if !chain.belongs_to_iptables() => Vec::new(),
        HostFirewall::AsKubeProxy if chain.hook == Hook::Forward => {
            vec![Accepted::Known, Accepted::Marked(policy.mark)]
        }
        HostFirewall::AsKubeProxy | HostFirewall::Accept => vec![Accepted::Marked(policy.accept_mark())],
    }
}
