//! News that waits for the writer thread, which takes none in while it syncs.
//!
//! Of what happens to one object meanwhile only the last counts, and a whole list stands for all that was told of its
//! kind before it: so no more waits than there are objects, however often they change and however long the kernel takes.
//! (But for the Node, of which little is told.)

use std::mem;

use rustc_hash::FxHashMap;
use service::{Change, ObjectName};

/// The news, in the order in which the writer is to take it in.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    news: Vec<Piece>,
    /// Where in `news` an object is spoken of, unless a list has come since: what follows a list must stay behind it.
    places: FxHashMap<Object, usize>,
}

/// A piece of news, which stands for all that it replaced.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) change: Change,
    /// How many pieces of news it stands for, itself included.
    pub(crate) stands_for: usize,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Object {
    Service(ObjectName),
    Slice(ObjectName),
}

/// What news is about.
enum About {
    /// One of many objects.
    Object(Object),
    /// All objects of a kind.
    List,
    /// This node. What was told of it before is not all replaced: a Node that is gone, or lists no addresses, has
    /// those that it had.
    Node,
}

impl Waiting {
    /// Adds the latest news.
    ///
    /// It takes the place of what was told of the same object before. That moves it ahead of news of other objects,
    /// which makes no difference in the end: the desired state does not depend on the order.
    pub(crate) fn push(&mut self, change: Change) {
        let end = self.news.len();
        let place = match about(&change) {
            About::Object(object) => *self.places.entry(object).or_insert(end),
            About::List => return self.push_list(change),
            About::Node => end,
        };
        match self.news.get_mut(place) {
            Some(earlier) => earlier.replace(change),
            None => self.news.push(Piece { change, stands_for: 1 }),
        }
    }

    fn push_list(&mut self, change: Change) {
        self.places.clear();
        let mut stands_for = 1;
        self.news.retain(|earlier| {
            let outdated = replaces(&change, &earlier.change);
            stands_for += if outdated { earlier.stands_for } else { 0 };
            !outdated
        });
        self.news.push(Piece { change, stands_for });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.news.is_empty()
    }

    /// Takes all of it.
    pub(crate) fn take(&mut self) -> Vec<Piece> {
        self.places.clear();
        mem::take(&mut self.news)
    }
}

impl Piece {
    fn replace(&mut self, mut later: Change) {
        // How late a change is, is said of the one that has waited longest.
        if let (Change::ApplySlice(earlier), Change::ApplySlice(later)) = (&self.change, &mut later) {
            later.triggered_at = later.triggered_at.into_iter().chain(earlier.triggered_at).min();
        }
        self.change = later;
        self.stands_for += 1;
    }
}

fn about(change: &Change) -> About {
    match change {
        Change::ApplyService(service) => About::Object(Object::Service(service.name.clone())),
        Change::DeleteService(name) => About::Object(Object::Service(name.clone())),
        Change::ApplySlice(slice) => About::Object(Object::Slice(slice.name.clone())),
        Change::DeleteSlice(name) => About::Object(Object::Slice(name.clone())),
        Change::ReplaceServices(_)
        | Change::ListServices(_)
        | Change::KeepServices(_)
        | Change::ReplaceSlices(_)
        | Change::ListSlices(_)
        | Change::KeepSlices(_) => About::List,
        Change::ApplyNode(_) | Change::DeleteNode | Change::NodeAddresses(_) => About::Node,
    }
}

/// Whether this is a whole list of the kind of objects that the earlier news is about.
fn replaces(list: &Change, earlier: &Change) -> bool {
    match list {
        Change::ReplaceServices(_) => matches!(
            earlier,
            Change::ReplaceServices(_)
                | Change::ListServices(_)
                | Change::KeepServices(_)
                | Change::ApplyService(_)
                | Change::DeleteService(_)
        ),
        Change::ReplaceSlices(_) => matches!(
            earlier,
            Change::ReplaceSlices(_)
                | Change::ListSlices(_)
                | Change::KeepSlices(_)
                | Change::ApplySlice(_)
                | Change::DeleteSlice(_)
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
