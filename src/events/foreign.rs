//! Events about virtual servers of others that were removed.

use reconciler::{Observer, SyncEvent};

use super::{Cause, Outbox};

/// Creates one Event of the node for each sync that removed virtual servers that no Service made: whoever misses them
/// may look there.
pub struct ForeignEvents(pub Outbox);

impl Observer for ForeignEvents {
    fn on_sync(&mut self, sync: &SyncEvent<'_>) {
        let removed = &sync.report.removed_foreign;
        if removed.count > 0 {
            let text = format!(
                "virtual servers that no Service made were removed, {} in all: {removed}. ipvs.excludeCIDRs keeps those \
                 of a range, --foreign-virtual-servers=keep all of others",
                removed.count
            );
            self.0.post_about_node(Cause::FOREIGN_REMOVED, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ipvs::{Protocol, ServiceAddress};
    use reconciler::{SyncReport, Trigger};
    use tokio::time::sleep;

    use super::{
        super::tests::{Server, synced},
        *,
    };

    #[tokio::test(start_paused = true)]
    async fn what_one_sync_removed_is_one_event_of_the_node_that_names_the_first_and_the_count() {
        let server = Server::taking();
        let (outbox, publisher) = server.queue();
        tokio::spawn(publisher.run());
        let mut foreign = ForeignEvents(outbox);
        let mut removed = |ports: std::ops::Range<u16>| {
            let at = |port| ServiceAddress { protocol: Protocol::Tcp, ip: [192, 0, 2, 7].into(), port };
            let removed_foreign = ports.map(at).collect::<Vec<_>>().iter().collect();
            let report = SyncReport { removed_foreign, ..SyncReport::empty(Trigger::Start) };
            synced(&mut foreign, &report);
        };
        removed(0..0);
        sleep(Duration::from_mins(1)).await;
        assert_eq!(server.events(), [""; 0], "nothing was removed");
        removed(6440..6447);
        sleep(Duration::from_mins(1)).await;
        let [event] = &server.events()[..] else { panic!("not one Event") };
        let note = event["note"].as_str().unwrap();
        assert!(note.contains("7 in all: TCP 192.0.2.7:6440, TCP 192.0.2.7:6441, "), "{note}");
        assert!(note.contains(":6444 and 2 more. ipvs.excludeCIDRs "), "{note}");
        assert_eq!(
            (&event["reason"], &event["type"]),
            (&"ForeignVirtualServersRemoved".into(), &"Warning".into())
        );
        assert_eq!(event["regarding"]["name"], "node-1");
    }
}
