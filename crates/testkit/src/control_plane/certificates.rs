//! The keys of one control plane: a certificate authority, what the API server serves with, and
//! what it signs service account tokens with.

use std::path::Path;

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

pub(super) const SERVING_CERTIFICATE: &str = "apiserver.crt";
pub(super) const SERVING_KEY: &str = "apiserver.key";
pub(super) const SERVICE_ACCOUNT_KEY: &str = "service-account.key";
pub(super) const SERVICE_ACCOUNT_PUBLIC_KEY: &str = "service-account.pub";

/// Writes the files of these names into `directory`, the serving certificate good for
/// `subject_names`. Returns the authority's certificate in PEM; its key is forgotten.
pub(super) fn write(directory: &Path, subject_names: &[String]) -> anyhow::Result<String> {
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

fn serving_params(subject_names: &[String]) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(subject_names)
        .with_context(|| format!("names for a certificate: {}", subject_names.join(", ")))?;
    params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}
