//! Flags for what is served by HTTP.

use clap::{ArgAction, Args, value_parser};

use crate::config::{ServiceMetrics, file::defaults, switch};

/// Where health and metrics are served.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub struct ListenFlags {
    /// Where /healthz and /livez are served; empty: nowhere
    #[arg(long, value_name = "IP:PORT", default_value_t = format!("0.0.0.0:{}", defaults::HEALTHZ_PORT))]
    pub healthz_bind_address: String,

    /// The port for --healthz-bind-address without one; 0: health is served nowhere. Deprecated.
    #[arg(long, hide = true, value_parser = value_parser!(i32).range(0..=65_535), allow_negative_numbers = true)]
    pub healthz_port: Option<i32>,

    /// Where /metrics is served; empty: nowhere
    #[arg(long, value_name = "IP:PORT", default_value_t = format!("127.0.0.1:{}", defaults::METRICS_PORT))]
    pub metrics_bind_address: String,

    /// The port for --metrics-bind-address without one; 0: metrics are served nowhere. Deprecated.
    #[arg(long, hide = true, value_parser = value_parser!(i32).range(0..=65_535), allow_negative_numbers = true)]
    pub metrics_port: Option<i32>,

    /// Show in /metrics what each Service carries, or each of its endpoints too: ten series and six more *
    #[arg(long, value_name = "OF", default_value = "off")]
    pub service_metrics: ServiceMetrics,

    /// End when one of these addresses cannot be bound, instead of trying again
    #[arg(long, value_name = "BOOL", value_parser = switch, num_args = 0..=1, require_equals = true,
          action = ArgAction::Set, default_value = "false", default_missing_value = "true", hide_default_value = true)]
    pub bind_address_hard_fail: bool,
}

impl ListenFlags {
    /// What is said of flags that are about to go.
    pub(crate) fn deprecated(&self) -> impl Iterator<Item = String> {
        let given = [
            ("--healthz-port", self.healthz_port, "--healthz-bind-address"),
            ("--metrics-port", self.metrics_port, "--metrics-bind-address"),
        ];
        let given = given.into_iter().filter(|(_, port, _)| port.is_some());
        given.map(|(flag, _, instead)| {
            format!("{flag} is deprecated and counts only where {instead} has no port")
        })
    }
}
