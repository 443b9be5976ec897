//! How endpoints stand, as far as that changes with time: ejected, on trial after that, or starting slowly.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use ipvs::{Protocol, RealServerAddress};
use serde::{Deserialize, Serialize};

use super::Traits;
use crate::seconds;

/// The percentage of its weight with which an endpoint begins, and comes back.
const FIRST_PERCENT: u8 = 10;
/// The steps of a slow start, by each of which the percentage grows by `STEP_PERCENT`. After each `wrr` goes on at the
/// newest real server (`ip_vs_wrr_dest_changed` in net/netfilter/ipvs/ip_vs_wrr.c), so that there must be few; and weights
/// without a common divisor make it alternate in longer rows.
const STEPS: u8 = 9;
const STEP_PERCENT: u8 = (100 - FIRST_PERCENT) / STEPS;

/// The first pause of an ejected endpoint; each one that follows is twice as long. A client that waits is served if it repeats
/// its SYN twice meanwhile: IPVS drops the first. Linux repeats it after 1, 2, 3, 4, 5, 7, 11, 19 and 35 s
/// (`tcp_syn_linear_timeouts`), before 6.5 after 1, 3, 7, 15 and 31 s, and an INIT of SCTP after 3, 9, 21 and 45 s. So this
/// serves those that had waited for up to 10, 7 and 9 s.
const FIRST_PAUSE: Duration = Duration::from_secs(20);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// For how long an endpoint that came back is remembered: another ejection meanwhile lasts longer than the one before.
const MEMORY: Duration = Duration::from_secs(60);

/// The share of its weight that an endpoint has now, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Share {
    /// All of it.
    Whole,
    /// A part that grows: it has appeared beside others.
    SlowStart {
        /// The part, in percent.
        percent: u8,
    },
    /// A tenth: it was ejected, and has not answered since.
    OnTrial {
        /// Why it was ejected.
        cause: EjectionCause,
    },
    /// Nothing: clients fail there.
    Ejected {
        /// Why.
        cause: EjectionCause,
        /// For how long; in JSON, seconds.
        #[serde(rename = "for", with = "seconds")]
        age: Duration,
    },
    /// A tenth although clients fail there: as many as may be are ejected already.
    Kept {
        /// Why it would be ejected.
        cause: EjectionCause,
    },
}

/// Why an endpoint is ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EjectionCause {
    /// It does not answer.
    Silent,
    /// It rejects connections.
    Refusing,
    /// Other endpoints on its node do not answer, and none there does.
    NodeSilent,
}

impl fmt::Display for EjectionCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Silent => "it does not answer",
            Self::Refusing => "it refuses connections",
            Self::NodeSilent => "no endpoint on its node answers",
        })
    }
}

/// The protocol and address of an endpoint of a Service.
pub(crate) type EndpointKey = (Protocol, RealServerAddress);

/// The endpoints of one Service that do not simply have all of their weight. Boxed: nearly all Services have none.
#[derive(Debug, Default, PartialEq, Eq)]
#[allow(clippy::box_collection, reason = "a map takes three words in each Service, a box one")]
pub(crate) struct Standings(Option<Box<BTreeMap<EndpointKey, Standing>>>);

/// How one endpoint stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The traits of the endpoint when this began. With other ones it begins anew.
    pub(crate) traits: Traits,
    pub(crate) phase: Phase,
    /// How often it was ejected before it was forgotten.
    ejections: u32,
}

/// What the endpoint gets, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No new connections, until a time.
    Ejected { cause: EjectionCause, since: Instant, until: Instant },
    /// A tenth of its weight, until it answers.
    OnTrial { cause: EjectionCause, since: Instant },
    /// All of its weight. It is forgotten after a while.
    Proven { since: Instant },
    /// A growing part of its weight; from the first time that is known on.
    SlowStart { since: Option<Instant>, percent: u8 },
}

impl Standing {
    /// A new endpoint beside others.
    pub(crate) fn new_beside_others(traits: Traits) -> Self {
        Self { traits, phase: Phase::SlowStart { since: None, percent: FIRST_PERCENT }, ejections: 0 }
    }

    /// Ejects an endpoint, which had this standing before. One that was ejected and kept in service has failed last, and is
    /// not out for longer than before.
    pub(crate) fn ejected(before: Option<&Self>, traits: Traits, cause: EjectionCause, now: Instant) -> Self {
        let ejections = before.map_or(0, |it| it.ejections.saturating_sub(it.ejection().is_some().into()));
        Self {
            traits,
            phase: Phase::Ejected { cause, since: now, until: now + pause(ejections) },
            ejections: ejections.saturating_add(1),
        }
    }

    /// Why and since when it is ejected, if it is.
    pub(crate) fn ejection(&self) -> Option<(EjectionCause, Instant)> {
        match self.phase {
            Phase::Ejected { cause, since, .. } => Some((cause, since)),
            _ => None,
        }
    }

    /// Why it was ejected before its trial, and since when it is on trial, if it is.
    pub(crate) fn trial(&self) -> Option<(EjectionCause, Instant)> {
        match self.phase {
            Phase::OnTrial { cause, since } => Some((cause, since)),
            _ => None,
        }
    }

    /// Whether it begins slowly.
    pub(crate) fn starts(&self) -> bool {
        matches!(self.phase, Phase::SlowStart { .. })
    }

    /// After the endpoint has answered: with all of its weight.
    pub(crate) fn passed(mut self, now: Instant) -> Self {
        self.phase = Phase::Proven { since: now };
        self
    }

