//! What a whole cluster takes beside the control plane and its clients: the programs of its nodes and of its pods, and
//! Kubernetes' own tests.
//!
//! CoreDNS and Flannel are modules of their own: they require other versions of what Kubernetes requires.

use super::Module;

/// The programs.
pub const MODULE: Module = Module {
    name: "cluster",
    tags: "",
    cgo: false,
    programs: &[
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
};

/// The cluster's name server.
pub const COREDNS: Module = Module {
    name: "coredns",
    tags: "",
    cgo: false,
    programs: &[("coredns", "github.com/coredns/coredns", "github.com/coredns/coredns")],
};

/// A network for pods. Its daemon has a part in C, which nobody calls.
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
