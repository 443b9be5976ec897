//! Events about what syncs found of other programs: repairs of what they had changed, and virtual servers of
//! others that were removed.

use reconciler::{Observer, SyncEvent, SyncReport};

use super::{Cause, Outbox};

/// Creates an Event of the node for each sync that repaired something, and for each that removed virtual
/// servers that no Service made: the other program's owner may find it there.
pub struct SyncEvents(pub Outbox);

impl Observer for SyncEvents {
    fn on_sync(&mut self, sync: &SyncEvent<'_>) {
        if let Some(text) = repaired(sync.report) {
            self.0.post_about_node(Cause::FOREIGN_CHANGE, text);
        }
        if let Some(text) = removed(sync.report) {
            self.0.post_about_node(Cause::FOREIGN_REMOVED, text);
        }
    }
}

/// Without a number, so that repetitions are one Event.
fn repaired(report: &SyncReport) -> Option<String> {
    let first = report.first_repair()?;
    let others = if report.repairs.len() > 1 { " and more" } else { "" };
    Some(format!(
        "something else has changed what kube-ipvs programmed; repaired: {first}{others}. ipvsadm --clear, nft \
         flush ruleset and other proxies do that"
    ))
}

fn removed(report: &SyncReport) -> Option<String> {
    let removed = &report.removed_foreign;
    (removed.count > 0).then(|| {
        format!(
            "virtual servers that no Service made were removed, {} in all: {removed}. ipvs.excludeCIDRs keeps those \
             of a range, --foreign-virtual-servers=keep all of others",
            removed.count
        )
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ipvs::{Protocol, ServiceAddress};
    use reconciler::Trigger;
    use tokio::time::sleep;

    use super::{
        super::tests::{Server, synced},
        *,
    };

    #[tokio::test(start_paused = true)]
    async fn what_was_repaired_is_one_event_of_the_node_in_ten_minutes() {
        let server = Server::taking();
        let (outbox, publisher) = server.queue();
        tokio::spawn(publisher.run());
        let mut repairs = SyncEvents(outbox);
        let mut repaired = |done, what: &[&str]| {
            let repairs_of = what.iter().map(|&repair| repair.to_owned()).collect();
            let report = SyncReport { done, repairs: repairs_of, ..SyncReport::empty(Trigger::Period) };
            synced(&mut repairs, &report);
        };
        repaired(9, &[]);
        sleep(Duration::from_mins(1)).await;
        assert_eq!(server.events(), [""; 0], "nothing was repaired");
        for _ in 0..5 {
            repaired(2, &["add a virtual server", "add a real server"]);
            sleep(Duration::from_mins(1)).await;
        }
        let [event] = &server.events()[..] else { panic!("not one Event") };
        let note = event["note"].as_str().unwrap();
        assert!(note.contains("; repaired: add a virtual server and more."), "{note}");
        assert_eq!((&event["reason"], &event["type"]), (&"ForeignChangeRepaired".into(), &"Warning".into()));
        assert_eq!(event["regarding"]["name"], "node-1");
    }

    #[tokio::test(start_paused = true)]
    async fn what_one_sync_removed_is_one_event_with_the_first_and_the_count() {
        let server = Server::taking();
        let (outbox, publisher) = server.queue();
        tokio::spawn(publisher.run());
        let mut foreign = SyncEvents(outbox);
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
