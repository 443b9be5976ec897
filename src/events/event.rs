//! The content of an Event.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash, Hasher},
};

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use reconciler::Reason;
use service::ObjectName;

use crate::finding;

/// The controller that Events name as their reporter.
const CONTROLLER: &str = "kube-ipvs";
/// The limits of the API server: pkg/apis/core/validation/events.go.
const LONGEST_NOTE: usize = 1024;
const LONGEST_INSTANCE: usize = 128;
/// How much of an object's name goes into an Event's name; a dot and the digest follow.
const LONGEST_NAME: usize = 253 - 17;

/// The cause of an Event, in Kubernetes' spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cause {
    reason: &'static str,
    /// The action that failed.
    action: &'static str,
    kind: &'static str,
}

impl Cause {
    /// The proxy starts.
    pub const STARTING: Self = Self { kind: "Normal", ..Self::warning("Starting", "StartKubeProxy") };
    /// `/healthz` and `/livez` cannot be served.
    pub const NO_HEALTH_CHECKS: Self = Self::warning("FailedToStartProxierHealthcheck", "StartKubeProxy");
    /// The metrics cannot be served.
    pub const NO_METRICS: Self = Self::warning("FailedToStartMetricServer", "StartKubeProxy");
    /// Without a control socket `kube-ipvs status` gets no answer.
    pub const NO_CONTROL_SOCKET: Self = Self::warning("NoControlSocket", "LookAtNode");
    /// The Node has no pod CIDRs, and the proxy waits for them.
    pub const NO_POD_CIDRS: Self = Self::warning("NoPodCIDRs", "StartKubeProxy");
    /// No Node has the name that the proxy uses.
    pub const NO_SUCH_NODE: Self = Self::warning("NoSuchNode", "LookAtNode");
    /// Another program had changed what was programmed, and it was repaired.
    pub const FOREIGN_CHANGE: Self = Self::warning("ForeignChangeRepaired", "SyncProxyRules");
    /// Virtual servers that belong to no Service were removed.
    pub const FOREIGN_REMOVED: Self = Self::warning("ForeignVirtualServersRemoved", "SyncProxyRules");
    /// A Service's health check port cannot be opened.
    pub const NO_SERVICE_HEALTH_CHECK: Self = Self::warning("FailedToStartServiceHealthcheck", "Listen");

    /// Clients of a Service fail at one of its endpoints.
    pub const ENDPOINT_FAILING: Self = Self::warning("EndpointFailing", "ServeAddress");

    const fn warning(reason: &'static str, action: &'static str) -> Self {
        Self { reason, action, kind: "Warning" }
    }

    /// The cause of a notice: something found out about a Service while it is served.
    pub(super) const fn for_notice(reason: Reason) -> Self {
        match reason {
            Reason::AddressTaken => Self::warning("AddressTaken", "ServeAddress"),
            Reason::AddressRefused => Self::warning("AddressRefused", "ServeAddress"),
            Reason::FieldNotUsed => Self::warning("FieldNotUsed", "ReadService"),
            Reason::EndpointEjected => Self::warning("EndpointEjected", "ServeAddress"),
        }
    }
}

impl From<finding::Cause> for Cause {
    fn from(found: finding::Cause) -> Self {
        Self::warning(found.reason(), "LookAtNode")
    }
}

/// The Event with these texts about the Service with this uid. Its name depends on its content only, not on
/// the node or the time.
pub(super) fn about_service(
    service: &ObjectName,
    uid: &str,
    cause: Cause,
    texts: &BTreeSet<String>,
    node_name: &str,
) -> Event {
    let regarding = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Service".to_owned()),
        namespace: Some(service.namespace().to_owned()),
        name: Some(service.name().to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    };
    event(regarding, cause, texts, node_name)
}

/// The Event with these texts about the node. As in the kubelet, its uid is its name, by which `kubectl
/// describe node` selects; an object without a namespace has its Events in `default`.
pub(super) fn about_node(cause: Cause, texts: &BTreeSet<String>, node_name: &str) -> Event {
    let regarding = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node_name.to_owned()),
        uid: Some(node_name.to_owned()),
        ..ObjectReference::default()
    };
    event(regarding, cause, texts, node_name)
}

fn event(regarding: ObjectReference, cause: Cause, texts: &BTreeSet<String>, node_name: &str) -> Event {
    let note = note(texts);
    let digest = digest(&(regarding.uid.as_deref(), cause.reason, &note));
    Event {
        metadata: ObjectMeta {
            namespace: Some(regarding.namespace.clone().unwrap_or_else(|| "default".to_owned())),
            name: regarding.name.as_deref().map(|name| format!("{}.{digest:016x}", shortened(name))),
            ..ObjectMeta::default()
        },
        type_: Some(cause.kind.to_owned()),
        reason: Some(cause.reason.to_owned()),
        action: Some(cause.action.to_owned()),
        note: Some(note),
        regarding: Some(regarding),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(node_name.chars().take(LONGEST_INSTANCE).collect()),
        event_time: Some(MicroTime(Timestamp::now())),
        ..Event::default()
    }
}

