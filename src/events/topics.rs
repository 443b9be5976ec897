//! The texts to publish as Events, by topic, and when each is due. There is room for so many, and the API
//! server is sent so many; the namespaces of Services share both fairly, so that one cannot silence the
//! others.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use super::{Cause, EventText, GATHER, PAUSE, QUIET, Regarding, event::digest};

/// How many topics are kept, and how many texts of each. An Event has room for about ten.
pub(super) const TOPICS: usize = 1_000;
const TEXTS: usize = 100;

/// The object and the cause of an Event.
pub(super) type Topic = (Regarding, Cause);

/// All texts to send, and the topics sent within [`QUIET`].
pub(super) struct Topics {
    node_name: String,
    all: BTreeMap<Topic, Pending>,
    /// When an Event of a Service in a namespace was last tried, within [`QUIET`].
    tried: BTreeMap<String, Instant>,
}

struct Pending {
    /// Orders due topics that have failed equally often. Each node has an order of its own, so that not all
    /// send the same first.
    turn: u64,
    /// The failed attempts.
    failed: u32,
    /// Empty after it was sent, while it is kept quiet.
    unsaid: BTreeSet<String>,
    /// When it may be sent.
    due: Instant,
}

impl Topics {
    /// The topics of the node with this name.
    pub(super) fn new(node_name: &str) -> Self {
        Self { node_name: node_name.to_owned(), all: BTreeMap::new(), tried: BTreeMap::new() }
    }

    /// Keeps a text until it is sent. Returns false if there are too many, so that a text was dropped: this
    /// one, or those of a topic in a namespace that has more topics.
    pub(super) fn keep(&mut self, EventText { topic, text }: EventText) -> bool {
        let now = Instant::now();
        let mut dropped = false;
        if !self.all.contains_key(&topic) {
            self.all.retain(|_, topic| !topic.unsaid.is_empty() || topic.due > now);
            // The node has few causes.
            if let Some(namespace) = namespace(&topic)
                && self.all.len() >= TOPICS
            {
                let Some(other) = self.superfluous(namespace) else { return false };
                self.all.remove(&other);
                dropped = true;
            }
        }
        let turn = digest(&(&self.node_name, &topic));
        let topic =
            self.all.entry(topic).or_insert(Pending { turn, failed: 0, unsaid: BTreeSet::new(), due: now });
        if topic.unsaid.is_empty() {
            topic.due = topic.due.max(now + GATHER);
        }
        let has_room = topic.unsaid.len() < TEXTS || topic.unsaid.contains(&text);
        if has_room {
            topic.unsaid.insert(text);
        }
        has_room && !dropped
    }

    /// A topic that gives way to another one in this namespace: the last in turn of the namespace with the
    /// most topics, if that has more of them even then.
    fn superfluous(&self, newcomer: &str) -> Option<Topic> {
        let mut counts = BTreeMap::<_, usize>::new();
        for namespace in self.all.keys().filter_map(namespace) {
            *counts.entry(namespace).or_default() += 1;
        }
        let own = counts.get(newcomer).copied().unwrap_or_default();
        let (largest, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        let of_largest = self.all.iter().filter(|(topic, _)| namespace(topic) == Some(largest));
        let (last, _) = of_largest.max_by_key(|(_, pending)| (pending.failed, pending.turn))?;
        (count > own + 1).then(|| last.clone())
    }

    /// When the next topic is due, if Services must wait until `services_from`.
    pub(super) fn next_due(&self, services_from: Option<Instant>) -> Option<Instant> {
        let due = |(topic, pending): (&Topic, &Pending)| match topic.0 {
            Regarding::Service(_) => services_from.map_or(pending.due, |from| from.max(pending.due)),
            Regarding::Node => pending.due,
        };
        self.unsaid().map(due).min()
    }

    /// The next topic that was due at `then`; only about the node unless `services_too`.
    pub(super) fn due(&self, then: Instant, services_too: bool) -> Option<(Topic, &BTreeSet<String>)> {
        let due = self.unsaid().filter(|(_, topic)| topic.due <= then);
        let allowed = due.filter(|(topic, _)| services_too || topic.0 == Regarding::Node);
        let tried = |topic| namespace(topic).and_then(|namespace| self.tried.get(namespace));
        let (topic, pending) =
            allowed.min_by_key(|(topic, pending)| (pending.failed, tried(topic), pending.turn))?;
        Some((topic.clone(), &pending.unsaid))
    }

    /// Records that a topic was sent: later texts wait for [`QUIET`].
    pub(super) fn said(&mut self, topic: &Topic) {
        self.record(topic);
        if let Some(topic) = self.all.get_mut(topic) {
            topic.failed = 0;
            topic.unsaid.clear();
            topic.due = Instant::now() + QUIET;
        }
    }

    /// Records that a topic could not be sent: others due by the next attempt go first.
    pub(super) fn failed(&mut self, topic: &Topic) {
        self.record(topic);
        if let Some(topic) = self.all.get_mut(topic) {
            topic.failed += 1;
            topic.due = Instant::now() + PAUSE;
        }
    }

    /// Lets the other namespaces go first.
    fn record(&mut self, topic: &Topic) {
        let now = Instant::now();
        self.tried.retain(|_, tried| *tried + QUIET > now);
        self.tried.extend(namespace(topic).map(|namespace| (namespace.to_owned(), now)));
    }

    fn unsaid(&self) -> impl Iterator<Item = (&Topic, &Pending)> {
        self.all.iter().filter(|(_, topic)| !topic.unsaid.is_empty())
    }
}

/// The namespace of the Service that it is about.
pub(super) fn namespace((regarding, _): &Topic) -> Option<&str> {
    match regarding {
        Regarding::Service(service) => Some(service.namespace()),
        Regarding::Node => None,
    }
}

/// How many Events about Services this node sends at most ...
pub(super) const MOST: usize = 10;
/// ... within this time.
pub(super) const WITHIN: Duration = Duration::from_secs(300);

/// Limits this node's Events about Services: otherwise anyone who may write Services could have every node
/// send thousands. Nodes send in different orders, so that together they soon have sent all.
///
/// Keeps the times of the last Events.
#[derive(Debug, Default)]
pub(super) struct RateLimit(VecDeque<Instant>);

impl RateLimit {
    /// Records that one is sent now.
    pub(super) fn record(&mut self) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(Instant::now());
    }

    /// When the next one may be sent; `None` means now.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.front().filter(|_| self.0.len() == MOST).map(|sent| *sent + WITHIN)
    }

    /// Whether one may be sent now.
    pub(super) fn allows_one(&self) -> bool {
        self.next().is_none_or(|next| next <= Instant::now())
    }
}
