//! Recognises the pods of this node: as configured, or by the Node's pod CIDRs (`detectLocalMode: NodeCIDR`).

use std::{convert::Infallible, fmt, future, time::Duration};

use anyhow::anyhow;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use netfilter::LocalTraffic;
use service::{Change, Node};
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};
use tracing::{info, warn};

use super::{Daemon, Source, control_handler::Problems, kernel::kube_ipvs0, observers::Shown};
use crate::{
    config::LocalMode,
    events::{Cause, Outbox},
};

/// A shorter wait is not logged: a Node mostly has its pod CIDRs before any pod runs on it.
const SILENCE: Duration = Duration::from_secs(1);

/// How often the log repeats that the wait goes on.
const REMINDER: Duration = Duration::from_secs(30);

/// The wait after which an Event says so.
const PATIENCE: Duration = Duration::from_secs(30);

/// The ranges of this node's pods, at most one per family. In a family without a range pods are not recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PodCidrs {
    ipv4: Option<Ipv4Net>,
    ipv6: Option<Ipv6Net>,
}

impl PodCidrs {
    /// The ranges in a Node. `None` without any: such a Node is incomplete.
    fn from_node(node: &Node) -> Option<Self> {
        let mut found = Self { ipv4: None, ipv6: None };
        for range in &node.pod_cidrs {
            match range {
                IpNet::V4(range) => found.ipv4 = found.ipv4.or(Some(*range)),
                IpNet::V6(range) => found.ipv6 = found.ipv6.or(Some(*range)),
            }
        }
        (found.ipv4.is_some() || found.ipv6.is_some()).then_some(found)
    }

    pub(super) fn from_change(change: &Change) -> Option<Self> {
        if let Change::Node(Some(node)) = change { Self::from_node(node) } else { None }
    }
}

impl From<PodCidrs> for LocalTraffic {
    fn from(PodCidrs { ipv4, ipv6 }: PodCidrs) -> Self {
        Self::Source { ipv4, ipv6 }
    }
}

impl fmt::Display for PodCidrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = self.ipv4.map(IpNet::V4).into_iter().chain(self.ipv6.map(IpNet::V6));
        f.write_str(&ranges.map(|range| range.to_string()).collect::<Vec<_>>().join(","))
    }
}

/// Returns how pods of this node are recognised, and a guard for later changes. Waits for the Node's pod CIDRs if
/// needed, and answers the control socket meanwhile.
pub(super) async fn local_traffic(
    daemon: &Daemon<'_>,
    shown: &Shown,
) -> anyhow::Result<(LocalTraffic, PodCidrGuard)> {
    let Daemon { settings, source, outbox, problems, control, .. } = daemon;
    match &settings.local_mode {
        LocalMode::Fixed(local_traffic) => Ok((local_traffic.clone(), PodCidrGuard::new(None))),
        LocalMode::NodeCidr => {
            kube_ipvs0::make_device()?;
            let reason = format!(
                "waiting for the podCIDRs of the Node {}, by which detectLocalMode NodeCIDR recognises its pods; \
                 nothing is programmed before",
                settings.services.node_name
            );
            let handler = daemon.control_handler(shown, Err(reason.clone()), None);
            let cidrs = tokio::select! {
                cidrs = first(source, &settings.services.node_name, problems) => cidrs?,
                never = remind(&reason, outbox) => match never {},
                () = control.serve(handler) => future::pending().await,
            };
            info!(%cidrs, "pods of this node are recognised by the Node's podCIDRs");
            Ok((cidrs.into(), PodCidrGuard::new(Some(cidrs))))
        }
    }
}

/// Waits for the first pod CIDRs from the source.
async fn first(source: &Source, node_name: &str, problems: &Problems) -> anyhow::Result<PodCidrs> {
    let (found, mut cidrs) = mpsc::channel(1);
    let send = |change| {
        problems.node.on_change(&change);
        if let Some(cidrs) = PodCidrs::from_change(&change) {
            // A full channel has some already.
            _ = found.try_send(cidrs);
        }
    };
    tokio::select! {
        error = source.follow_node(node_name, &problems.watches, send) => Err(error),
        Some(cidrs) = cidrs.recv() => Ok(cidrs),
    }
}

