//! External addresses that kube-ipvs does not serve, though kube-proxy does (CVE-2020-8554).

use service::{ObjectName, RefusedAddress};

use super::Finding;

/// One finding for each address that a Service will not have.
pub(super) fn check<'a>(
    refused: impl Iterator<Item = (&'a ObjectName, &'a [RefusedAddress])>,
) -> Vec<Finding> {
    let of_service = |(service, refused): (&'a ObjectName, &'a [RefusedAddress])| {
        let finding = move |refused: &RefusedAddress| {
            Finding::warning(service, refused.to_string())
                .remedy("docs/external-addresses.md says which are served; --external-ip-policy serves more")
        };
        refused.iter().map(finding).collect::<Vec<_>>()
    };
    refused.flat_map(of_service).collect()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use ipvs::Protocol;
    use service::{Change, Options, Service, ServicePort, State};

    use super::*;

    #[test]
    fn address_that_a_service_will_not_have_is_a_warning_with_the_reason() {
        let mut state = State::new(Options::new("node"));
        let mut web = Service::new(ObjectName::new("default", "web"));
        web.cluster_ips = vec![IpAddr::from([10, 96, 0, 10])];
        web.ports = vec![ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: None }];
        web.external_ips = vec![IpAddr::from([127, 0, 0, 1])];
        state.apply(Change::ReplaceSlices(Vec::new()));
        state.apply(Change::ReplaceServices(vec![web]));
        let findings = check(state.reports().refused());
        let [finding] = findings.as_slice() else { panic!("{findings:?}") };
        assert_eq!(
            (finding.subject.as_str(), finding.what.as_str()),
            ("default/web", "spec.externalIPs: 127.0.0.1 is not served: it is a loopback address")
        );
    }
}
