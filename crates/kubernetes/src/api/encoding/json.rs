//! Kubernetes' JSON: events of a watch, of which each is a line, and statuses.

use kube::core::{self, Status};

use super::Unreadable;
use crate::{api::events::WatchEvent, objects::Kind};

/// Reads an event of a watch; what is no event may be the status of an error.
pub(in crate::api) fn event<T: Kind>(line: &str) -> Result<WatchEvent<T>, Unreadable> {
    match serde_json::from_str(line) {
        Ok(event) => Ok(match event {
            core::WatchEvent::Added(view) | core::WatchEvent::Modified(view) => WatchEvent::Applied(view),
            core::WatchEvent::Deleted(view) => WatchEvent::Deleted(view),
            core::WatchEvent::Bookmark(bookmark) => WatchEvent::Bookmark(bookmark.metadata.resource_version),
            core::WatchEvent::Error(status) => WatchEvent::Error(status),
        }),
        Err(error) => serde_json::from_str(line).map(WatchEvent::Error).map_err(|_| error.into()),
    }
}

/// Reads the answer to a request that was refused.
pub(in crate::api) fn status(text: &[u8]) -> Result<Status, Unreadable> {
    Ok(serde_json::from_slice(text)?)
}