/// Reports the reason of the wait again and again.
async fn remind(reason: &str, outbox: &Outbox) -> Infallible {
    sleep(SILENCE).await;
    let log = async {
        loop {
            warn!("{reason}");
            sleep(REMINDER).await;
        }
    };
    let say = async {
        sleep(PATIENCE).await;
        outbox.remind(Cause::NO_POD_CIDRS, reason).await
    };
    tokio::select! {
        never = log => never,
        never = say => never,
    }
}

/// Notices pod CIDRs other than those in use: masquerading would be wrong for every new pod.
pub(super) struct PodCidrGuard {
    in_use: Option<PodCidrs>,
    others: watch::Sender<Option<PodCidrs>>,
}

impl PodCidrGuard {
    fn new(in_use: Option<PodCidrs>) -> Self {
        Self { in_use, others: watch::Sender::new(None) }
    }

    /// Compares a change from the source with the ranges in use.
    pub(super) fn on_change(&self, change: &Change) {
        let now = PodCidrs::from_change(change);
        if self.in_use.is_some() && now.is_some() && now != self.in_use {
            self.others.send_replace(now);
        }
    }

    /// Returns when the Node has other ranges, with the reason to exit.
    pub(super) async fn broken(&self) -> anyhow::Error {
        let mut others = self.others.subscribe();
        match (self.in_use, others.wait_for(Option::is_some).await.map(|now| *now)) {
            (Some(in_use), Ok(Some(now))) => anyhow!(
                "the Node's podCIDRs have changed from {in_use} to {now}, by which detectLocalMode \
                 NodeCIDR recognises pods; exiting to be restarted"
            ),
            // They are not in use.
            _ => future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::events::tests::Server;

    fn node(cidrs: &[&str]) -> Change {
        let pod_cidrs = cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect();
        Change::Node(Some(Node { pod_cidrs, ..Node::default() }))
    }

    fn cidrs_of_node(cidrs: &[&str]) -> Option<String> {
        PodCidrs::from_change(&node(cidrs)).map(|cidrs| cidrs.to_string())
    }

    /// The result for a daemon that uses the first of these and receives the others.
    async fn end(cidrs: &[&[&str]]) -> Option<String> {
        let (in_use, received) = cidrs.split_first().unwrap();
        let guard = PodCidrGuard::new(PodCidrs::from_change(&node(in_use)));
        for cidrs in received {
            guard.on_change(&node(cidrs));
        }
        timeout(Duration::ZERO, guard.broken()).await.ok().map(|error| error.to_string())
    }

    #[test]
    fn a_node_tells_of_a_range_in_one_family_or_in_both() {
        assert_eq!(cidrs_of_node(&["10.244.1.0/24"]).as_deref(), Some("10.244.1.0/24"));
        assert_eq!(
            cidrs_of_node(&["fd00::/64", "10.244.1.0/24"]).as_deref(),
            Some("10.244.1.0/24,fd00::/64")
        );
        assert_eq!(cidrs_of_node(&[]), None, "not yet");
    }

    #[tokio::test]
    async fn other_pod_cidrs_end_the_daemon_and_none_do_not() {
        let (ours, others) = (&["10.244.1.0/24", "fd00::/64"][..], &["10.244.9.0/24"][..]);
        assert_eq!(end(&[ours, ours, &[], ours]).await, None);
        assert_eq!(
            end(&[ours, &[], others]).await.unwrap(),
            "the Node's podCIDRs have changed from 10.244.1.0/24,fd00::/64 to 10.244.9.0/24, by which detectLocalMode \
             NodeCIDR recognises pods; exiting to be restarted"
        );
        assert_eq!(end(&[&[], others]).await, None, "they are not in use");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_of_half_a_minute_is_an_event_of_the_node_and_a_shorter_one_is_none() {
        let server = Server::taking();
        let (outbox, publisher) = server.queue();
        tokio::spawn(publisher.run());
        let waits = async |time| timeout(time, remind("waiting", &outbox)).await.unwrap_err();
        waits(REMINDER).await;
        sleep(REMINDER).await;
        assert_eq!(server.events(), [""; 0]);
        waits(REMINDER * 9).await;
        sleep(REMINDER).await;
        let [event] = &server.events()[..] else { panic!("not one Event") };
        assert_eq!((&event["reason"], &event["note"]), (&"NoPodCIDRs".into(), &"waiting".into()));
        assert_eq!((&event["type"], &event["regarding"]["kind"]), (&"Warning".into(), &"Node".into()));
    }
}
