//! Real servers as the kernel has them, beside what is wanted.

use std::{collections::BTreeSet, fmt::Write};

use ipvs::ObservedRealServer;

/// A real server, as the kernel has it at all addresses of a part.
#[derive(Default)]
pub(super) struct InKernel {
    pub(super) found: usize,
    pub(super) missing: usize,
    /// The least and the greatest weight.
    weights: Option<(u32, u32)>,
    /// The upper and the lower threshold; 0: none.
    limits: BTreeSet<[u32; 2]>,
    active: u32,
    inactive: u32,
    /// Those of the active ones whose handshake is not over, as far as is known.
    syn_recv: u64,
}

impl InKernel {
    pub(super) fn summary<'a>(servers: impl Iterator<Item = Option<&'a ObservedRealServer>>) -> Self {
        let mut sum = Self::default();
        for server in servers {
            let Some(ObservedRealServer { config, active_connections, inactive_connections, .. }) = server
            else {
                sum.missing += 1;
                continue;
            };
            let (least, most) = sum.weights.unwrap_or((config.weight, config.weight));
            sum.weights = Some((least.min(config.weight), most.max(config.weight)));
            sum.found += 1;
            sum.limits.insert([config.upper_threshold, config.lower_threshold]);
            sum.active = sum.active.saturating_add(*active_connections);
            sum.inactive = sum.inactive.saturating_add(*inactive_connections);
        }
        sum
    }

    /// With so many of its connections in `SYN_RECV`, which IPVS counts as active (`tcp_state_active_table` in
    /// ip_vs_proto_tcp.c): the endpoint has answered none of them.
    pub(super) fn with_syn_recv(mut self, syn_recv: u64) -> Self {
        self.syn_recv = syn_recv;
        self
    }

    /// Describes thresholds in the kernel that differ from the wanted ones, `max-connections` and `resume-below`.
    pub(super) fn other_limit(&self, wanted: [Option<u32>; 2]) -> Option<String> {
        let [most, below] = wanted.map(Option::unwrap_or_default);
        let other = self.limits.iter().find(|it| **it != [most, below])?;
        Some(match *other {
            [0, _] => ", but without limit in the kernel".to_owned(),
            [limit, _] if limit != most => format!(", but with limit {limit} in the kernel"),
            [_, 0] => ", but without resume-below in the kernel".to_owned(),
            [_, limit] => format!(", but with resume-below {limit} in the kernel"),
        })
    }

    /// Describes a real server in the kernel whose desired weight is this, or that is not desired.
    pub(super) fn of_one(&self, wanted: Option<u16>) -> String {
        let Self { weights, active, inactive, syn_recv, .. } = self;
        let (least, most) = weights.unwrap_or_default();
        let active = u64::from(*active).saturating_sub(*syn_recv);
        let mut connections = format!("{active} active and {inactive} inactive connections");
        if *syn_recv > 0 {
            let _ = write!(connections, ", {syn_recv} without an answer (SYN_RECV)");
        }
        let other = |wanted| if most == wanted { least } else { most };
        match wanted.map(u32::from) {
            Some(wanted) if (least, most) == (wanted, wanted) => connections,
            Some(wanted) => format!("but with weight {} in the kernel: {connections}", other(wanted)),
            None if most == 0 => format!("drains with weight 0: {connections}"),
            None => format!("STILL in the kernel with weight {most}: {connections}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use ipvs::RealServer;

    use super::*;

    #[test]
    fn another_limit_in_the_kernel_is_named() {
        let limit_text = |upper_threshold, lower_threshold, wanted| {
            let config = RealServer::masquerade([10, 244, 1, 7].into(), 8080)
                .thresholds(upper_threshold, lower_threshold);
            let observed = ObservedRealServer::new(config);
            InKernel::summary([None, Some(&observed)].into_iter()).other_limit(wanted).unwrap_or_default()
        };
        assert_eq!(limit_text(0, 0, [None, None]), "");
        assert_eq!(limit_text(9, 5, [Some(9), Some(5)]), "");
        assert_eq!(limit_text(0, 0, [Some(9), None]), ", but without limit in the kernel");
        assert_eq!(limit_text(7, 0, [None, None]), ", but with limit 7 in the kernel");
        assert_eq!(limit_text(9, 5, [Some(9), None]), ", but with resume-below 5 in the kernel");
        assert_eq!(limit_text(9, 0, [Some(9), Some(5)]), ", but without resume-below in the kernel");
    }
}
