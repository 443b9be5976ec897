//! `spec.ports`.

use std::fmt;

use service::ServicePort;

use crate::objects::{
    Problems,
    field::{Field, List, Quoted, Text, object, owned},
    values::{optional_port, port, protocol},
};

object! {
    /// A port as it is sent.
    pub(super) struct RawPort<'a> {
        1 unless is_empty => name: Field<Text<'a>>,
        2 unless is_empty => protocol: Field<Text<'a>>,
        3 unless is_empty => port: Field<i64>,
        5 unless is_empty => node_port: Field<i64>,
    }
}

/// The ports of the Service. No two of one protocol have the same number or the same name.
pub(super) fn ports(list: List<RawPort<'_>>, problems: &mut Problems) -> Vec<ServicePort> {
    let list = list.read("spec.ports", problems).unwrap_or_default();
    let mut ports = Vec::<ServicePort>::with_capacity(list.len());
    for (i, field) in list.into_iter().enumerate() {
        let at = format_args!("spec.ports[{i}]");
        let Some(port) = field.read(at, problems).and_then(|raw| service_port(raw, at, problems)) else {
            continue;
        };
        let twin = |other: &&ServicePort| {
            other.protocol == port.protocol && (other.port == port.port || other.name == port.name)
        };
        let ServicePort { name, protocol, port: number, .. } = &port;
        match ports.iter().find(twin) {
            Some(other) if other.port == *number => {
                problems.add(at, format_args!("{protocol} {number} is taken by an earlier port"));
            }
            Some(_) => {
                let name = Quoted(name);
                problems.add(at, format_args!("the {protocol} port name {name} is taken by an earlier port"));
            }
            None => ports.push(port),
        }
    }
    ports
}

fn service_port(raw: RawPort<'_>, at: fmt::Arguments<'_>, problems: &mut Problems) -> Option<ServicePort> {
    // All are read, so that all are reported.
    let name = raw.name.read(format_args!("{at}.name"), problems).unwrap_or_default();
    let protocol = protocol(raw.protocol, format_args!("{at}.protocol"), problems);
    let number = port(raw.port, format_args!("{at}.port"), problems);
    let node_port = optional_port(raw.node_port, format_args!("{at}.nodePort"), problems);
    Some(ServicePort { name: owned(name), protocol: protocol?, port: number?, node_port })
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use serde_json::json;

    use super::super::tests::with_spec;

    #[test]
    fn a_bad_port_is_left_out_and_named() {
        let service = with_spec(json!({"clusterIP": "10.0.0.1", "ports": [
            {"port": 80},
            {"name": "icmp", "port": 1, "protocol": "ICMP"},
            "http",
            {"name": "zero", "port": 0},
            {"name": "text", "port": "80"},
            {"name": "none"},
            {"name": "again", "port": 80},
            {"name": "", "port": 81},
        ]}));
        assert_eq!(service.ports.iter().map(|port| port.port).collect::<Vec<_>>(), [80]);
        assert_eq!(
            service.problems,
            [
                "spec.ports[1].protocol: \"ICMP\" is not TCP, UDP or SCTP",
                "spec.ports[2]: \"http\" is not an object",
                "spec.ports[3].port: 0 is not between 1 and 65535",
                "spec.ports[4].port: \"80\" is not an integer",
                "spec.ports[5].port: not set",
                "spec.ports[6]: TCP 80 is taken by an earlier port",
                "spec.ports[7]: the TCP port name \"\" is taken by an earlier port",
            ]
        );
    }

    #[test]
    fn a_port_without_a_node_port_or_with_a_bad_one_is_served_all_the_same() {
        let service = with_spec(json!({"ports": [
            {"name": "a", "port": 80, "nodePort": 30080},
            {"name": "b", "port": 81},
            {"name": "c", "port": 82, "nodePort": 0},
            {"name": "d", "port": 83, "nodePort": 65536},
            {"name": "e", "port": 84, "nodePort": -1},
            {"name": "f", "port": 85, "nodePort": "30085"},
        ]}));
        let ports = service.ports.iter().map(|port| (port.port, port.node_port.map_or(0, NonZero::get)));
        assert_eq!(ports.collect::<Vec<_>>(), [(80, 30080), (81, 0), (82, 0), (83, 0), (84, 0), (85, 0)]);
        assert_eq!(
            service.problems,
            [
                "spec.ports[3].nodePort: 65536 is not between 1 and 65535",
                "spec.ports[4].nodePort: -1 is not between 1 and 65535",
                "spec.ports[5].nodePort: \"30085\" is not an integer",
            ]
        );
    }
}
