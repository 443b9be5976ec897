//! The programs that are built from the Go module proxy, beside the control plane.

use super::Module;

/// The programs that an operator installs kube-ipvs with, for `tests/api/manifests.rs`. They are a separate Go module, so that
/// a new Helm does not rebuild the control plane.
pub const CLIENTS: Module = Module::plain(
    "clients",
    &[
        ("kubectl", "k8s.io/kubernetes/cmd/kubectl", "k8s.io/kubernetes"),
        ("kubeadm", "k8s.io/kubernetes/cmd/kubeadm", "k8s.io/kubernetes"),
        ("helm", "helm.sh/helm/v4/cmd/helm", "helm.sh/helm/v4"),
    ],
);

/// cosign, which signs and verifies by a key, for the tier release.
pub const COSIGN: Module = Module::plain(
    "cosign",
    &[("cosign", "github.com/sigstore/cosign/v3/cmd/cosign", "github.com/sigstore/cosign/v3")],
);

/// crane, which is a registry of container images in memory, and reads one, for the tier release.
pub const CRANE: Module = Module::plain(
    "crane",
    &[(
        "crane",
        "github.com/google/go-containerregistry/cmd/crane",
        "github.com/google/go-containerregistry",
    )],
);

/// nfpm, which makes packages for distributions of Linux, for `cargo xtask release`.
pub const NFPM: Module = Module::plain(
    "nfpm",
    &[("nfpm", "github.com/goreleaser/nfpm/v2/cmd/nfpm", "github.com/goreleaser/nfpm/v2")],
);

/// promtool, which checks metrics, alerts and the expressions of the dashboard as Prometheus does, for
/// `tests/api/monitoring.rs`.
pub const PROMTOOL: Module = Module {
    tags: "remove_all_sd",
    ..Module::plain(
        "prometheus",
        &[("promtool", "github.com/prometheus/prometheus/cmd/promtool", "github.com/prometheus/prometheus")],
    )
};

/// prom2json, which reads metrics with Prometheus' parser, for `tests/peer/metrics.rs`. By itself: with the parser that
/// promtool needs, prom2json 1.4 panics.
pub const PROM2JSON: Module = Module::plain(
    "prom2json",
    &[("prom2json", "github.com/prometheus/prom2json/cmd/prom2json", "github.com/prometheus/prom2json")],
);

/// What a whole cluster takes beside the control plane and its clients: the programs of its nodes and of its pods, and
/// Kubernetes' own tests.
pub const CLUSTER: Module = Module::plain(
    "cluster",
    &[
        ("kubelet", "k8s.io/kubernetes/cmd/kubelet", "k8s.io/kubernetes"),
        ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager", "k8s.io/kubernetes"),
        ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler", "k8s.io/kubernetes"),
        ("agnhost", "k8s.io/kubernetes/test/images/agnhost", "k8s.io/kubernetes"),
        (
            "regression-issue-74839",
            "k8s.io/kubernetes/test/images/regression-issue-74839",
            "k8s.io/kubernetes",
        ),
        ("e2e.test", "k8s.io/kubernetes/test/e2e", "k8s.io/kubernetes"),
        ("ginkgo", "github.com/onsi/ginkgo/v2/ginkgo", "github.com/onsi/ginkgo/v2"),
    ],
);

/// A cluster's name server. It and Flannel are modules of their own: they require other versions of what Kubernetes requires.
pub const COREDNS: Module =
    Module::plain("coredns", &[("coredns", "github.com/coredns/coredns", "github.com/coredns/coredns")]);

/// A network for pods. Its daemon has C code, which is not called here.
pub const FLANNEL: Module = Module {
    name: "flannel",
    tags: "netgo,osusergo",
    cgo: true,
    programs: &[
        ("flanneld", "github.com/flannel-io/flannel", FLANNEL_NAME),
        ("install-conf", "github.com/flannel-io/flannel/cmd/install_conf", FLANNEL_NAME),
        (
            "flannel",
            "github.com/containernetworking/plugins/plugins/meta/flannel",
            "github.com/containernetworking/plugins",
        ),
    ],
};

/// The module with its manifest.
pub const FLANNEL_NAME: &str = "github.com/flannel-io/flannel";
