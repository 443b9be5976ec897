//! The operations of a sync as text.

use std::collections::BTreeMap;

use reconciler::FirstNamed;
use service::ObjectName;
use watcher::OperationKind;

/// Operations that were carried out, by their counts: `2 VIPs bound; 3 real servers and 1 virtual server added`.
pub(super) fn done(kinds: &BTreeMap<OperationKind, usize>) -> String {
    counted(kinds, "")
}

/// Operations that are to be carried out: `2 VIPs to be bound`.
pub(super) fn to_do(kinds: &BTreeMap<OperationKind, usize>) -> String {
    counted(kinds, "to be ")
}

/// `, for default/web and 3 more`; nothing for no Service.
pub(super) fn for_services(services: &FirstNamed<ObjectName>) -> String {
    if services.count == 0 { String::new() } else { format!(", for {services}") }
}

fn counted(kinds: &BTreeMap<OperationKind, usize>, before_verb: &str) -> String {
    let mut by_verb: Vec<(&str, Vec<String>)> = Vec::new();
    // Clients notice the last kinds first.
    for (kind, count) in kinds.iter().rev() {
        let (noun, verb) = words(*kind);
        let counted = if *count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") };
        match by_verb.iter_mut().find(|(known, _)| *known == verb) {
            Some((_, nouns)) => nouns.push(counted),
            None => by_verb.push((verb, vec![counted])),
        }
    }
    let phrases: Vec<_> =
        by_verb.iter().map(|(verb, nouns)| format!("{} {before_verb}{verb}", listed(nouns))).collect();
    phrases.join("; ")
}

/// `a`, `a and b`, `a, b and c`.
fn listed(nouns: &[String]) -> String {
    match nouns {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => nouns.concat(),
    }
}

/// The kind of an operation's object, and what the operation does to it.
fn words(kind: OperationKind) -> (&'static str, &'static str) {
    match kind {
        OperationKind::PrepareTable => ("table", "prepared"),
        OperationKind::InstallTable => ("table", "installed"),
        OperationKind::AddDirectReturn => ("direct-return part", "added"),
        OperationKind::RemoveDirectReturn => ("direct-return part", "removed"),
        OperationKind::EnsureDevice => ("device", "set up"),
        OperationKind::EnsureTunnel => ("tunnel", "set up"),
        OperationKind::RemoveTunnel => ("tunnel", "removed"),
        OperationKind::AddElement => ("set element", "added"),
        OperationKind::DeleteElement => ("set element", "removed"),
        OperationKind::AddVirtualServer => ("virtual server", "added"),
        OperationKind::EditVirtualServer => ("virtual server", "changed"),
        OperationKind::DeleteVirtualServer => ("virtual server", "removed"),
        OperationKind::AddRealServer => ("real server", "added"),
        OperationKind::EditRealServer => ("real server", "changed"),
        OperationKind::DeleteRealServer => ("real server", "removed"),
        OperationKind::Bind => ("VIP", "bound"),
        OperationKind::Unbind => ("VIP", "unbound"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted_by_what_became_of_what() {
        let done = |kinds: &[(OperationKind, usize)]| super::done(&kinds.iter().copied().collect());
        assert_eq!(done(&[(OperationKind::Bind, 1)]), "1 VIP bound");
        assert_eq!(
            done(&[
                (OperationKind::AddElement, 40),
                (OperationKind::AddVirtualServer, 1),
                (OperationKind::AddRealServer, 3),
                (OperationKind::DeleteRealServer, 1),
                (OperationKind::EditRealServer, 2),
            ]),
            "1 real server removed; 2 real servers changed; 3 real servers, 1 virtual server and 40 set elements added"
        );
        assert_eq!(done(&[]), "");
        let lacking = [(OperationKind::AddVirtualServer, 1), (OperationKind::Bind, 2)].into();
        assert_eq!(to_do(&lacking), "2 VIPs to be bound; 1 virtual server to be added");
    }
}
