//! The program's version and platform, as metrics.

use prometheus_client::{metrics::gauge::ConstGauge, registry::Registry};

use super::text::Labelled;
use crate::version::Build;

/// There is no `kubernetes_build_info`: it has the version of a part of Kubernetes, of which there is to be one in a
/// cluster (`KubeVersionMismatch` of kubernetes-mixin), and this is none.
pub(super) fn register<'a>(gates: impl IntoIterator<Item = (&'a str, bool)>, registry: &mut Registry) {
    let Build { version, platform, .. } = Build::this();
    registry.register(
        "kube_ipvs_build_info",
        "Which kube-ipvs this is; the value is always 1",
        one([("version", version), ("platform", platform)]),
    );
    // Of a gate in general availability Kubernetes leaves the stage empty; of others it is not known here.
    let gates = gates.into_iter().map(|(name, on)| {
        ([("name", name.to_owned()), ("stage", String::new())], ConstGauge::new(u64::from(on)))
    });
    registry.register(
        "kubernetes_feature_enabled",
        "The feature gates that were given, and whether they are on",
        gates.collect::<Labelled<_, _>>(),
    );
}

/// 1, for the sake of the labels.
fn one<L>(labels: L) -> Labelled<L, ConstGauge<u64>> {
    Labelled::from_iter([(labels, ConstGauge::new(1))])
}

#[cfg(test)]
mod tests {
    use super::{super::text, *};
    use crate::version::VERSION;

    #[test]
    fn the_version_and_the_gates_that_were_given_are_shown() {
        let mut registry = Registry::default();
        register([("AllowServiceExternalIPs", false), ("Other", true)], &mut registry);
        let page = text::encode(&registry);
        let shown = |start: &str| page.lines().find(|line| line.starts_with(start)).unwrap_or_default();
        assert!(shown("kube_ipvs_build_info{").contains(&format!("version=\"{VERSION}\"")), "{page}");
        assert!(shown("kubernetes_feature_enabled{name=\"Allow").ends_with(" 0"), "{page}");
        assert!(shown("kubernetes_feature_enabled{name=\"Other").ends_with(" 1"), "{page}");
    }

    #[test]
    fn the_version_is_not_counted_among_those_of_kubernetes() {
        let mut registry = Registry::default();
        register([], &mut registry);
        assert!(!text::encode(&registry).contains("kubernetes_build_info"));
    }
}
