//! Flags that set parameters of the kernel.

use clap::{ArgAction, Args};

use crate::config::{GoDuration, file::defaults, switch};

/// Limits and timeouts of connection tracking and of IPVS, and what becomes of the process when memory is short.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub struct KernelFlags {
    /// Connections that conntrack may hold at least, per CPU, up to 1048576 in all; 0 leaves the kernel's limit
    #[arg(long, value_name = "COUNT", default_value_t = defaults::MAX_PER_CORE, allow_negative_numbers = true)]
    pub conntrack_max_per_core: i32,

    /// Connections that conntrack may hold at least; does not count where the flag before is 0 or exceeds 1048576
    #[arg(long, value_name = "COUNT", default_value_t = defaults::CONNTRACK_MIN, allow_negative_numbers = true)]
    pub conntrack_min: i32,

    /// When conntrack forgets an established TCP connection; 0s leaves the kernel's timeout
    #[arg(long, value_name = "DURATION", default_value_t = defaults::ESTABLISHED_TIMEOUT, allow_hyphen_values = true)]
    pub conntrack_tcp_timeout_established: GoDuration,

    /// When conntrack forgets a TCP connection that one side has closed; 0s leaves the kernel's timeout
    #[arg(long, value_name = "DURATION", default_value_t = defaults::CLOSE_WAIT_TIMEOUT, allow_hyphen_values = true)]
    pub conntrack_tcp_timeout_close_wait: GoDuration,

    /// Let conntrack take TCP packets outside the window for part of their connection
    #[arg(long, value_name = "BOOL", value_parser = switch, num_args = 0..=1, require_equals = true,
          action = ArgAction::Set, default_value = "false", default_missing_value = "true", hide_default_value = true)]
    pub conntrack_tcp_be_liberal: bool,

    /// When conntrack forgets a UDP flow without an answer; 0s leaves the kernel's timeout
    #[arg(long, value_name = "DURATION", default_value = "0s", allow_hyphen_values = true)]
    pub conntrack_udp_timeout: GoDuration,

    /// When conntrack forgets a UDP exchange; 0s leaves the kernel's timeout
    #[arg(long, value_name = "DURATION", default_value = "0s", allow_hyphen_values = true)]
    pub conntrack_udp_timeout_stream: GoDuration,

    /// When IPVS forgets an idle TCP connection; 0s leaves the kernel's timeout
    #[arg(long, value_name = "DURATION", default_value = "0s", allow_hyphen_values = true)]
    pub ipvs_tcp_timeout: GoDuration,

    /// When IPVS forgets a TCP connection that was closed; 0s leaves the kernel's timeout
    #[arg(long, value_name = "DURATION", default_value = "0s", allow_hyphen_values = true)]
    pub ipvs_tcpfin_timeout: GoDuration,

    /// When IPVS forgets a UDP exchange; 0s leaves the kernel's timeout
    #[arg(long, value_name = "DURATION", default_value = "0s", allow_hyphen_values = true)]
    pub ipvs_udp_timeout: GoDuration,

    /// How readily the kernel ends this process when memory is short, from -1000 (never) to 1000
    #[arg(long, value_name = "SCORE", default_value_t = defaults::OOM_SCORE_ADJ, allow_negative_numbers = true)]
    pub oom_score_adj: i32,
}
