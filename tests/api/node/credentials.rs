//! Certificates that are renewed in their files, with a real kube-apiserver.

use std::fs;

use anyhow::ensure;
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use testkit::{
    control_plane::ControlPlane,
    daemon::{Daemon, eventually},
};

use super::{lab, register};

/// One that has signed nothing: its key is forgotten.
const ANOTHER: &str = "\
-----BEGIN CERTIFICATE-----
MIIBjzCCATWgAwIBAgIUZaJh2jl/tzG5i71V55pIhFAidswwCgYIKoZIzj0EAwIw
HDEaMBgGA1UEAwwRYW5vdGhlciBhdXRob3JpdHkwIBcNMjYxMTIyMTcwNDUwWhgP
MjEyNjEwMjkxNzA0NTBaMBwxGjAYBgNVBAMMEWFub3RoZXIgYXV0aG9yaXR5MFkw
EwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE1NBr9tR9PPlhejeKam3mvNIOzk5HioMS
CEPAMJdcVEGOtDyB0/aZdqJ32G2u3TiACaqKrZrwt0qYErt/oCnUMqNTMFEwHQYD
VR0OBBYEFNPabbMI9BUqD9CtiAaASfy+VQx7MB8GA1UdIwQYMBaAFNPabbMI9BUq
D9CtiAaASfy+VQx7MA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIg
e+rh+k4jHOHh8B/dw7bgeON0xFVqrzzv4JjY1eVQ0rcCIQCHJhV7hfBX7aEe/sxY
9j2R4b9DjJKvo4a5sl8EfoFwcg==
-----END CERTIFICATE-----
";

#[test]
#[ignore = "needs root, ip_vs and kube-apiserver: cargo xtask test --tier api"]
fn a_renewed_certificate_authority_ends_the_daemon_for_a_restart() {
    let Some(server) = ControlPlane::from_env_or_skip().unwrap() else { return };
    let files = tempfile::tempdir().unwrap();
    let path = |name: &str| files.path().join(name);
    let kubeconfig = fs::read_to_string(server.proxy_kubeconfig()).unwrap();
    let mut kubeconfig: Value = serde_json::from_str(&kubeconfig).unwrap();
    let encoded = kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"].clone();
    let ByteString(right) = serde_json::from_value(encoded).unwrap();
    let url = kubeconfig["clusters"][0]["cluster"]["server"].clone();
    kubeconfig["clusters"][0]["cluster"] = json!({"server": url, "certificate-authority": path("ca.crt")});
    fs::write(path("kubeconfig"), kubeconfig.to_string()).unwrap();
    fs::write(path("ca.crt"), ANOTHER).unwrap();

    let lab = lab(0, &server);
    register(&lab, &server, "node", None);
    let start =
        || Daemon::start(&lab.node, &["--kubeconfig", &path("kubeconfig").to_string_lossy()]).unwrap();
    let daemon = start();
    eventually("the server is not trusted", || {
        let status = daemon.ask(&lab.node, "status")?;
        ensure!(status.contains("certificate"), "{status}");
        Ok(())
    })
    .unwrap();

    // The daemon does not end because of half a file.
    fs::write(path("ca.crt"), "-----BEGIN CERTIFICATE-----\n").unwrap();
    eventually("the log says that it is not used", || {
        ensure!(daemon.log().contains("continuing with what was read before"), "{}", daemon.log());
        Ok(())
    })
    .unwrap();
    fs::write(path("ca.crt"), right).unwrap();
    let (code, said) = daemon.ended().unwrap();
    assert_eq!(code, Some(1), "{said}");
    let line = said.lines().last().unwrap();
    assert!(line.contains("ca.crt: the way to the API server has changed; exiting"), "{said}");

    let daemon = start();
    eventually("the Services are known", || {
        let status = daemon.ask(&lab.node, "status")?;
        ensure!(!status.contains("certificate"), "{status}");
        Ok(())
    })
    .unwrap();
}
