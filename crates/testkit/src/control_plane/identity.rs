//! Who may talk to the API server: a static token and a kubeconfig for each.

use std::{
    fmt::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use serde_json::json;

/// The API server's token file. A line: token, user, uid, groups.
pub(super) const TOKENS: &str = "tokens.csv";

/// Someone the API server knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    user: &'static str,
    group: &'static str,
    /// Not secret: the server listens on loopback, during a test.
    token: &'static str,
    /// The name of its kubeconfig.
    kubeconfig: &'static str,
}

/// May do everything: `system:masters` passes by RBAC.
pub(super) const ADMIN: Identity =
    Identity { user: "admin", group: "system:masters", token: "admin-token", kubeconfig: "admin.kubeconfig" };

/// The user whom the API server's own bootstrap policy binds to `system:node-proxier`.
pub(super) const KUBE_PROXY: Identity = Identity {
    user: "system:kube-proxy",
    group: "system:authenticated",
    token: "kube-proxy-token",
    kubeconfig: "proxy.kubeconfig",
};

impl Identity {
    /// Its kubeconfig in a control plane's directory.
    pub(super) fn kubeconfig(self, directory: &Path) -> PathBuf {
        directory.join(self.kubeconfig)
    }
}

/// Writes the token file and each identity's kubeconfig into `directory`.
///
/// `authority` is the certificate to trust, in PEM. The kubeconfigs are JSON, which is YAML too.
pub(super) fn write(directory: &Path, server: SocketAddr, authority: &str) -> anyhow::Result<()> {
    let mut tokens = String::new();
    for identity in [ADMIN, KUBE_PROXY] {
        let Identity { user, group, token, .. } = identity;
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

pub(super) const SERVING_CERTIFICATE: &str = "apiserver.crt";
pub(super) const SERVING_KEY: &str = "apiserver.key";
pub(super) const SERVICE_ACCOUNT_KEY: &str = "service-account.key";
pub(super) const SERVICE_ACCOUNT_PUBLIC_KEY: &str = "service-account.pub";

/// Writes the files of these names into `directory`, the serving certificate good for
/// `subject_names`. Returns the authority's certificate in PEM; its key is forgotten.
pub(super) fn write_certificates(directory: &Path, subject_names: Vec<String>) -> anyhow::Result<String> {
    let authority = authority().context("making a certificate authority")?;
    let serving_key = KeyPair::generate()?;
    let serving_certificate = serving_params(subject_names)?
        .signed_by(&serving_key, &authority)
        .context("signing a certificate")?;
    let service_account = KeyPair::generate()?;
    for (name, text) in [
        (SERVING_CERTIFICATE, serving_certificate.pem()),
        (SERVING_KEY, serving_key.serialize_pem()),
        (SERVICE_ACCOUNT_KEY, service_account.serialize_pem()),
        (SERVICE_ACCOUNT_PUBLIC_KEY, service_account.public_key_pem()),
    ] {
        std::fs::write(directory.join(name), text).with_context(|| format!("writing {name}"))?;
    }
    Ok(authority.pem())
}

fn authority() -> Result<CertifiedIssuer<'static, KeyPair>, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "kube-ipvs tests");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate()?)
}

fn serving_params(subject_names: Vec<String>) -> anyhow::Result<CertificateParams> {
    let names = subject_names.join(", ");
    let mut params =
        CertificateParams::new(subject_names).with_context(|| format!("names for a certificate: {names}"))?;
    params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}
