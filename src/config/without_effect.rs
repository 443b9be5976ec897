//! kube-proxy's options that are understood and do nothing here.
//!
//! A drop-in must take the command line and the ConfigMap that are there. What would have changed
//! something is named in one warning; what never means anything to IPVS mode on Linux is not.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, parser::ValueSource};
use serde_json::Value;

use super::GoDuration;

/// One option: its flag, its field in the file, the form of its value, and what upstream does when
/// it isn't given. An empty name: there is no such flag, or field.
#[derive(Debug)]
pub(super) struct Known {
    flag: &'static str,
    pub(super) field: &'static str,
    form: Form,
    default: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Duration,
    Integer,
    Number,
    Switch,
    Text,
}

const fn known(flag: &'static str, field: &'static str, form: Form, default: &'static str) -> Known {
    Known { flag, field, form, default }
}

/// What upstream's IPVS mode honours and this program does not yet.
#[rustfmt::skip]
const MISSED: [Known; 21] = [
    known("bind-address-hard-fail", "bindAddressHardFail", Form::Switch, "false"),
    known("config-sync-period", "configSyncPeriod", Form::Duration, "15m"),
    known("conntrack-max-per-core", "conntrack.maxPerCore", Form::Integer, "32768"),
    known("conntrack-min", "conntrack.min", Form::Integer, "131072"),
    known("conntrack-tcp-be-liberal", "conntrack.tcpBeLiberal", Form::Switch, "false"),
    known("conntrack-tcp-timeout-close-wait", "conntrack.tcpCloseWaitTimeout", Form::Duration, "1h"),
    known("conntrack-tcp-timeout-established", "conntrack.tcpEstablishedTimeout", Form::Duration, "24h"),
    known("conntrack-udp-timeout", "conntrack.udpTimeout", Form::Duration, "0s"),
    known("conntrack-udp-timeout-stream", "conntrack.udpStreamTimeout", Form::Duration, "0s"),
    known("healthz-bind-address", "healthzBindAddress", Form::Text, "0.0.0.0:10256"),
    known("healthz-port", "", Form::Integer, "10256"),
    known("ipvs-tcp-timeout", "ipvs.tcpTimeout", Form::Duration, "0s"),
    known("ipvs-tcpfin-timeout", "ipvs.tcpFinTimeout", Form::Duration, "0s"),
    known("ipvs-udp-timeout", "ipvs.udpTimeout", Form::Duration, "0s"),
    known("metrics-bind-address", "metricsBindAddress", Form::Text, "127.0.0.1:10249"),
    known("metrics-port", "", Form::Integer, "10249"),
    known("oom-score-adj", "oomScoreAdj", Form::Integer, "-999"),
    known("profiling", "enableProfiling", Form::Switch, "false"),
    known("show-hidden-metrics-for-version", "showHiddenMetricsForVersion", Form::Text, ""),
    known("vmodule", "logging.vmodule", Form::Text, ""),
    known("", "clientConnection.acceptContentTypes", Form::Text, ""),
];

/// What means nothing to IPVS mode on Linux, or only tunes a client that is not used here.
#[rustfmt::skip]
const MEANINGLESS: [Known; 17] = [
    known("boot-id-file", "", Form::Text, ""),
    known("machine-id-file", "", Form::Text, ""),
    known("iptables-localhost-nodeports", "iptables.localhostNodePorts", Form::Switch, "true"),
    known("iptables-min-sync-period", "iptables.minSyncPeriod", Form::Duration, "1s"),
    known("iptables-sync-period", "iptables.syncPeriod", Form::Duration, "30s"),
    known("kube-api-burst", "clientConnection.burst", Form::Integer, "10"),
    known("kube-api-content-type", "clientConnection.contentType", Form::Text, ""),
    known("kube-api-qps", "clientConnection.qps", Form::Number, "5"),
    known("log-flush-frequency", "logging.flushFrequency", Form::Duration, "5s"),
    known("log-json-info-buffer-size", "logging.options", Form::Text, ""),
    known("log-json-split-stream", "", Form::Switch, "false"),
    known("log-text-info-buffer-size", "", Form::Text, ""),
    known("log-text-split-stream", "", Form::Switch, "false"),
    known("", "nftables", Form::Text, ""),
    known("", "portRange", Form::Text, ""),
    known("", "windowsRunAsService", Form::Switch, "false"),
    known("", "winkernel", Form::Text, ""),
];

/// Every option of this kind.
pub(super) fn all() -> impl Iterator<Item = &'static Known> {
    MISSED.iter().chain(&MEANINGLESS)
}

/// The fields of a configuration file that are set to something which would have changed something.
pub(super) fn in_file(file: &Value) -> Vec<String> {
    let is_set = |known: &&Known| {
        let value = known.field.split('.').try_fold(file, |value, key| value.get(key));
        value.is_some_and(|value| !known.is_default(value))
    };
    let fields = MISSED.iter().filter(|known| !known.field.is_empty());
    fields.filter(is_set).map(|known| known.field.to_owned()).collect()
}

impl Known {
    /// Whether a file that says `value` says nothing: null and zero stand for the default.
    fn is_default(&self, value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            Value::Bool(given) => self.same(&given.to_string()),
            Value::Number(given) => given.as_f64() == Some(0.0) || self.same(&given.to_string()),
            Value::String(given) => given.is_empty() || given == "0s" || self.same(given),
        }
    }

    /// Whether `given` means what upstream does anyway.
    fn same(&self, given: &str) -> bool {
        match (self.form, given.parse::<GoDuration>()) {
            (Form::Duration, Ok(duration)) => self.default.parse() == Ok(duration),
            (Form::Switch, _) => switch(given).is_ok_and(|given| switch(self.default) == Ok(given)),
            _ => given == self.default,
        }
    }

    fn arg(&self) -> Arg {
        let arg =
            Arg::new(self.flag).long(self.flag).value_name("VALUE").hide(true).allow_hyphen_values(true);
        match self.form {
            Form::Duration => arg.value_parser(|text: &str| text.parse::<GoDuration>().map(drop)),
            Form::Integer => arg.value_parser(|text: &str| text.parse::<i32>().map(drop)),
            Form::Number => arg.value_parser(|text: &str| text.parse::<f32>().map(drop)),
            Form::Switch => arg
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_parser(|text: &str| switch(text).map(drop)),
            Form::Text => arg.action(ArgAction::Append).value_parser(|_: &str| Ok::<_, String>(())),
        }
    }
}

/// A boolean as Go's `strconv.ParseBool` takes it.
pub(crate) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

/// The flags of this kind that were given and would have changed something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WithoutEffect(pub Vec<String>);

impl Args for WithoutEffect {
    fn augment_args(command: Command) -> Command {
        command.args(all().filter(|known| !known.flag.is_empty()).map(Known::arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for WithoutEffect {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_set = |known: &&Known| {
            matches.value_source(known.flag) == Some(ValueSource::CommandLine)
                && matches
                    .get_raw(known.flag)
                    .into_iter()
                    .flatten()
                    .any(|given| !known.same(&given.to_string_lossy()))
        };
        let flags = MISSED.iter().filter(|known| !known.flag.is_empty());
        Ok(Self(flags.filter(is_set).map(|known| format!("--{}", known.flag)).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
