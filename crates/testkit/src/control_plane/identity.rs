//! Who may talk to the API server: a static token and a kubeconfig for each.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use k8s_openapi::ByteString;
use serde_json::json;

/// The API server's token file. A line: token, user, uid, groups.
pub(super) const TOKENS: &str = "tokens.csv";

/// Someone the API server knows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Identity {
    /// May do everything: `system:masters` passes by RBAC.
    Admin,
    /// The user whom the API server's own bootstrap policy binds to `system:node-proxier`.
    KubeProxy,
}

impl Identity {
    const ALL: [Self; 2] = [Self::Admin, Self::KubeProxy];

    const fn user(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::KubeProxy => "system:kube-proxy",
        }
    }

    const fn group(self) -> &'static str {
        match self {
            Self::Admin => "system:masters",
            Self::KubeProxy => "system:authenticated",
        }
    }

    /// Not secret: the server listens on loopback, during a test.
    const fn token(self) -> &'static str {
        match self {
            Self::Admin => "admin-token",
            Self::KubeProxy => "kube-proxy-token",
        }
    }

    /// Its kubeconfig in a control plane's directory.
    pub(super) fn kubeconfig(self, directory: &Path) -> PathBuf {
        directory.join(match self {
            Self::Admin => "admin.kubeconfig",
            Self::KubeProxy => "proxy.kubeconfig",
        })
    }
}

/// Writes the token file and everybody's kubeconfig into `directory`.
///
/// `authority` is the certificate to trust, in PEM. The kubeconfigs are JSON, which is YAML too.
pub(super) fn write(directory: &Path, server: SocketAddr, authority: &str) -> anyhow::Result<()> {
    let mut tokens = String::new();
    for identity in Identity::ALL {
        let (user, group, token) = (identity.user(), identity.group(), identity.token());
        writeln!(tokens, "{token},{user},{user},{group}")?;
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "test",
                "cluster": {
                    "server": format!("https://{server}"),
                    "certificate-authority-data": ByteString(authority.into()),
                },
            }],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        });
        let path = identity.kubeconfig(directory);
        std::fs::write(&path, format!("{kubeconfig:#}\n"))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    std::fs::write(directory.join(TOKENS), tokens).with_context(|| format!("writing {TOKENS}"))
}
