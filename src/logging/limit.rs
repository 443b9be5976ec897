//! Bounds the lines that others can cause: a flood of one kind leaves room for the rest, and a namespace for
//! the others.
//!
//! Each place in the code that logs is a kind. A tenant causes lines with ever new Services that have faults,
//! or with one that changes all the time, and what keeps a node's logs keeps little of them: kubelet 50 MB of
//! a container. Lines about an object say in the field `namespace` whose it is. A line is logged if its kind
//! has room and its namespace has not had more than its part of what room there is: the more namespaces flood
//! the smaller their parts (dynamic thresholds, Choudhury and Hahne 1998). The first line of one that was
//! silent has a place of its own, so that it is logged however many flood. What is not logged is counted, and
//! said once a minute. Lines below `INFO` are not bounded: who asks for them wants all.

use std::{
    collections::HashMap,
    fmt::{self, Debug},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tracing::{
    Event, Level, Subscriber,
    callsite::Identifier,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    warn,
};
use tracing_subscriber::layer::{Context, Layer};

/// How many lines of a kind are logged at once.
const BURST: f64 = 200.0;
/// How many lines of a kind are logged in a second for ever: of 250 bytes each, 50 MB are two days.
const PER_SECOND: f64 = 1.0;
/// How many lines of one namespace are logged in a second for ever.
const PER_SECOND_OF_NAMESPACE: f64 = 0.1;
/// The part of a kind's room that a namespace may have.
const PART: f64 = 0.25;
/// After how long without a line a namespace counts as new. Its first line has a place of its own.
const SILENCE: Duration = Duration::from_secs(600);
/// How many first lines of namespaces are logged at once whatever others do, and in a second.
const FIRST_BURST: f64 = 50.0;
const FIRST_PER_SECOND: f64 = 0.5;
/// How many namespaces of a kind are distinguished at a time. There is hardly room for the lines of more.
const MOST_NAMESPACES: usize = 1_000;
/// How often it is said how many lines were not logged.
pub const SAID_EVERY: Duration = Duration::from_secs(60);
/// How many characters of a line that was not logged are said.
const MOST_OF_EXAMPLE: usize = 200;

/// The name of the field that has the namespace.
pub(super) const NAMESPACE: &str = "namespace";

/// Decides which lines are logged, and counts the others. Clones count the same.
#[derive(Clone, Debug, Default)]
pub struct LineLimit(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    kinds: HashMap<Identifier, Kind>,
    /// Since the start.
    dropped: u64,
}

impl LineLimit {
    /// The number of lines since the start that were not logged, because there were too many like them.
    pub fn dropped(&self) -> u64 {
        self.counts().dropped
    }

    /// Logs how many lines of each kind were not logged since this was asked last, with the first of them.
    pub fn say_dropped(&self) {
        let dropped: Vec<_> = self.counts().kinds.values_mut().filter_map(Kind::take_dropped).collect();
        for Dropped { count, first } in dropped {
            warn!("dropped {count} log lines because there were too many like them, the first: {first}");
        }
    }

    /// Whether a line is logged: then, or else, it is counted.
    fn admits(&self, event: &Event<'_>) -> bool {
        if *event.metadata().level() > Level::INFO {
            return true;
        }
        let mut namespace = FieldText::named(NAMESPACE);
        event.record(&mut namespace);
        let mut counts = self.counts();
        let kind = counts.kinds.entry(event.metadata().callsite()).or_default();
        if kind.admits(&namespace.text, Instant::now()) {
            return true;
        }
        kind.dropped.count += 1;
        if kind.dropped.count == 1 {
            let mut message = FieldText::named("message");
            event.record(&mut message);
            kind.dropped.first = message.text.chars().take(MOST_OF_EXAMPLE).collect();
        }
        counts.dropped += 1;
        false
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // No holder of the lock can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A layer whose lines are bounded. It is not a filter of the layer: `Filter::event_enabled` of
/// tracing-subscriber 0.3.23 leaves its answer behind for the next event where no other layer wants this one.
pub(super) struct Limited<S: Subscriber> {
    pub(super) lines: Box<dyn Layer<S> + Send + Sync>,
    pub(super) limit: LineLimit,
}

impl<S: Subscriber> Layer<S> for Limited<S> {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        self.lines.on_new_span(attributes, id, context);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.lines.on_record(id, values, context);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if self.limit.admits(event) {
            self.lines.on_event(event, context);
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        self.lines.on_enter(id, context);
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        self.lines.on_exit(id, context);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        self.lines.on_close(id, context);
    }
}

/// The lines of one place in the code.
#[derive(Debug, Default)]
struct Kind {
    logged: Lately,
    /// The logged lines that were the first of a namespace.
    first: Lately,
    namespaces: HashMap<String, Lately>,
    dropped: Dropped,
}

/// The lines of a kind that were not logged.
#[derive(Clone, Debug, Default)]
struct Dropped {
    count: u64,
    first: String,
}

impl Kind {
    /// Whether a line is logged now: then it is counted. Without a namespace, which is empty, the kind alone
    /// counts.
    fn admits(&mut self, namespace: &str, now: Instant) -> bool {
        let room = BURST - self.logged.count(now, PER_SECOND);
        let admitted = match namespace {
            "" => room >= 1.0,
            _ => self.admits_of(namespace, room, now),
        };
        if admitted {
            self.logged.count += 1.0;
        }
        admitted
    }

    fn admits_of(&mut self, namespace: &str, room: f64, now: Instant) -> bool {
        let is_new = self.namespaces.get(namespace).is_none_or(|logged| logged.is_silent(now));
        if is_new {
            if self.namespaces.len() >= MOST_NAMESPACES {
                self.namespaces.retain(|_, logged| !logged.is_silent(now));
            }
            if self.namespaces.len() >= MOST_NAMESPACES {
                return false;
            }
            self.namespaces.insert(namespace.to_owned(), Lately::default());
        }
        let is_heard = is_new && self.first.count(now, FIRST_PER_SECOND) < FIRST_BURST;
        let Some(logged) = self.namespaces.get_mut(namespace) else { return false };
        let has_room = logged.count(now, PER_SECOND_OF_NAMESPACE) < room * PART;
        let admitted = is_heard || (room >= 1.0 && has_room);
        logged.count += if admitted { 1.0 } else { 0.0 };
        self.first.count += if is_heard { 1.0 } else { 0.0 };
        admitted
    }

    fn take_dropped(&mut self) -> Option<Dropped> {
        (self.dropped.count > 0).then(|| std::mem::take(&mut self.dropped))
    }
}

/// How many lines were logged, of which so many are forgotten in a second.
#[derive(Clone, Copy, Debug, Default)]
struct Lately {
    count: f64,
    at: Option<Instant>,
}

impl Lately {
    fn count(&mut self, now: Instant, per_second: f64) -> f64 {
        let passed = self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.count = (self.count - passed.as_secs_f64() * per_second).max(0.0);
        self.at = Some(now);
        self.count
    }

    /// Whether there was none for long, logged or not.
    fn is_silent(&self, now: Instant) -> bool {
        self.at.is_none_or(|at| now.saturating_duration_since(at) >= SILENCE)
    }
}

/// The text of one field of an event.
struct FieldText {
    name: &'static str,
    text: String,
}

impl FieldText {
    fn named(name: &'static str) -> Self {
        Self { name, text: String::new() }
    }
}

impl Visit for FieldText {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == self.name {
            value.clone_into(&mut self.text);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == self.name {
            // Writing to a string cannot fail.
            let _ = fmt::write(&mut self.text, format_args!("{value:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The namespaces whose lines are logged, of lines that come at these milliseconds.
    fn logged<'a>(lines: impl IntoIterator<Item = (u64, &'a str)>) -> HashMap<&'a str, usize> {
        let (mut kind, start) = (Kind::default(), Instant::now());
        let mut logged = HashMap::new();
        for (at, namespace) in lines {
            *logged.entry(namespace).or_default() +=
                usize::from(kind.admits(namespace, start + Duration::from_millis(at)));
        }
        logged
    }

    #[test]
    fn one_namespace_that_floods_gets_a_part_and_then_six_lines_a_minute() {
        let second = |second: u64| (0..1_000).map(move |line| (second * 1_000 + line, "flood"));
        let at_once = logged(second(0))["flood"];
        assert!((40..=42).contains(&at_once), "{at_once}");
        let ten_minutes = logged((0..600).flat_map(second))["flood"];
        assert!((100..=115).contains(&ten_minutes), "{ten_minutes}");
    }

    #[test]
    fn another_namespace_is_heard_at_once_however_many_flood() {
        for floods in [1, 10, 100] {
            let names: Vec<_> = (0..floods).map(|number| format!("flood-{number}")).collect();
            let flood =
                (0..60_000).filter_map(|at| names.get(at % floods).map(|name| (at as u64, name.as_str())));
            let lines: Vec<_> = flood.chain((0..3).map(|line| (60_000 + line, "innocent"))).collect();
            let logged = logged(lines);
            assert!(logged["innocent"] >= 1, "{floods}: {logged:?}");
        }
    }

    #[test]
    fn lines_of_no_namespace_are_bounded_by_their_kind() {
        let lines = (0..600_000).map(|at| (at, ""));
        assert!((795..=805).contains(&logged(lines)[""]), "200 at once and 600 in 600 seconds");
    }

    #[test]
    fn what_was_silent_for_long_may_flood_again() {
        let flood = |from: u64| (0..100).map(move |line| (from + line, "a"));
        let once = logged(flood(0))["a"];
        assert!((40..=42).contains(&once), "{once}");
        assert_eq!(logged(flood(0).chain(flood(700_000)))["a"], 2 * once);
    }

    #[test]
    fn ever_new_namespaces_take_no_more_memory_than_some() {
        let (mut kind, start) = (Kind::default(), Instant::now());
        for number in 0..100_000_u32 {
            let now = start + Duration::from_secs(number.into());
            kind.admits(&number.to_string(), now);
            assert!(kind.namespaces.len() <= MOST_NAMESPACES);
        }
    }

    proptest! {
        #[test]
        fn no_more_than_the_bound_is_logged(lines in prop::collection::vec((0_u64..100, 0_usize..30), 0..3_000)) {
            let names: Vec<_> = (0..30).map(|number| if number == 0 { String::new() } else { number.to_string() }).collect();
            let mut at = 0;
            let lines: Vec<_> = lines.iter().map(|(after, name)| { at += after; (at, names[*name].as_str()) }).collect();
            let logged: usize = logged(lines).values().sum();
            prop_assert!(logged as u64 <= 252 + at * 3 / 2_000);
        }
    }
}
