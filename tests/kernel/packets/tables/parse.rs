//! Reading a table. Nothing in it is skipped: what is not understood is an error with its line.

use std::collections::BTreeSet;

use ipvs::{Family, Protocol};

use super::table::{By, Destination, Outcome, Row, Service, Step, Table, Way};

/// The hosts that ask or are asked. `loopback` is the node, asking from its loopback address.
pub(super) const HOSTS: [&str; 8] =
    ["client", "office", "node", "node-2", "pod-1", "pod-2", "pod-3", "loopback"];

/// Who can be an endpoint; `node` is a pod with the node's own network.
const ENDPOINTS: [&str; 4] = ["node", "pod-1", "pod-2", "pod-3"];

/// Whom else a server can see: the node by its node IP, although its address on their link is another one.
pub(super) const NODE_IP: &str = "node-ip";

impl Table {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut table = Self { services: Vec::new(), steps: Vec::new() };
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            table.take(index + 1, line).map_err(|error| format!("line {}: {error}: {line}", index + 1))?;
        }
        Ok(table)
    }

    fn take(&mut self, line: usize, text: &str) -> Result<(), String> {
        match text.split_whitespace().collect::<Vec<_>>()[..] {
            [] => {}
            ["service", name, ref fields @ ..] => {
                let service = Service::parse(name, fields)?;
                if !self.steps.is_empty() || self.service(name).is_ok() {
                    return Err("a Service comes once, and before the daemon".to_owned());
                }
                for other in service.load_balancer_of.iter().chain(&service.external_ip_of) {
                    self.service(other)?;
                }
                self.services.push(service);
            }
            ["daemon", ref arguments @ ..] => {
                let arguments = arguments.iter().map(ToString::to_string);
                self.steps.push(Step::Daemon(arguments.collect()));
            }
            ["nft", file] => self.steps.push(Step::Nft(file.to_owned())),
            ["tunnel", from, "to", pod, "for", service, way] => self.tunnel(from, from, pod, service, way)?,
            ["tunnel", from, "as", like, "to", pod, "for", service, way] => {
                self.tunnel(from, like, pod, service, way)?;
            }
            ["iptables", file] => self.steps.push(Step::Iptables(file.to_owned())),
            _ => {
                let row = self.row(line, text)?;
                match self.steps.last_mut() {
                    Some(Step::Rows(rows)) => rows.push(row),
                    Some(_) => self.steps.push(Step::Rows(vec![row])),
                    None => return Err("a row before the daemon".to_owned()),
                }
            }
        }
        Ok(())
    }

    fn tunnel(&mut self, from: &str, like: &str, pod: &str, service: &str, way: &str) -> Result<(), String> {
        let (from, like, pod) = (one_of(&HOSTS, from)?, one_of(&HOSTS, like)?, one_of(&ENDPOINTS, pod)?);
        let service = Destination::Service(self.service(service)?.name.clone(), Way::parse(way)?);
        self.steps.push(Step::Tunnel { from, like, pod, service });
        Ok(())
    }

    fn service(&self, name: &str) -> Result<&Service, String> {
        let found = self.services.iter().find(|service| service.name == name);
        found.ok_or_else(|| format!("no Service {name}"))
    }

    fn row(&self, line: usize, text: &str) -> Result<Row, String> {
        let (question, expected) = text.split_once(':').ok_or("no `:` before what is expected")?;
        let (from, asked) = question.split_once("->").ok_or("no `->` before what is asked")?;
        let asked: Vec<_> = asked.split_whitespace().collect();
        let (to, families, by) = match asked[..] {
            [ref to @ .., ping] if ping.starts_with("ping") => (to, families("ping", ping)?, By::Ping),
            [ref to @ .., protocol, port] => {
                let (name, port) = (protocol.trim_end_matches(['4', '6']), number(port)?);
                (to, families(name, protocol)?, By::Port(protocols(name)?, port))
            }
            _ => return Err("nothing is asked".to_owned()),
        };
        Ok(Row {
            line,
            text: text.to_owned(),
            from: one_of(&HOSTS, from.trim())?,
            to: self.destination(to, &by)?,
            families,
            by,
            expected: Outcome::parse(expected.trim())?,
        })
    }

    fn destination(&self, words: &[&str], by: &By) -> Result<Destination, String> {
        let (service, way) = match words {
            [host] => return Ok(Destination::Host(one_of(&HOSTS, host)?)),
            [service, way] => (self.service(service)?, Way::parse(way)?),
            _ => return Err("a destination is a host, or a Service and a way to it".to_owned()),
        };
        match (way, by) {
            (Way::NodePort, By::Port(_, port)) if Some(*port) == service.node_port => {}
            (Way::NodePort, _) => return Err(format!("not the NodePort of {}", service.name)),
            _ => {}
        }
        Ok(Destination::Service(service.name.clone(), way))
    }
}

