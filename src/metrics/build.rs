//! The program's version and platform, as metrics.

use std::env::consts::{ARCH, OS};

use prometheus_client::{metrics::gauge::ConstGauge, registry::Registry};

use super::text::Labelled;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Dashboards join on `kubernetes_build_info`, so it is there, with the labels that it has in Kubernetes: what a
/// program in Rust does not have is empty. `kube_ipvs_build_info` is for those who want to know who it is.
pub(super) fn register<'a>(gates: impl IntoIterator<Item = (&'a str, bool)>, registry: &mut Registry) {
    registry.register(
        "kube_ipvs_build_info",
        "Which kube-ipvs this is; the value is always 1",
        one([("version", VERSION.to_owned()), ("platform", platform())]),
    );
    let labels = [
        ("major", env!("CARGO_PKG_VERSION_MAJOR").to_owned()),
        ("minor", env!("CARGO_PKG_VERSION_MINOR").to_owned()),
        ("git_version", format!("v{VERSION}")),
        ("git_commit", String::new()),
        ("git_tree_state", String::new()),
        ("build_date", String::new()),
        ("go_version", String::new()),
        ("compiler", "rustc".to_owned()),
        ("platform", platform()),
    ];
    registry.register(
        "kubernetes_build_info",
        "The version of kube-ipvs; the value is always 1",
        one(labels),
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

/// The platform, as Go calls it.
fn platform() -> String {
    let architecture = match ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{OS}/{architecture}")
}

#[cfg(test)]
mod tests {
    use super::{super::text, *};

    #[test]
    fn the_version_and_the_gates_that_were_given_are_shown() {
        let mut registry = Registry::default();
        register([("AllowServiceExternalIPs", false), ("Other", true)], &mut registry);
        let page = text::encode(&registry);
        let shown = |start: &str| page.lines().find(|line| line.starts_with(start)).unwrap_or_default();
        assert!(shown("kube_ipvs_build_info{").contains(&format!("version=\"{VERSION}\"")), "{page}");
        assert!(shown("kubernetes_build_info{").contains(&format!("git_version=\"v{VERSION}\"")), "{page}");
        assert!(shown("kubernetes_feature_enabled{name=\"Allow").ends_with(" 0"), "{page}");
        assert!(shown("kubernetes_feature_enabled{name=\"Other").ends_with(" 1"), "{page}");
    }
}
