//! The programs that an operator installs kube-ipvs with: kubectl, kubeadm and Helm, for
//! `tests/api/manifests.rs`.
//!
//! They are a separate Go module, so that a new Helm does not rebuild the control plane.

use super::Module;

/// The programs.
pub const MODULE: Module = Module {
    name: "clients",
    tags: "",
    cgo: false,
    programs: &[
        ("kubectl", "k8s.io/kubernetes/cmd/kubectl", "k8s.io/kubernetes"),
        ("kubeadm", "k8s.io/kubernetes/cmd/kubeadm", "k8s.io/kubernetes"),
        ("helm", "helm.sh/helm/v4/cmd/helm", "helm.sh/helm/v4"),
    ],
};
