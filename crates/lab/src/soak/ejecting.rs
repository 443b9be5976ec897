//! Services that eject failing endpoints, and what happens to their pods.
//!
//! Most pods are only slow, stopped, cut off for less than a second or rolled, and the processor is busy at times: these must keep
//! their weight. Others fall silent, and must be ejected until they answer again.

mod troubles;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::Value;
use testkit::daemon::{Daemon, eventually_within};
pub(super) use troubles::Troubles;

use super::{churn::PODS, report::Account};
use crate::{
    stage::{
        Stage,
        objects::{self, Condition, Endpoint, Kind, Write},
        traffic::{Held, Target},
    },
    statistics::Percentiles,
};

/// Pods that stay healthy, and those that fall silent. They serve nothing else.
const HEALTHY: std::ops::RangeInclusive<u8> = PODS + 1..=PODS + 4;
const SILENT: std::ops::RangeInclusive<u8> = PODS + 5..=PODS + 6;
/// All pods of the lab.
pub(super) const ALL_PODS: u8 = *SILENT.end();
/// The Service whose clients ask each pod again and again: there silence must lead to an ejection.
const STEADY: &str = "steady";
/// One in whose every tick of the counters there are only a few packets, and one with ticks without any.
const SPARSE: &str = "sparse";
const RARE: &str = "rare";
/// How often the daemon is asked who is ejected. An ejection lasts 20 seconds at least.
const READ_EVERY: Duration = Duration::from_millis(500);
/// How long an endpoint may be out after it has answered again: a minute, and its trial.
const BACK_WITHIN: Duration = Duration::from_secs(150);
/// How long an ejection may follow a silence of two seconds: ticks, a reading, a sync.
const AFTERMATH: Duration = Duration::from_secs(15);

/// The pods of a Service.
fn pods(service: &str) -> Vec<u8> {
    match service {
        STEADY => HEALTHY.chain(SILENT).collect(),
        SPARSE => vec![PODS + 1, PODS + 2],
        _ => vec![PODS + 3, PODS + 4],
    }
}

fn slice(service: &str, condition: impl Fn(u8) -> Option<Condition>) -> serde_json::Value {
    let endpoint = |number| Some(Endpoint { number, condition: condition(number)? });
    let endpoints: Vec<_> = pods(service).into_iter().filter_map(endpoint).collect();
    objects::slice(service, service, &endpoints)
}

/// Makes the Services.
pub(super) fn services() -> Vec<Vec<Write>> {
    let writes = |name| {
        let service = objects::ejecting(objects::service(name, &[80], false));
        let slice = slice(name, |_| Some(Condition::Ready));
        vec![Write::Create(Kind::Service, service), Write::Create(Kind::Slice, slice)]
    };
    [STEADY, SPARSE, RARE].map(writes).to_vec()
}

/// Clients of one of them.
struct Clients<'a> {
    target: Target<'a>,
    held: Held,
    /// How many ask at once: one that waits for an answer does not keep the others from asking.
    askers: u32,
    ask_every: Duration,
}

/// Clients of all of them, and what they and the daemon saw.
pub(super) struct Ejecting<'a> {
    stage: &'a Stage,
    daemon: &'a Daemon,
    clients: Vec<Clients<'a>>,
    begun: Instant,
    seen: Mutex<Seen>,
}

/// What has happened so far.
#[derive(Debug, Default)]
struct Seen {
    /// Until when a pod may be ejected.
    excused: BTreeMap<u8, Instant>,
    /// The endpoints that are out, by Service and pod.
    out: Vec<(String, u8)>,
    /// The last harmless trouble of each pod that is over.
    last: BTreeMap<u8, String>,
    account: Ejections,
}

/// The result.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Ejections {
    /// What happened to healthy pods and to the node: how often, and for how many seconds at most.
    pub(super) troubles: BTreeMap<&'static str, (u32, f64)>,
    /// Seconds from the beginning of each silence to the ejection, if there was one.
    pub(super) ejected_after: Vec<Option<f64>>,
    /// Seconds from the end of each to the whole weight.
    pub(super) back_after: Vec<Option<f64>>,
    /// Healthy endpoints that were ejected.
    pub(super) wrong: Vec<String>,
    /// How often the daemon was asked.
    pub(super) readings: u32,
}

impl<'a> Ejecting<'a> {
    pub(super) fn new(stage: &'a Stage, daemon: &'a Daemon) -> Result<Self> {
        let clients = |number, name, (connections, pause), (askers, ask_every)| {
            let target = Target::new(number, name, &stage.lab.client, stage.cluster_ip(name)?).patient();
            let held = Held { connections, lives: Some(5..60), pause: Duration::from_millis(pause) };
            anyhow::Ok(Clients { target, held, askers, ask_every: Duration::from_millis(ask_every) })
        };
        Ok(Self {
            stage,
            daemon,
            clients: vec![
                clients(10, STEADY, (6, 500), (8, 150))?,
                clients(11, SPARSE, (2, 700), (1, 900))?,
                clients(12, RARE, (2, 2_500), (1, 3_000))?,
            ],
            begun: Instant::now(),
            seen: Mutex::default(),
        })
    }

