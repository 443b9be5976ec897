//! What an option is: where its value is in the configuration, and how its flag and its default set it.

use std::{fmt, net::IpAddr};

use clap::{Arg, ArgMatches, parser::ValueSource};
use serde_json::Value as Json;

use super::{
    KubeProxyConfiguration, Problem,
    flags::Value,
    options::{HEALTHZ_PORT, METRICS_PORT, OPTIONS},
    values::ListenAddress,
};

/// An option: a field of the configuration file, and mostly a flag.
pub(super) struct Opt {
    /// The field's path in the file.
    pub(super) field: &'static str,
    /// The flag that sets the field.
    pub(super) flag: Option<Flag>,
    /// Why the option has no effect, if that is so. A drop-in replacement accepts the present command line
    /// and file.
    pub(super) ignored: Option<&'static str>,
    /// Its value in the configuration.
    pub(super) place: &'static dyn Place,
}

/// The flag of an option.
pub(super) struct Flag {
    /// Its name without hyphens.
    pub(super) name: &'static str,
    /// Whether it overrides the file. Otherwise it has no effect beside one.
    pub(super) overrides_file: bool,
    value_name: &'static str,
    /// The text for `--help`, which omits flags without one.
    help: &'static str,
    adjust: fn(Arg) -> Arg,
}

impl Opt {
    pub(super) const fn new<T: Value>(field: &'static str, place: &'static At<T>) -> Self {
        Self { field, flag: None, ignored: None, place }
    }

    pub(super) const fn flag(
        mut self,
        name: &'static str,
        value_name: &'static str,
        help: &'static str,
    ) -> Self {
        self.flag = Some(Flag { name, value_name, help, overrides_file: false, adjust: |arg| arg });
        self
    }

    pub(super) const fn hidden_flag(self, name: &'static str) -> Self {
        self.flag(name, "VALUE", "")
    }

    pub(super) const fn overrides_file(mut self) -> Self {
        if let Some(flag) = &mut self.flag {
            flag.overrides_file = true;
        }
        self
    }

    pub(super) const fn adjusted(mut self, adjust: fn(Arg) -> Arg) -> Self {
        if let Some(flag) = &mut self.flag {
            flag.adjust = adjust;
        }
        self
    }

    pub(super) const fn ignored(mut self, why: &'static str) -> Self {
        self.ignored = Some(why);
        self
    }
}

/// Where an option's value is in the configuration.
pub(super) struct At<T> {
    pub(super) get: fn(&KubeProxyConfiguration) -> &T,
    pub(super) get_mut: fn(&mut KubeProxyConfiguration) -> &mut T,
    /// What an unset value means.
    pub(super) default: fn() -> T,
    /// Refuses what kube-proxy refuses too. The values that have an effect are checked where they become
    /// [`Settings`](super::Settings).
    pub(super) check: fn(&T) -> Result<(), Problem>,
}

/// `at!(PATH = DEFAULT; CHECK)`: without a default an unset value means its type's zero.
macro_rules! at {
    ($($field:ident).+) => { at!($($field).+, Default::default, |_| Ok(())) };
    ($($field:ident).+; $check:expr) => { at!($($field).+, Default::default, $check) };
    ($($field:ident).+ = $default:expr) => { at!($($field).+, || $default, |_| Ok(())) };
    ($($field:ident).+ = $default:expr; $check:expr) => { at!($($field).+, || $default, $check) };
    ($($field:ident).+, $default:expr, $check:expr) => {
        &At { get: |all| &all.$($field).+, get_mut: |all| &mut all.$($field).+, default: $default, check: $check }
    };
}
pub(super) use at;

/// What can be done with the value of any option.
pub(super) trait Place: Sync {
    /// Whether the two configurations have different values.
    fn differs(&self, one: &KubeProxyConfiguration, other: &KubeProxyConfiguration) -> bool;
    /// Copies the value.
    fn copy(&self, from: &KubeProxyConfiguration, to: &mut KubeProxyConfiguration);
    /// Gives an unset value its default.
    fn fill(&self, configuration: &mut KubeProxyConfiguration);
    /// Refuses a value that kube-proxy refuses too.
    fn check(&self, configuration: &KubeProxyConfiguration) -> Result<(), Problem>;
    /// Defines which values the flag takes.
    fn define(&self, flag: Arg) -> Arg;
    /// Takes the value from the flag. Returns whether it has one.
    fn take(&self, matches: &ArgMatches, flag: &str, to: &mut KubeProxyConfiguration) -> bool;
}

impl<T: Value> Place for At<T> {
    fn differs(&self, one: &KubeProxyConfiguration, other: &KubeProxyConfiguration) -> bool {
        (self.get)(one) != (self.get)(other)
    }

