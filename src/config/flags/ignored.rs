//! kube-proxy's flags that are taken and do nothing here.

use clap::{ArgAction, Args};

use crate::config::{GoDuration, VModules, file::defaults, switch};

/// Flags for other proxy modes, for another client, and for another way of logging.
///
/// They find their way into the effective configuration nevertheless. One that was set to something else than its
/// default is named in a warning, but for the first two: they say where to read what is not asked for.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub struct IgnoredFlags {
    #[arg(long, hide = true)]
    boot_id_file: Option<String>,
    #[arg(long, hide = true)]
    machine_id_file: Option<String>,

    #[arg(long, hide = true, default_value_t = defaults::CONFIG_SYNC_PERIOD, allow_hyphen_values = true)]
    pub(crate) config_sync_period: GoDuration,
    #[arg(long, hide = true, value_parser = switch, num_args = 0..=1, require_equals = true,
          action = ArgAction::Set, default_value_t = defaults::LOCALHOST_NODE_PORTS, default_missing_value = "true")]
    pub(crate) iptables_localhost_nodeports: bool,
    #[arg(long, hide = true, default_value_t = defaults::MIN_SYNC_PERIOD, allow_hyphen_values = true)]
    pub(crate) iptables_min_sync_period: GoDuration,
    #[arg(long, hide = true, default_value_t = defaults::SYNC_PERIOD, allow_hyphen_values = true)]
    pub(crate) iptables_sync_period: GoDuration,
    #[arg(long, hide = true, default_value_t = defaults::BURST, allow_negative_numbers = true)]
    pub(crate) kube_api_burst: i32,
    #[arg(long, hide = true, default_value_t = defaults::CONTENT_TYPE.to_owned())]
    pub(crate) kube_api_content_type: String,
    #[arg(long, hide = true, default_value_t = defaults::QPS, allow_negative_numbers = true)]
    pub(crate) kube_api_qps: f32,
    #[arg(long, hide = true, value_parser = switch, num_args = 0..=1, require_equals = true,
          action = ArgAction::Set, default_value = "false", default_missing_value = "true")]
    pub(crate) profiling: bool,
    #[arg(long, hide = true, default_value = "")]
    pub(crate) show_hidden_metrics_for_version: String,

    #[arg(long, hide = true, allow_hyphen_values = true)]
    pub(crate) log_flush_frequency: Option<GoDuration>,
    #[arg(long, hide = true)]
    pub(crate) log_json_info_buffer_size: Option<String>,
    #[arg(long, hide = true, value_parser = switch, num_args = 0..=1, require_equals = true,
          action = ArgAction::Set, default_missing_value = "true")]
    pub(crate) log_json_split_stream: Option<bool>,
    #[arg(long, hide = true)]
    pub(crate) log_text_info_buffer_size: Option<String>,
    #[arg(long, hide = true, value_parser = switch, num_args = 0..=1, require_equals = true,
          action = ArgAction::Set, default_missing_value = "true")]
    pub(crate) log_text_split_stream: Option<bool>,
    #[arg(long, hide = true)]
    pub(crate) vmodule: Option<VModules>,
}
