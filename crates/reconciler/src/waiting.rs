//! News of objects that waits for the writer thread, which takes none in while it syncs.
//!
//! Of what happens to one object meanwhile only the last counts, and a whole list stands for all that was
//! told of its kind before it: so no more waits than there are objects, however often they change and however
//! long the kernel takes. (But for the Node, of which little is told.)

use std::mem;

use rustc_hash::FxHashMap;
use service::{Change, ObjectName};

use crate::ObjectKind;

/// The news that waits, in the order in which the writer is to take it in.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    news: Vec<Piece>,
    /// Where in `news` an object is spoken of, unless a list has come since: what follows a list must stay
    /// behind it.
    places: FxHashMap<Object, usize>,
}

/// A piece of news, which stands for all that it replaced.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) change: Change,
    /// The kind of objects that it is of.
    pub(crate) subject: ObjectKind,
    /// How many objects were told of, in this piece and in those that it replaced.
    pub(crate) objects: usize,
    /// How many pieces of news it stands for: itself, and those that it replaced.
    pub(crate) pieces: usize,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Object {
    Service(ObjectName),
    Slice(ObjectName),
}

impl Waiting {
    /// Adds the latest news. It takes the place of what was told of the same object before.
    ///
    /// That moves it ahead of news of other objects, which makes no difference in the end: the desired state
    /// does not depend on the order.
    pub(crate) fn push(&mut self, change: Change) {
        let end = self.news.len();
        let place = match object(&change) {
            Some(object) => *self.places.entry(object).or_insert(end),
            None => end,
        };
        match self.news.get_mut(place) {
            Some(earlier) => earlier.replace(change),
            None => self.push_behind(Piece::of(change)),
        }
    }

    /// Adds a piece at the end. A whole list takes the place of all that was told of its kind before. News of
    /// the Node takes no place: a Node that is gone, or lists no addresses, keeps those that it had.
    fn push_behind(&mut self, mut piece: Piece) {
        if piece.subject != ObjectKind::Node && object(&piece.change).is_none() {
            self.places.clear();
        }
        if matches!(piece.change, Change::ReplaceServices(_) | Change::ReplaceSlices(_)) {
            for outdated in self.news.extract_if(.., |earlier| earlier.subject == piece.subject) {
                piece.objects += outdated.objects;
                piece.pieces += outdated.pieces;
            }
        }
        self.news.push(piece);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.news.is_empty()
    }

    /// Takes all the news.
    pub(crate) fn take(&mut self) -> Vec<Piece> {
        self.places.clear();
        mem::take(&mut self.news)
    }
}

impl Piece {
    fn of(change: Change) -> Self {
        let (subject, objects) = ObjectKind::from_change(&change);
        Self { change, subject, objects, pieces: 1 }
    }

    fn replace(&mut self, mut later: Change) {
        // The delay of a change is measured from the news that has waited longest.
        if let (Change::ApplySlice(earlier), Change::ApplySlice(later)) = (&self.change, &mut later) {
            later.triggered_at = later.triggered_at.into_iter().chain(earlier.triggered_at).min();
        }
        let (objects, pieces) = (self.objects, self.pieces);
        *self = Self::of(later);
        self.objects += objects;
        self.pieces += pieces;
    }
}

/// The one object that a change is about; `None` if it is about all of a kind, or about this node.
fn object(change: &Change) -> Option<Object> {
    match change {
        Change::ApplyService(service) => Some(Object::Service(service.name.clone())),
        Change::DeleteService(name) => Some(Object::Service(name.clone())),
        Change::ApplySlice(slice) => Some(Object::Slice(slice.name.clone())),
        Change::DeleteSlice(name) => Some(Object::Slice(name.clone())),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
