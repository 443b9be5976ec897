//! Whether the endpoints of Services with traffic answer, as the daemon knows.

use std::{
    cmp::Ordering,
    collections::HashMap,
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use ipvs::{Protocol, RealServerAddress};
use operator::top::{Frame, RealServerRow, ServiceRow};
use service::{Explanation, ObjectName, liveness::Answering};

use crate::serve::control::{AskError, Client, Control as _};

/// The limit of Services that the daemon is asked about at a time: its writer can do nothing else meanwhile.
const MOST_SERVICES: usize = 50;
/// The shortest time between two rounds of requests. The daemon learns something new every two seconds.
const MIN_INTERVAL: Duration = Duration::from_secs(2);
/// The time between two rounds if the daemon does not answer.
const AFTER_ERROR: Duration = Duration::from_secs(10);
/// How long [`Answers::wait`] waits.
const PATIENCE: Duration = Duration::from_secs(1);

/// The known answers of endpoints. A thread asks the daemon, so that a hanging daemon blocks nothing.
#[derive(Default)]
pub(super) struct Answers {
    daemon: Client,
    known: HashMap<Endpoint, Answering>,
    /// When the daemon is asked again at the earliest.
    due: Option<Instant>,
    /// Receives the answers, while requests run.
    pending: Option<Receiver<Result<Vec<Explanation>, AskError>>>,
}

/// An endpoint of a Service.
type Endpoint = (ObjectName, Protocol, RealServerAddress);

impl Answers {
    /// Answers from the daemon, which is not asked yet.
    pub(super) fn from(daemon: Client) -> Self {
        Self { daemon, ..Self::default() }
    }

    /// Adds the known answers to a frame, and asks the daemon about its Services if the interval is over.
    pub(super) fn add_to(&mut self, frame: &mut Frame, now: Instant) {
        self.receive(Duration::ZERO, now);
        if self.pending.is_none() && self.due.is_none_or(|due| due <= now) {
            self.ask(busiest(frame), now);
        }
        self.show(frame);
    }

    /// Waits for the answers about a frame, if the daemon was asked, but not for long.
    pub(super) fn wait(&mut self, frame: &mut Frame) {
        self.receive(PATIENCE, Instant::now());
        self.show(frame);
    }

    fn ask(&mut self, services: Vec<ObjectName>, now: Instant) {
        self.due = Some(now + MIN_INTERVAL);
        let (daemon, (answer, received)) = (self.daemon.clone(), channel());
        let questions = move || {
            let explanations = services.iter().map(|service| daemon.explain(service, None));
            drop(answer.send(explanations.collect()));
        };
        // Without a thread they are not known.
        self.pending =
            thread::Builder::new().name("answers".to_owned()).spawn(questions).ok().map(|_| received);
    }

    fn receive(&mut self, patience: Duration, now: Instant) {
        let Some(pending) = &self.pending else { return };
        match pending.recv_timeout(patience) {
            Err(RecvTimeoutError::Timeout) => return,
            Ok(Ok(explanations)) => self.learn(&explanations),
            // Why is said where the names of Services are.
            Ok(Err(_)) | Err(_) => {
                self.known.clear();
                self.due = Some(now + AFTER_ERROR);
            }
        }
        self.pending = None;
    }

    /// Replaces the known answers. Of an endpoint at several addresses the worst counts.
    pub(super) fn learn(&mut self, explanations: &[Explanation]) {
        self.known.clear();
        for Explanation { service, parts, .. } in explanations {
            for part in parts {
                for endpoint in &part.endpoints {
                    let Some(answering) = endpoint.answering else { continue };
                    let key = (service.clone(), part.protocol, endpoint.address);
                    let worst = self.known.entry(key).or_insert(answering);
                    if worst.liveness < answering.liveness {
                        *worst = answering;
                    }
                }
            }
        }
    }

    fn show(&self, frame: &mut Frame) {
        for ServiceRow { service, real_servers, liveness, .. } in &mut frame.services {
            let Some(service) = service else { continue };
            for server in &mut *real_servers {
                let key = server.protocol.map(|protocol| (service.clone(), protocol, server.address));
                server.answering = key.and_then(|key| self.known.get(&key)).copied();
            }
            *liveness = real_servers.iter().filter_map(RealServerRow::liveness).max();
        }
    }
}

/// The Services with connections or packets, those with the most new connections first.
fn busiest(frame: &Frame) -> Vec<ObjectName> {
    let is_used = |row: &&ServiceRow| {
        let load = &row.load;
        load.active_connections + load.inactive_connections > 0 || load.rates.packets() > 0.0
    };
    let mut used: Vec<_> = frame.services.iter().filter(is_used).collect();
    let busy = |row: &&ServiceRow| {
        let rates = &row.load.rates;
        (rates.connections_per_second, rates.packets())
    };
    used.sort_by(|a, b| busy(b).partial_cmp(&busy(a)).unwrap_or(Ordering::Equal));
    used.into_iter().filter_map(|row| row.service.clone()).take(MOST_SERVICES).collect()
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        os::unix::net::UnixListener,
    };

    use operator::top::{Column, Load};
    use serde_json::json;
    use service::liveness::Liveness;

    use super::{super::tests::made_up::traffic, *};

    /// An explanation of `default/web` with these endpoints 10.244.0.LAST:8080.
    fn explanation(endpoints: &[(u8, Liveness)]) -> Explanation {
        let endpoint = |(last, liveness): &(u8, Liveness)| {
            json!({
                "address": { "ip": format!("10.244.0.{last}"), "port": 8080 },
                "slice": "default/web-1", "verdict": "used", "weight": 1,
                "answering": { "liveness": liveness, "for": 3.0, "failed_connections": 2 },
            })
        };
        let part = json!({
            "port": "", "protocol": "TCP", "family": "IPv4",
            "choice": { "use": "ready", "reach": "cluster" },
            "stands_in": false, "zone": null, "hints_ignored": null, "addresses": [],
            "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
            "slices_without_port": [],
        });
        serde_json::from_value(json!({
            "service": "default/web", "not_served": null, "balancing": null, "parts": [part],
            "unused_slices": [], "refused": [], "health_check": null, "problems": [],
        }))
        .unwrap()
    }

    fn shown(answers: &Answers) -> Vec<(String, Option<Liveness>, Vec<Option<Liveness>>)> {
        let mut frame = traffic();
        answers.show(&mut frame);
        frame.sort(Column::Answer);
        let of_servers = |row: &ServiceRow| row.real_servers.iter().map(RealServerRow::liveness).collect();
        frame.services.iter().map(|row| (row.name(), row.liveness, of_servers(row))).collect()
    }

    #[test]
    fn an_endpoint_shows_its_answer_and_a_service_the_worst_first_when_sorted_so() {
        let mut answers = Answers::default();
        answers.learn(&[explanation(&[(1, Liveness::Answers), (2, Liveness::Silent), (1, Liveness::Idle)])]);
        let (silent, answering) = (Some(Liveness::Silent), Some(Liveness::Answers));
        let shown = shown(&answers);
        assert_eq!(shown[0], ("default/web".to_owned(), silent, vec![silent, answering]));
        assert!(shown[1..].iter().all(|(_, worst, _)| worst.is_none()), "{shown:?}");
    }

    #[test]
    fn services_with_traffic_are_asked_about_and_those_with_the_most_connections_first() {
        let mut frame = traffic();
        let names = |frame: &Frame| busiest(frame).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(&frame), ["default/web", "default/dns"]);
        for row in &mut frame.services {
            row.load = Load::default();
        }
        assert!(names(&frame).is_empty());
    }

    #[test]
    fn the_daemon_is_asked_in_the_background_and_a_hanging_one_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        let daemon = UnixListener::bind(&socket).unwrap();
        let mut answers = Answers::from(Client::new(&socket));
        let (begin, mut frame) = (Instant::now(), traffic());
        answers.add_to(&mut frame, begin);
        assert!(begin.elapsed() < Duration::from_secs(1), "it was waited for: {:?}", begin.elapsed());
        for endpoints in [&[(1, Liveness::Refuses)][..], &[]] {
            let (mut client, _) = daemon.accept().unwrap();
            BufReader::new(&client).read_line(&mut String::new()).unwrap();
            let answer = crate::serve::control::encode_answer("explanation", Ok(explanation(endpoints)));
            client.write_all(&answer.unwrap()).unwrap();
        }
        answers.wait(&mut frame);
        let web = frame.services.iter().find(|row| row.name() == "default/web").unwrap();
        assert_eq!(web.liveness, Some(Liveness::Refuses));
    }
}
