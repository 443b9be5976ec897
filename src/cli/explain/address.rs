//! `kube-ipvs explain IP`.

use std::{fmt, net::IpAddr, process::ExitCode};

use operator::explain::kind;
use serde::Serialize;
use service::AddressExplanation;

use super::super::{output::print_as, question::Question};
use crate::serve::control::{Client, Control as _};

/// The answer, as JSON and as text.
#[derive(Serialize)]
#[serde(transparent)]
struct Answer(AddressExplanation);

/// Prints whose an address is on this node, and what is done with it.
pub(super) fn explain(ip: IpAddr, question: &Question) -> anyhow::Result<ExitCode> {
    let ask = |daemon: &Client| daemon.explain_address(ip);
    let answer = Answer(question.answer(ask, |node| Ok(node.explain_address(ip)))?);
    print_as(question.ask.output.format, &answer, || answer.to_string())?;
    Ok(ExitCode::SUCCESS)
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AddressExplanation { ip, owner, vip, uses, refused } = &self.0;
        let bound = if *vip { "bound to this node as a VIP" } else { "not bound as a VIP" };
        writeln!(f, "{ip}: {owner}; {bound}")?;
        let width = uses.iter().map(|it| it.address.to_string().len()).max().unwrap_or_default();
        for it in uses {
            writeln!(f, "  {:width$}  {} of {}", it.address.to_string(), kind(it.kind), it.service)?;
        }
        for (service, refused) in refused {
            writeln!(f, "refused: {service}: {refused}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ipvs::{Protocol, ServiceAddress};
    use service::{AddressKind, AddressOwner, AddressRefusal, AddressUse, RefusedAddress};
    use testkit::documented::assert_explained;

    use super::{super::super::output, *};

    fn answer() -> Answer {
        let ip: IpAddr = [192, 0, 2, 11].into();
        let address = ServiceAddress { protocol: Protocol::Tcp, ip, port: 80 };
        let service = "kube-system/traefik".parse().unwrap();
        let why = AddressRefusal::NodeIp;
        let refused = RefusedAddress { ip, kind: AddressKind::ExternalIp, why };
        Answer(AddressExplanation {
            ip,
            owner: AddressOwner::OtherNode,
            vip: false,
            uses: vec![AddressUse { address, kind: AddressKind::LoadBalancer, service }],
            refused: vec![("default/web".parse().unwrap(), refused)],
        })
    }

    #[test]
    fn its_json_is_documented() {
        let printed = output::json(&answer()).unwrap();
        assert_explained("`kube-ipvs explain 192.0.2.11`", "explain-address", &printed);
    }

    #[test]
    fn its_text_names_the_owner_what_is_served_and_what_is_refused() {
        assert_eq!(
            answer().to_string(),
            "192.0.2.11: an IP of another node; not bound as a VIP\n  \
             TCP 192.0.2.11:80  load balancer of kube-system/traefik\n\
             refused: default/web: spec.externalIPs: 192.0.2.11 is not served: it is a node's IP, which \
             --external-ip-policy does not allow\n"
        );
    }
}