    /// How it stands at a time; `None` once it is forgotten.
    fn at(mut self, now: Instant, slow_start: Option<Duration>) -> Option<Self> {
        let age = |since| now.saturating_duration_since(since);
        self.phase = match self.phase {
            Phase::Ejected { until, cause, .. } if until <= now => Phase::OnTrial { cause, since: now },
            // Without clients nothing shows whether it answers.
            Phase::OnTrial { since, .. } if age(since) >= MEMORY => Phase::Proven { since: now },
            Phase::Proven { since } if age(since) >= MEMORY => return None,
            Phase::SlowStart { since, .. } => {
                let since = since.unwrap_or(now);
                let percent = slow_start_percent(age(since), slow_start?)?;
                Phase::SlowStart { since: Some(since), percent }
            }
            unchanged => unchanged,
        };
        Some(self)
    }

    fn share(&self, now: Option<Instant>) -> Share {
        match self.phase {
            Phase::Ejected { cause, since, .. } => {
                let age = now.map_or(Duration::ZERO, |now| now.saturating_duration_since(since));
                Share::Ejected { cause, age }
            }
            Phase::OnTrial { cause, .. } => Share::OnTrial { cause },
            Phase::Proven { .. } => Share::Whole,
            Phase::SlowStart { percent, .. } => Share::SlowStart { percent },
        }
    }
}

/// The pause of an endpoint that was ejected this many times before.
fn pause(ejections: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << ejections.min(8)).min(LONGEST_PAUSE)
}

/// The part of its weight, in percent, that a new endpoint has at an age; `None`: all of it.
fn slow_start_percent(age: Duration, whole: Duration) -> Option<u8> {
    let done = age.as_millis().saturating_mul(u128::from(STEPS)) / whole.as_millis().max(1);
    let done = u8::try_from(done).ok().filter(|done| *done < STEPS)?;
    Some(FIRST_PERCENT + STEP_PERCENT * done)
}

impl Share {
    /// The share in percent.
    pub(crate) fn percent(self) -> u8 {
        match self {
            Self::Whole => 100,
            Self::SlowStart { percent } => percent,
            Self::OnTrial { .. } | Self::Kept { .. } => FIRST_PERCENT,
            Self::Ejected { .. } => 0,
        }
    }
}

impl Standings {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&EndpointKey, &Standing)> {
        self.0.iter().flat_map(|all| all.iter())
    }

    pub(crate) fn get(&self, key: &EndpointKey) -> Option<&Standing> {
        self.0.as_ref()?.get(key)
    }

    /// The share of an endpoint.
    pub(crate) fn share(&self, key: &EndpointKey, now: Option<Instant>) -> Share {
        self.get(key).map_or(Share::Whole, |standing| standing.share(now))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |all| all.len())
    }

    /// Replaces the standing of an endpoint.
    pub(crate) fn insert(&mut self, key: EndpointKey, standing: Standing) {
        self.0.get_or_insert_default().insert(key, standing);
    }

    /// Keeps those for which `keep` holds, which may change them.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&EndpointKey, &mut Standing) -> bool) {
        if let Some(all) = &mut self.0 {
            all.retain(|key, standing| keep(key, standing));
            if all.is_empty() {
                self.0 = None;
            }
        }
    }

    /// Goes on to a time. Returns whether any share has changed.
    pub(crate) fn advance(&mut self, now: Instant, slow_start: Option<Duration>) -> bool {
        let mut changed = false;
        self.retain(|_, standing| {
            let next = standing.at(now, slow_start);
            let share = |it: &Standing| it.share(None);
            changed |= next.as_ref().map_or(Share::Whole, share) != share(standing);
            if let Some(next) = next {
                *standing = next;
            }
            next.is_some()
        });
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_slow_start_grows_nine_times_and_at_most_once_a_second() {
        for seconds in [10, 11, 30, 60, 3_600] {
            let percents: Vec<_> = (0..seconds)
                .map(|age| slow_start_percent(second(age), second(seconds)).expect("not over"))
                .collect();
            let mut grown = percents;
            grown.dedup();
            assert_eq!(grown, [10, 20, 30, 40, 50, 60, 70, 80, 90], "{seconds} s");
            assert_eq!(slow_start_percent(second(seconds), second(seconds)), None);
        }
    }

    #[test]
    fn each_ejection_lasts_twice_as_long_up_to_a_minute() {
        let mut now = Instant::now();
        let mut standing = None;
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let next = Standing::ejected(standing.as_ref(), Traits::empty(), EjectionCause::Silent, now);
            let Phase::Ejected { until, .. } = next.phase else { panic!() };
            pauses.push((until - now).as_secs());
            now = until;
            standing = next.at(now, None);
            assert!(standing.is_some_and(|it| it.trial().is_some()));
        }
        assert_eq!(pauses, [20, 40, 60, 60, 60, 60]);
    }

    #[test]
    fn a_client_that_waits_repeats_its_packet_twice_in_a_pause() {
        const LINUX: [u64; 9] = [1, 2, 3, 4, 5, 7, 11, 19, 35];
        const LINUX_BEFORE_6_5: [u64; 5] = [1, 3, 7, 15, 31];
        const SCTP: [u64; 4] = [3, 9, 21, 45];
        for (times, longest_wait) in [(&LINUX[..], 10), (&LINUX_BEFORE_6_5, 7), (&SCTP, 9)] {
            for waited in (0..longest_wait * 10).map(|tenths| Duration::from_millis(tenths * 100)) {
                // Timers may be late by some percent.
                let at = times.iter().map(|at| second(*at).mul_f64(1.03));
                let repeated = at.filter(|at| waited < *at && *at < waited + pause(0)).count();
                assert!(repeated >= 2, "after {waited:?} of {times:?}: {repeated}");
            }
        }
    }
}