    fn copy(&self, from: &KubeProxyConfiguration, to: &mut KubeProxyConfiguration) {
        (self.get_mut)(to).clone_from((self.get)(from));
    }

    fn fill(&self, configuration: &mut KubeProxyConfiguration) {
        let value = (self.get_mut)(configuration);
        if value.is_unset() {
            *value = (self.default)();
        }
    }

    fn check(&self, configuration: &KubeProxyConfiguration) -> Result<(), Problem> {
        (self.check)((self.get)(configuration))
    }

    fn define(&self, flag: Arg) -> Arg {
        T::define(flag)
    }

    fn take(&self, matches: &ArgMatches, flag: &str, to: &mut KubeProxyConfiguration) -> bool {
        let Some(value) = T::given(matches, flag) else { return false };
        *(self.get_mut)(to) = value;
        true
    }
}

impl Opt {
    /// The definition of the flag, if there is one, with its default as the help shows it.
    pub(super) fn argument(&self, default: &'static str) -> Option<Arg> {
        let Flag { name, overrides_file, value_name, help, adjust } = self.flag.as_ref()?;
        let arg = self.place.define(Arg::new(*name).long(*name).value_name(*value_name));
        let mark = if *overrides_file { " *" } else { "" };
        let arg = arg.help(format!("{help}{mark}")).hide(help.is_empty());
        // A flag that overrides the file is not set by default.
        let default = (!default.is_empty() && !overrides_file).then_some(default);
        let arg = arg.hide_default_value(default == Some("false"));
        Some(adjust(match default {
            Some(default) => arg.default_value(default),
            None => arg,
        }))
    }

    /// The value in the tree of a configuration, as help and documents show it; empty for none.
    pub(super) fn text(&self, tree: &Json) -> String {
        match self.field.split('.').try_fold(tree, |tree, name| tree.get(name)) {
            Some(Json::String(text)) => text.clone(),
            Some(Json::Number(number)) => number.as_f64().unwrap_or_default().to_string(),
            Some(Json::Bool(on)) => on.to_string(),
            _ => String::new(),
        }
    }

    /// Takes the value of the flag. Returns whether it was given.
    pub(super) fn take(&self, matches: &ArgMatches, to: &mut KubeProxyConfiguration) -> bool {
        let Some(Flag { name, .. }) = self.flag else { return false };
        matches.value_source(name) == Some(ValueSource::CommandLine) && self.place.take(matches, name, to)
    }
}

impl fmt::Debug for Opt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.field)
    }
}

impl KubeProxyConfiguration {
    /// `bindAddress`: this node's own address, or all of a family.
    pub fn bind_address(&self) -> &str {
        &self.bind_address
    }

    /// The feature gates that were given, and whether they are on.
    pub fn feature_gates(&self) -> impl Iterator<Item = (&str, bool)> {
        self.feature_gates.given()
    }

    /// What a file without any field means.
    pub(super) fn of_empty_file() -> Self {
        let mut configuration = Self::default();
        configuration.fill();
        configuration
    }

    /// The meaning of no flags. kube-proxy has taken the iptables mode's least time between two syncs by
    /// the time it reads the mode.
    pub(super) fn of_no_flags() -> Self {
        let mut configuration = Self::of_empty_file();
        configuration.ipvs.min_sync_period = configuration.iptables.min_sync_period;
        configuration
    }

    /// Fills in what a file leaves to the program.
    pub(super) fn fill(&mut self) {
        self.fill_zeros();
        self.fill_listen_addresses();
    }

    /// Fills in all but the addresses of health and metrics, which a flag can leave empty.
    pub(super) fn fill_zeros(&mut self) {
        for option in OPTIONS {
            option.place.fill(self);
        }
    }

    /// Fills in the addresses of health and metrics, with their ports.
    pub(super) fn fill_listen_addresses(&mut self) {
        // As the bind address is of one family, so are these.
        let (any, loopback) = match self.bind_address.parse() {
            Ok(IpAddr::V6(_)) => ("::", "::1"),
            _ => ("0.0.0.0", "127.0.0.1"),
        };
        for (address, usual, port) in [
            (&mut self.healthz_bind_address, any, HEALTHZ_PORT),
            (&mut self.metrics_bind_address, loopback, METRICS_PORT),
        ] {
            if address.is_empty() {
                *address = ListenAddress(usual.to_owned());
            }
            *address = address.with_port(port);
        }
    }

    /// The options without effect whose value is not the usual one.
    pub(super) fn ignored<'a>(&'a self, usual: &'a Self) -> impl Iterator<Item = &'static Opt> + 'a {
        OPTIONS.iter().filter(|option| option.ignored.is_some() && option.place.differs(self, usual))
    }
}
