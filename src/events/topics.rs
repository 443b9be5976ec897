//! The texts to publish as Events, by topic, and when each is due.

use std::collections::{BTreeMap, BTreeSet};

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
    topics: BTreeMap<Topic, Pending>,
}

struct Pending {
    /// Orders due topics that have failed equally often. Each node has an order of its own, so that not all send the
    /// same first.
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
        Self { node_name: node_name.to_owned(), topics: BTreeMap::new() }
    }

    /// Keeps a text until it is sent. Returns false if there are too many.
    pub(super) fn keep(&mut self, EventText { topic, text }: EventText) -> bool {
        let now = Instant::now();
        if !self.topics.contains_key(&topic) {
            self.topics.retain(|_, topic| !topic.unsaid.is_empty() || topic.due > now);
            // The node has few causes.
            if topic.0 != Regarding::Node && self.topics.len() >= TOPICS {
                return false;
            }
        }
        let turn = digest(&(&self.node_name, &topic));
        let topic = self.topics.entry(topic).or_insert(Pending {
            turn,
            failed: 0,
            unsaid: BTreeSet::new(),
            due: now,
        });
        if topic.unsaid.is_empty() {
            topic.due = topic.due.max(now + GATHER);
        }
        let has_room = topic.unsaid.len() < TEXTS || topic.unsaid.contains(&text);
        if has_room {
            topic.unsaid.insert(text);
        }
        has_room
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
        let (topic, pending) = allowed.min_by_key(|(_, pending)| (pending.failed, pending.turn))?;
        Some((topic.clone(), &pending.unsaid))
    }

    /// Records that a topic was sent: later texts wait for [`QUIET`].
    pub(super) fn said(&mut self, topic: &Topic) {
        if let Some(topic) = self.topics.get_mut(topic) {
            topic.failed = 0;
            topic.unsaid.clear();
            topic.due = Instant::now() + QUIET;
        }
    }

    /// Records that a topic could not be sent: others due by the next attempt go first.
    pub(super) fn failed(&mut self, topic: &Topic) {
        if let Some(topic) = self.topics.get_mut(topic) {
            topic.failed += 1;
            topic.due = Instant::now() + PAUSE;
        }
    }

    fn unsaid(&self) -> impl Iterator<Item = (&Topic, &Pending)> {
        self.topics.iter().filter(|(_, topic)| !topic.unsaid.is_empty())
    }
}
