//! Services that kube-ipvs does not serve.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::input::{Service, ServiceKind};

/// Why a Service is not served at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NotServed {
    /// No Service of this name is known: there is none, or it is not listed since it is headless or another proxy
    /// serves it.
    Unknown,
    /// The label `service.kubernetes.io/service-proxy-name` gives it to another proxy.
    OtherProxy,
    /// `spec.type: ExternalName`.
    ExternalName,
    /// It is headless, or has no ClusterIP yet, or none that can be read.
    NoClusterIp,
}

impl NotServed {
    /// Why a Service is not ours to serve, if it is not.
    pub(crate) fn for_service(service: &Service) -> Option<Self> {
        if service.other_proxy {
            Some(Self::OtherProxy)
        } else if service.kind == ServiceKind::ExternalName {
            Some(Self::ExternalName)
        } else {
            service.cluster_ips.is_empty().then_some(Self::NoClusterIp)
        }
    }
}

impl fmt::Display for NotServed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => {
                "no such Service is known (headless ones, and those with the label \
                 service.kubernetes.io/service-proxy-name, are not asked for)"
            }
            Self::OtherProxy => {
                "the label service.kubernetes.io/service-proxy-name gives it to another proxy"
            }
            Self::ExternalName => "spec.type is ExternalName",
            Self::NoClusterIp => "spec.clusterIPs has no address",
        })
    }
}
