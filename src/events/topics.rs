//! Texts that wait to be published as Events, by what they are about, and when each is due.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use super::{Cause, GATHER, PAUSE, QUIET, Regarding, Remark};

/// How many topics are kept, and how many texts of each. An Event has room for about ten.
pub(super) const TOPICS: usize = 1_000;
const TEXTS: usize = 100;

/// What one Event is about.
pub(super) type About = (Regarding, Cause);

/// Everything that is still to be said, and what was said within [`QUIET`].
#[derive(Default)]
pub(super) struct Topics(BTreeMap<About, Topic>);

struct Topic {
    /// Empty if it is only kept quiet.
    unsaid: BTreeSet<String>,
    /// Nothing is said before.
    due: Instant,
}

impl Topics {
    /// Keeps a remark until it is said. Not if that is one too many: then the answer is false.
    pub(super) fn keep(&mut self, Remark { about, text }: Remark) -> bool {
        let now = Instant::now();
        if !self.0.contains_key(&about) {
            self.0.retain(|_, topic| !topic.unsaid.is_empty() || topic.due > now);
            if self.0.len() >= TOPICS {
                return false;
            }
        }
        let topic = self.0.entry(about).or_insert(Topic { unsaid: BTreeSet::new(), due: now });
        if topic.unsaid.is_empty() {
            topic.due = topic.due.max(now + GATHER);
        }
        let has_room = topic.unsaid.len() < TEXTS || topic.unsaid.contains(&text);
        if has_room {
            topic.unsaid.insert(text);
        }
        has_room
    }

    /// When there is something to say.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.unsaid().map(|(_, topic)| topic.due).min()
    }

    /// The topic that has been due for the longest time, if it was due at `then`.
    pub(super) fn due(&self, then: Instant) -> Option<(About, &BTreeSet<String>)> {
        let (about, topic) = self.unsaid().min_by_key(|(_, topic)| topic.due)?;
        (topic.due <= then).then(|| (about.clone(), &topic.unsaid))
    }

    /// Notes that all of a topic was said: what comes now waits for [`QUIET`].
    pub(super) fn said(&mut self, about: &About) {
        if let Some(topic) = self.0.get_mut(about) {
            *topic = Topic { unsaid: BTreeSet::new(), due: Instant::now() + QUIET };
        }
    }

    /// Notes that a topic could not be said: all that is due by the next try goes first.
    pub(super) fn failed(&mut self, about: &About) {
        if let Some(topic) = self.0.get_mut(about) {
            topic.due = Instant::now() + PAUSE;
        }
    }

    fn unsaid(&self) -> impl Iterator<Item = (&About, &Topic)> {
        self.0.iter().filter(|(_, topic)| !topic.unsaid.is_empty())
    }
}
