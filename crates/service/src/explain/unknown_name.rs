//! What is wrong with the name of a Service that is not known.

use crate::input::ObjectName;

/// How many Services of the same name in other namespaces are named.
const MAX_NAMESAKES: usize = 5;

/// What may be wrong with a name that no Service has: `svc/web` is easily typed.
pub(super) fn unknown_name<'a, I: Iterator<Item = &'a ObjectName>>(
    unknown: &ObjectName,
    known: impl Fn() -> I,
) -> Vec<String> {
    let (namespace, name) = unknown.parts();
    let mut namesakes: Vec<_> = known().filter(|it| it.name() == name).map(ToString::to_string).collect();
    namesakes.sort_unstable();
    namesakes.truncate(MAX_NAMESAKES);
    let namespace = (!known().any(|it| it.namespace() == namespace))
        .then(|| format!("no Service of the namespace {namespace} is known"));
    let namesakes =
        (!namesakes.is_empty()).then(|| format!("Services of this name: {}", namesakes.join(", ")));
    namespace.into_iter().chain(namesakes).collect()
}
