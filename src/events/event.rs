//! What an Event says.

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

/// Who says it.
const CONTROLLER: &str = "kube-ipvs";
/// What was to be done when it was found out.
const ACTION: &str = "ServeAddress";
/// The limits of the API server: pkg/apis/core/validation/events.go.
const LONGEST_NOTE: usize = 1024;
const LONGEST_INSTANCE: usize = 128;

/// The Event that says these texts of the Service with this uid. Its name depends on what it says alone,
/// not on the node or the time.
pub(super) fn warning(
    service: &ObjectName,
    uid: &str,
    reason: Reason,
    texts: &BTreeSet<String>,
    node_name: &str,
) -> Event {
    let (reason, note) = (word(reason), note(texts));
    let ObjectName { namespace, name } = service;
    Event {
        metadata: ObjectMeta {
            namespace: Some(namespace.to_string()),
            name: Some(format!("{name}.{:016x}", digest(&(uid, reason, &note)))),
            ..ObjectMeta::default()
        },
        type_: Some("Warning".to_owned()),
        reason: Some(reason.to_owned()),
        action: Some(ACTION.to_owned()),
        note: Some(note),
        regarding: Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Service".to_owned()),
            namespace: Some(namespace.to_string()),
            name: Some(name.to_string()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        }),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(node_name.chars().take(LONGEST_INSTANCE).collect()),
        event_time: Some(MicroTime(Timestamp::now())),
        ..Event::default()
    }
}

/// The reason in Kubernetes' spelling.
fn word(reason: Reason) -> &'static str {
    match reason {
        Reason::AddressTaken => "AddressTaken",
    }
}

/// As many of the texts, which are sentences, as an Event can hold.
fn note(texts: &BTreeSet<String>) -> String {
    let mut note = String::new();
    for (said, text) in texts.iter().enumerate() {
        let separator = if said == 0 { "" } else { ". " };
        let more = format!(". And {} more", texts.len() - said);
        if said > 0 && note.len() + separator.len() + text.len() + more.len() > LONGEST_NOTE {
            return note + &more;
        }
        note.push_str(separator);
        note.push_str(text);
    }
    note
}

/// The same on every node that runs the same version.
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
        warning(&service, uid, Reason::AddressTaken, &texts(said), node).metadata.name.unwrap()
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
    fn a_long_node_name_is_cut_where_the_api_server_would_refuse_it() {
        let service = ObjectName::new("shop", "web");
        let event = warning(&service, "u", Reason::AddressTaken, &texts(&["a"]), &"n".repeat(253));
        assert_eq!(event.reporting_instance.unwrap().len(), 128);
    }
}
