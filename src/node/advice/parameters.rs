//! Kernel parameters that differ from what the daemon has set at its start, or was asked to.
//!
//! They are set once, and an administrator's later change stays: `sysctl --system` with an old file in /etc/sysctl.d
//! is enough to end all forwarding, and nothing else would report it.

use super::{Advice, Cause, Severity};
use crate::node::sysctl::Differing;

/// One piece of advice for each parameter.
pub(super) fn check(differing: Vec<Differing>) -> impl Iterator<Item = Advice> {
    differing.into_iter().map(|Differing { key, found, wanted, otherwise }| Advice {
        severity: Severity::Warning,
        cause: Cause::Parameter,
        subject: key.to_owned(),
        what: format!("{key} is {found} and not {wanted}: {otherwise}"),
        remedy: format!("sysctl -w {key}={wanted}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_that_is_not_as_wanted_is_named_with_what_it_means() {
        let differing = Differing {
            key: "net.ipv4.ip_forward",
            found: "0".to_owned(),
            wanted: "1",
            otherwise: "the node forwards nothing to its pods",
        };
        let advice: Vec<_> = check(vec![differing]).collect();
        let [advice] = advice.as_slice() else { panic!("{advice:?}") };
        assert_eq!(
            advice.to_string(),
            "net.ipv4.ip_forward is 0 and not 1: the node forwards nothing to its pods; \
             remedy: sysctl -w net.ipv4.ip_forward=1"
        );
        assert_eq!((advice.severity, advice.subject.as_str()), (Severity::Warning, "net.ipv4.ip_forward"));
    }
}
