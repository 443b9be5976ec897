//! Hints for a name that no Service has.

use crate::input::ObjectName;

/// How many Services are suggested.
const MAX_SUGGESTED: usize = 5;

/// How many letters may differ between a name and a suggested one.
const MAX_DISTANCE: usize = 2;

/// Whether the namespace is known, and which Service may have been meant: those of this name in other namespaces, then
/// those of a similar name in this one.
pub(super) fn hints<'a, I: Iterator<Item = &'a ObjectName>>(
    unknown: &ObjectName,
    known: impl Fn() -> I,
) -> Vec<String> {
    let (namespace, name) = unknown.parts();
    let mut suggested: Vec<_> = known()
        .filter_map(|it| {
            let distance = match it.parts() {
                (_, same) if same == name => 0,
                (same, other) if same == namespace => distance(name, other)?,
                _ => return None,
            };
            Some((distance, it))
        })
        .collect();
    suggested.sort_unstable();
    let suggested: Vec<_> = suggested.iter().take(MAX_SUGGESTED).map(|(_, it)| it.to_string()).collect();
    let namespace = (!known().any(|it| it.namespace() == namespace))
        .then(|| format!("no Service of the namespace {namespace} is known"));
    let suggested = (!suggested.is_empty()).then(|| format!("did you mean {}?", suggested.join(", ")));
    namespace.into_iter().chain(suggested).collect()
}

/// How many letters must be inserted, deleted, replaced or swapped with the next to make one name of the other, if that is
/// few in proportion to the name.
fn distance(name: &str, other: &str) -> Option<usize> {
    let limit = MAX_DISTANCE.min(name.len() / 2);
    Some(strsim::osa_distance(name, other)).filter(|distance| *distance <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_in_few_letters_are_similar() {
        assert_eq!(distance("web", "web"), Some(0));
        assert_eq!(distance("wep", "web"), Some(1));
        assert_eq!(distance("chekout", "checkout"), Some(1));
        assert_eq!(distance("frontedn", "frontend"), Some(1));
        assert_eq!(distance("wbe", "web"), Some(1));
        assert_eq!(distance("frontand2", "frontend"), Some(2));
        for (name, other) in [("web", "db"), ("a", "b"), ("web", "website"), ("cache", "queue"), ("", "a")] {
            assert_eq!(distance(name, other), None, "{name} {other}");
        }
    }
}
