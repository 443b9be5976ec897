//! Kubernetes' JSON: events of a watch, of which each is a line, and statuses.

use kube::core::{Status, WatchEvent};

use super::Unreadable;
use crate::{api::events::Event, objects::Kind};

/// Reads an event of a watch; what is no event may be the status of an error.
pub(in crate::api) fn event<T: Kind>(line: &str) -> Result<Event<T>, Unreadable> {
    match serde_json::from_str(line) {
        Ok(event) => Ok(match event {
            WatchEvent::Added(view) | WatchEvent::Modified(view) => Event::Applied(view),
            WatchEvent::Deleted(view) => Event::Deleted(view),
            WatchEvent::Bookmark(bookmark) => Event::Bookmark(bookmark.metadata.resource_version),
            WatchEvent::Error(status) => Event::Error(status),
        }),
        Err(error) => serde_json::from_str(line).map(Event::Error).map_err(|_| error.into()),
    }
}

/// Reads the answer to a request that was refused.
pub(in crate::api) fn status(text: &[u8]) -> Result<Status, Unreadable> {
    Ok(serde_json::from_slice(text)?)
}
