//! Events about repairs of what something else had changed.

use reconciler::{Observer, SyncEvent};

use super::{Cause, Outbox};

/// Creates an Event of the node for each repair: the owner of the other program may look there.
pub struct RepairEvents(pub Outbox);

impl Observer for RepairEvents {
    fn on_sync(&mut self, sync: &SyncEvent<'_>) {
        let Some(first) = sync.report.first_repair() else { return };
        let others = if sync.report.repairs.len() > 1 { " and more" } else { "" };
        // Without a number, so that repetitions are one Event.
        let text = format!(
            "something else has changed what kube-ipvs programmed; repaired: {first}{others}. ipvsadm --clear, nft \
             flush ruleset and other proxies do that"
        );
        self.0.post_about_node(Cause::FOREIGN_CHANGE, text);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use reconciler::{SyncReport, Trigger};
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
        let mut repairs = RepairEvents(outbox);
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
}