impl Service {
    fn parse(name: &str, fields: &[&str]) -> Result<Self, String> {
        let mut service = Self {
            name: name.to_owned(),
            endpoints: Vec::new(),
            port: 80,
            protocols: protocols("any")?,
            node_port: None,
            internal_policy: "Cluster".to_owned(),
            external_policy: "Cluster".to_owned(),
            sources: Vec::new(),
            external_ip: None,
            external_ip_of: None,
            load_balancer_of: None,
            health_check: None,
        };
        for field in fields {
            let (key, value) = field.split_once('=').ok_or_else(|| format!("{field} has no value"))?;
            let values = value.split(',');
            match key {
                "endpoints" => {
                    let endpoints: Result<_, _> = values.map(|it| one_of(&ENDPOINTS, it)).collect();
                    service.endpoints = endpoints?;
                }
                "port" => service.port = number(value)?,
                "node-port" => service.node_port = Some(number(value)?),
                "internal-policy" => service.internal_policy = one_of(&["Cluster", "Local"], value)?,
                "external-policy" => service.external_policy = one_of(&["Cluster", "Local"], value)?,
                "sources" => service.sources = values.map(str::to_owned).collect(),
                "protocols" => {
                    let protocols: Result<Vec<_>, _> = values.map(protocols).collect();
                    service.protocols = protocols?.concat();
                }
                "external-ip" => service.external_ip = Some(one_of(&["node", "loopback"], value)?),
                "external-ip-of" => service.external_ip_of = Some(value.to_owned()),
                "load-balancer-of" => service.load_balancer_of = Some(value.to_owned()),
                "health-check" => service.health_check = Some(number(value)?),
                _ => return Err(format!("no field {key}")),
            }
        }
        Ok(service)
    }
}

impl Way {
    fn parse(word: &str) -> Result<Self, String> {
        match word {
            "cluster-ip" => Ok(Self::ClusterIp),
            "external-ip" => Ok(Self::ExternalIp),
            "load-balancer" => Ok(Self::LoadBalancer),
            "node-port" => Ok(Self::NodePort),
            _ => Err(format!("no way {word}")),
        }
    }
}

impl Outcome {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "refused" => return Ok(Self::Refused),
            "dropped" => return Ok(Self::Dropped),
            "echo" => return Ok(Self::Echo),
            _ => {}
        }
        let mut answers = BTreeSet::new();
        for group in text.split(',') {
            let (who, sees) = group.split_once(" sees ").ok_or_else(|| format!("no outcome {group:?}"))?;
            let sees = one_of(&[&HOSTS[..], &[NODE_IP]].concat(), sees.trim())?;
            for name in who.split_whitespace() {
                answers.insert((one_of(&ENDPOINTS, name)?, sees.clone()));
            }
        }
        Ok(Self::Answered(answers))
    }
}

fn protocols(name: &str) -> Result<Vec<Protocol>, String> {
    match name {
        "tcp" => Ok(vec![Protocol::Tcp]),
        "udp" => Ok(vec![Protocol::Udp]),
        "sctp" => Ok(vec![Protocol::Sctp]),
        "any" => Ok(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp]),
        _ => Err(format!("no protocol {name}")),
    }
}

/// Both, or that whose number follows the protocol's name.
fn families(name: &str, word: &str) -> Result<Vec<Family>, String> {
    match word.strip_prefix(name) {
        Some("") => Ok(Family::BOTH.to_vec()),
        Some("4") => Ok(vec![Family::V4]),
        Some("6") => Ok(vec![Family::V6]),
        _ => Err(format!("no protocol {word}")),
    }
}

fn one_of(words: &[&str], word: &str) -> Result<String, String> {
    if words.contains(&word) { Ok(word.to_owned()) } else { Err(format!("no {word:?} among {words:?}")) }
}

fn number(word: &str) -> Result<u16, String> {
    word.parse().map_err(|_| format!("no port {word}"))
}

#[test]
fn what_a_table_does_not_understand_is_an_error_with_its_line() {
    let table =
        |line: &str| Table::parse(&format!("service web endpoints=pod-1 node-port=30080\ndaemon\n{line}\n"));
    for row in ["client -> web cluster-ip tcp 80 : pod-1 sees node", "node -> pod-2 ping4 : echo # why", ""] {
        assert!(table(row).is_ok(), "{:?}", table(row));
    }
    for (row, error) in [
        ("client -> web cluster-ip tcp 80", "no `:`"),
        ("client web cluster-ip tcp 80 : refused", "no `->`"),
        ("stranger -> web cluster-ip tcp 80 : refused", "\"stranger\""),
        ("client -> web tcp 80 : refused", "\"web\""),
        ("client -> shop cluster-ip tcp 80 : refused", "no Service shop"),
        ("client -> web cluster tcp 80 : refused", "no way cluster"),
        ("client -> web cluster-ip icmp 80 : refused", "no protocol icmp"),
        ("client -> web cluster-ip tcp46 80 : refused", "no protocol tcp46"),
        ("client -> web cluster-ip tcp 80000 : refused", "no port 80000"),
        ("client -> web cluster-ip tcp : refused", "no port tcp"),
        ("client -> web node-port tcp 30081 : refused", "not the NodePort of web"),
        ("client -> web cluster-ip tcp 80 : silence", "no outcome"),
        ("client -> web cluster-ip tcp 80 : pod-4 sees node", "\"pod-4\""),
        ("client -> web cluster-ip tcp 80 : sees node", "no outcome"),
        ("client -> web cluster-ip tcp 80 : pod-1 sees stranger", "\"stranger\""),
        ("service late endpoints=pod-1", "before the daemon"),
    ] {
        let found = table(row).unwrap_err();
        assert!(found.contains("line 3: ") && found.contains(error), "{row}: {found}");
    }
    for (service, error) in [
        ("service web colour=red", "no field colour"),
        ("service web endpoints=pod-9", "\"pod-9\""),
        ("service web external-policy=local", "\"local\""),
        ("service web load-balancer-of=shop", "no Service shop"),
        ("client -> node tcp 22 : refused", "before the daemon"),
    ] {
        let found = Table::parse(service).unwrap_err();
        assert!(found.contains("line 1: ") && found.contains(error), "{service}: {found}");
    }
}