/// The beginning of a name that is still a name: what stands before a dot ends with a letter or a digit.
fn shortened(name: &str) -> &str {
    beginning(name, LONGEST_NAME).trim_end_matches(['-', '.'])
}

/// As many of the texts, which are sentences, as an Event can hold.
fn note(texts: &BTreeSet<String>) -> String {
    let mut note = String::new();
    for (said, text) in texts.iter().enumerate() {
        let separator = if said == 0 { "" } else { ". " };
        let more = format!(". And {} more", texts.len() - said);
        let text = if said == 0 { beginning(text, LONGEST_NOTE - more.len()) } else { text };
        if said > 0 && note.len() + separator.len() + text.len() + more.len() > LONGEST_NOTE {
            return note + &more;
        }
        note.push_str(separator);
        note.push_str(text);
    }
    note
}

/// As much of a text as fits into so many bytes, in whole characters.
fn beginning(text: &str, most: usize) -> &str {
    (0..=most.min(text.len())).rev().find_map(|end| text.get(..end)).unwrap_or_default()
}

/// A number for a value, the same on every node that runs the same version.
pub(super) fn digest(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> BTreeSet<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    fn named(uid: &str, said: &[&str], node: &str) -> String {
        let service = ObjectName::new("shop", "web");
        let cause = Cause::for_notice(Reason::AddressTaken);
        about_service(&service, uid, cause, &texts(said), node).metadata.name.unwrap()
    }

    #[test]
    fn the_name_says_the_service_and_differs_with_the_words_but_not_with_the_node() {
        let name = named("u-1", &["a"], "node-1");
        assert_eq!(name, named("u-1", &["a"], "node-2"));
        assert_ne!(name, named("u-1", &["b"], "node-1"));
        assert_ne!(name, named("u-2", &["a"], "node-1"), "a Service of the same name that came later");
        assert!(name.starts_with("web.") && name.len() == "web.".len() + 16, "{name}");
    }

    #[test]
    fn a_note_has_what_fits_and_counts_the_rest() {
        assert_eq!(note(&texts(&["a", "b"])), "a. b");
        let many: BTreeSet<_> = (0..30).map(|number| format!("{number:099}")).collect();
        let note = note(&many);
        assert!(note.len() <= LONGEST_NOTE, "{}", note.len());
        assert!(note.ends_with("9. And 20 more"), "{note}");
    }

    #[test]
    fn of_a_text_that_alone_is_too_long_the_beginning_is_said() {
        let long = "ä".repeat(LONGEST_NOTE);
        let note = note(&texts(&[&long, "ö"]));
        assert!(note.len() <= LONGEST_NOTE && note.len() > LONGEST_NOTE - 20, "{}", note.len());
        assert!(note.starts_with("ää") && note.ends_with("ä. And 1 more"), "{note}");
    }

    #[test]
    fn an_event_of_the_node_is_where_kubectl_describe_looks_and_each_node_has_its_own() {
        let event = about_node(finding::Cause::HostFirewall.into(), &texts(&["a"]), "node-1");
        let regarding = event.regarding.unwrap();
        assert_eq!((regarding.kind.as_deref(), regarding.namespace), (Some("Node"), None));
        assert_eq!((regarding.name.as_deref(), regarding.uid.as_deref()), (Some("node-1"), Some("node-1")));
        assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
        let name = event.metadata.name.unwrap();
        assert!(name.starts_with("node-1.") && name.len() == "node-1.".len() + 16, "{name}");
        let other = about_node(finding::Cause::HostFirewall.into(), &texts(&["a"]), "node-2");
        assert_ne!(other.metadata.name.unwrap().split('.').next_back(), name.split('.').next_back());
    }

    #[test]
    fn an_event_of_a_node_with_the_longest_name_has_a_name_that_is_short_enough() {
        let node = format!("{}.{}", "n".repeat(235), "o".repeat(17));
        let name =
            about_node(finding::Cause::HostFirewall.into(), &texts(&["a"]), &node).metadata.name.unwrap();
        assert!(name.starts_with(&format!("{}.", "n".repeat(235))) && !name.contains(".."), "{name}");
        assert!(name.len() <= 253, "{}", name.len());
    }

    #[test]
    fn a_long_node_name_is_cut_where_the_api_server_would_refuse_it() {
        let service = ObjectName::new("shop", "web");
        let event = about_service(
            &service,
            "u",
            Cause::for_notice(Reason::AddressTaken),
            &texts(&["a"]),
            &"n".repeat(253),
        );
        assert_eq!(event.reporting_instance.unwrap().len(), 128);
    }
}
