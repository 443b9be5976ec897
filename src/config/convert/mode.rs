//! From another mode to ours: the values of its own fields move to the fields that IPVS mode reads.

use std::mem;

use crate::config::{GoDuration, KubeProxyConfiguration, Origin, Problem, options::Ipvs};

/// The mode of the proxy that is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// kube-ipvs' own mode.
    Ipvs,
    /// kube-proxy's default.
    Iptables,
    /// nftables mode, which has some defaults of its own.
    Nftables,
}

/// The document about this change.
const DOCUMENT: &str = "docs/migration.md#from-iptables-or-nftables-mode";

impl Mode {
    /// The mode of this name.
    pub(super) fn named(name: &str) -> Result<Self, Problem> {
        match name {
            "ipvs" => Ok(Self::Ipvs),
            "iptables" | "" => Ok(Self::Iptables),
            "nftables" => Ok(Self::Nftables),
            other => Err(Problem::Mode(other.to_owned())),
        }
    }

    /// Writes the configuration for our mode. Returns the changes, one line each; a value that moves leaves
    /// the usual one behind.
    pub(super) fn becomes_ours(
        self,
        configuration: &mut KubeProxyConfiguration,
        usual: &KubeProxyConfiguration,
        origin: Origin,
    ) -> Vec<String> {
        let mut change = Change { configuration, usual, origin, notes: Vec::new() };
        match self {
            Self::Ipvs => {}
            Self::Iptables => change.iptables(),
            Self::Nftables => change.nftables(),
        }
        let notes = change.notes;
        "ipvs".clone_into(&mut configuration.mode);
        notes
    }
}

/// A configuration whose mode changes.
struct Change<'a> {
    configuration: &'a mut KubeProxyConfiguration,
    usual: &'a KubeProxyConfiguration,
    origin: Origin<'a>,
    notes: Vec<String>,
}

impl Change<'_> {
    fn iptables(&mut self) {
        self.note("mode", &format!("iptables, kube-proxy's default, becomes ipvs: {DOCUMENT}"));
        let served = mem::replace(
            &mut self.configuration.iptables.localhost_node_ports,
            self.usual.iptables.localhost_node_ports,
        );
        if served == Some(true) {
            self.note(
                "iptables.localhostNodePorts",
                "NodePorts are served at 127.0.0.1 in iptables mode alone",
            );
        }
        self.iptables_periods();
    }

    fn nftables(&mut self) {
        self.note("mode", &format!("nftables becomes ipvs: {DOCUMENT}"));
        // `platformApplyDefaults` in cmd/kube-proxy/app/server_linux.go.
        if self.configuration.node_port_addresses.is_empty() {
            self.configuration.node_port_addresses.push("primary".to_owned());
            self.note(
                "nodePortAddresses",
                "none means primary in nftables mode, and all in ipvs mode: primary is written",
            );
        }
        let KubeProxyConfiguration { iptables, nftables, .. } = &mut *self.configuration;
        let bit = mem::replace(&mut nftables.masquerade_bit, self.usual.nftables.masquerade_bit);
        let another_bit = mem::replace(&mut iptables.masquerade_bit, bit) != bit;
        // The flags for iptables mode count in nftables mode too, but for that of the bit: conversion.go
        // beside KubeProxyConfiguration, `processV1Alpha1Flags` in cmd/kube-proxy/app/options.go.
        let masquerades_all = match self.origin {
            Origin::Flags => iptables.masquerade_all,
            Origin::File(_) => mem::take(&mut nftables.masquerade_all),
        };
        let changes_all = mem::replace(&mut iptables.masquerade_all, masquerades_all) != masquerades_all;
        if another_bit {
            self.note(
                "iptables.masqueradeBit",
                &format!("the value for nftables mode is written, {}", bit.unwrap_or_default()),
            );
        }
        if changes_all {
            self.note(
                "iptables.masqueradeAll",
                &format!("the value for nftables mode is written, {masquerades_all}"),
            );
        }
        match self.origin {
            Origin::Flags => self.iptables_periods(),
            Origin::File(_) => self.nftables_periods(),
        }
    }

    fn iptables_periods(&mut self) {
        self.periods("iptables", |of| [&mut of.iptables.sync_period, &mut of.iptables.min_sync_period]);
    }

    fn nftables_periods(&mut self) {
        self.periods("nftables", |of| [&mut of.nftables.sync_period, &mut of.nftables.min_sync_period]);
    }

    /// Moves the periods of another mode that are not the usual ones to ours, unless ours have been set as
    /// well.
    fn periods(&mut self, part: &str, of: fn(&mut KubeProxyConfiguration) -> [&mut GoDuration; 2]) {
        let ours = |of: &KubeProxyConfiguration| (of.ipvs.sync_period, of.ipvs.min_sync_period);
        if ours(self.configuration) != ours(self.usual) {
            return;
        }
        let [usual_sync, usual_least] = of(&mut self.usual.clone()).map(|period| *period);
        let [sync, least] = of(self.configuration);
        let (sync, least) = (mem::replace(sync, usual_sync), mem::replace(least, usual_least));
        let Ipvs { sync_period, min_sync_period, .. } = &mut self.configuration.ipvs;
        // That of the flags is the other mode's.
        *min_sync_period = GoDuration::default();
        for (field, period, usual, ours) in [
            ("syncPeriod", sync, usual_sync, sync_period),
            ("minSyncPeriod", least, usual_least, min_sync_period),
        ] {
            if period != usual {
                *ours = period;
                let option = self.origin.name(&format!("{part}.{field}"));
                self.notes.push(format!("{option}: {period} is written as ipvs.{field}"));
            }
        }
    }

    fn note(&mut self, field: &str, text: &str) {
        self.notes.push(format!("{}: {text}", self.origin.name(field)));
    }
}