    /// Starts the clients, and asks the daemon who is ejected, until `stop` is set.
    pub(super) fn start<'scope>(
        &'scope self,
        scope: &'scope thread::Scope<'scope, '_>,
        seed: u64,
        stop: &'scope AtomicBool,
    ) {
        for Clients { target, held, askers, ask_every } in &self.clients {
            scope.spawn(move || target.hold(held, seed, stop));
            for _ in 0..*askers {
                scope.spawn(move || target.ask(*ask_every * *askers, stop));
            }
        }
        scope.spawn(move || {
            while !stop.load(Relaxed) {
                // The daemon may be too busy for an answer.
                if let Ok(status) = self.daemon.status(&self.stage.lab.node) {
                    self.note(&status);
                }
                thread::sleep(READ_EVERY);
            }
        });
    }

    /// Waits until every endpoint has all of its weight.
    pub(super) fn recover(&self) -> Result<()> {
        eventually_within(BACK_WITHIN, "no endpoint is ejected", || {
            let status = self.daemon.status(&self.stage.lab.node)?;
            let counts = ["ejected", "on_trial"].map(|field| status.get(field).and_then(Value::as_u64));
            ensure!(counts == [Some(0), Some(0)], "{status:#}");
            Ok(())
        })
    }

    fn note(&self, status: &Value) {
        let now = Instant::now();
        let mut seen = self.seen();
        let mut out = Vec::new();
        for ejection in status.get("ejections").and_then(Value::as_array).into_iter().flatten() {
            let Some((service, pod, is_out)) = ejected(ejection) else { continue };
            let key = (service, pod);
            let is_new = is_out && !seen.out.contains(&key);
            let is_excused = seen.excused.get(&pod).is_some_and(|until| now < *until);
            if is_new && !is_excused {
                let last = seen.last.get(&pod).map_or("nothing", String::as_str);
                let wrong = format!("after {:.1} s, before: {last}: {ejection}", self.elapsed());
                seen.account.wrong.push(wrong);
            }
            out.push(key);
        }
        seen.out = out;
        seen.account.readings += 1;
    }

    /// The seconds since it began.
    fn elapsed(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Whether a pod is ejected or on trial at this Service.
    fn is_out(&self, service: &str, pod: u8) -> bool {
        self.seen().out.iter().any(|(of, number)| of == service && *number == pod)
    }

    pub(super) fn accounts(&self) -> [Account; 2] {
        let targets = || self.clients.iter().map(|clients| &clients.target);
        [
            Account {
                what: "connections that stayed a while, to Services that eject endpoints",
                counts: targets().map(|target| target.held.counts()).sum(),
                causes: targets().flat_map(|target| target.held.take_causes()).collect(),
            },
            Account {
                what: "short connections to Services that eject endpoints",
                counts: targets().map(|target| target.asked.counts()).sum(),
                causes: targets().flat_map(|target| target.asked.take_causes()).collect(),
            },
        ]
    }

    pub(super) fn ejections(&self) -> Ejections {
        self.seen().account.clone()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pod(&self, number: u8) -> Result<&testkit::lab::Host> {
        self.stage.lab.pods.get(usize::from(number) - 1).context("no such pod")
    }
}

/// The Service and the pod of an entry of `ejections`, and whether the pod gets no connections.
fn ejected(ejection: &Value) -> Option<(String, u8, bool)> {
    let service = ejection.get("service")?.as_str()?.rsplit('/').next()?.to_owned();
    let ip = ejection.pointer("/address/ip")?.as_str()?;
    let [.., pod, _] = ip.parse::<std::net::Ipv4Addr>().ok()?.octets();
    Some((service, pod, ejection.get("state")?.as_str()? == "out"))
}

impl fmt::Display for Ejections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { troubles, ejected_after, back_after, wrong, readings } = self;
        writeln!(f, "what healthy endpoints had to bear:")?;
        for (what, (times, longest)) in troubles {
            writeln!(f, "  {what}: {times} times, {longest:.1} s at most")?;
        }
        writeln!(f, "  of these {} were ejected, in {readings} readings", wrong.len())?;
        let times = |all: &[Option<f64>]| {
            let Percentiles { p50, longest, .. } =
                Percentiles::from_times(all.iter().copied().flatten().collect()).unwrap_or_default();
            format!("{p50:.1} s (median), {longest:.1} s (most)")
        };
        writeln!(f, "endpoints fell silent {} times:", ejected_after.len())?;
        writeln!(f, "  ejected after {}", times(ejected_after))?;
        writeln!(f, "  whole again {} after they answered", times(back_after))
    }
}

impl Ejections {
    /// What is wrong.
    pub(super) fn complaints(&self) -> Vec<String> {
        let mut complaints: Vec<_> =
            self.wrong.iter().map(|it| format!("healthy and ejected {it}")).collect();
        let never = |all: &[Option<f64>]| all.iter().filter(|it| it.is_none()).count();
        let counted = [
            (never(&self.ejected_after), "silent endpoints were not ejected"),
            (never(&self.back_after), "endpoints that answered again did not get their weight back"),
        ];
        let counted = counted.into_iter().filter(|(count, _)| *count > 0);
        complaints.extend(counted.map(|(count, what)| format!("{count} {what}")));
        complaints
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_ejection_names_its_service_and_its_pod() {
        let ejection = json!({
            "service": "stage/steady",
            "protocol": "TCP",
            "address": {"ip": "10.244.11.2", "port": 8080},
            "state": "out",
        });
        assert_eq!(ejected(&ejection), Some(("steady".to_owned(), 11, true)));
    }

    #[test]
    fn healthy_endpoints_that_were_ejected_and_silent_ones_that_were_not_are_complaints() {
        let ejections =
            Ejections { ejected_after: vec![Some(3.0)], back_after: vec![Some(9.0)], ..Ejections::default() };
        assert!(ejections.complaints().is_empty());
        let wrong = Ejections { wrong: vec![String::new()], ..ejections.clone() };
        assert_eq!(wrong.complaints().len(), 1);
        let missed = Ejections { ejected_after: vec![None, Some(3.0)], back_after: vec![None], ..ejections };
        assert_eq!(missed.complaints().len(), 2);
    }
}
