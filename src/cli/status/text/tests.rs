use std::time::Duration;

use super::{super::tests::sample, *};

#[test]
fn the_status_begins_with_whether_all_is_well_and_ends_with_problems_and_remedies() {
    let mut status = sample::status();
    let expected = "\
NOT in sync:     syncs have been failing for 42 s
kube-ipvs:       0.1.0 on node-1 for 3 h 12 min
synced:          no, syncs have been failing for 42 s
differs:         add real server TCP 10.96.0.10:80 -> 10.244.1.1:8080 weight 1
                 add real server TCP 10.96.0.10:80 -> 10.244.1.2:8080 weight 1
                 add real server TCP 10.96.0.10:80 -> 10.244.1.3:8080 weight 1
                 add real server TCP 10.96.0.10:80 -> 10.244.1.4:8080 weight 1
                 add real server TCP 10.96.0.10:80 -> 10.244.1.5:8080 weight 1
                 and 2 more
Services:        7, without endpoint: default/typo
virtual servers: 12
real servers:    40
VIPs:            6
not bound:       1 external address that another host has: 192.0.2.11
draining:        2, the first for 61 s
                 10.244.1.7:8080 for 61 s, of TCP 10.96.0.10:80, default/web
                 10.244.1.8:8080 for 61 s, of TCP 10.96.0.10:80, no Service
ejected:         1, and 0 on trial
                 default/web: TCP 10.244.1.9:8080 ejected: it does not answer
foreign:         2 virtual servers kept: TCP 192.0.2.7:6443, TCP 192.0.2.7:6444
foreign:         1 virtual server removed since the start: TCP 192.0.2.7:80
last sync:       3.2 s ago, for the period: 0 operations in 0.250 s, 1 failed
last change:     12 min 5 s ago, after a change: 3 real servers and 1 virtual server added, for default/web
last repair:     3.2 s ago, for the period; since the start 9 operations repaired what another program had changed
                 bind 10.96.0.1
                 bind 10.96.0.2
                 bind 10.96.0.3
                 bind 10.96.0.4
                 bind 10.96.0.5
                 and more
last full read:  3.2 s ago; `kube-ipvs resync` reads the kernel now
schedulers:      240 still to be changed
busy with:       shop/large for 12 s; 700 changes left, others are served in between
packets:         dropped 12 (source ranges), rejected 3 (no Service has this port), masqueraded 400 (flows to Services) \
in the last 5 min 0 s
API server:      10.0.0.1:6443
                 endpointslices NOT watched for 42 s; last failure 3.2 s ago: the server answered 503 Service Unavailable
                 nodes watched for 3 h 11 min
                 services watched for 10 min 0 s; last failure 10 min 1 s ago: the server answered 503 Service Unavailable
kernel:          5.4.0-216-generic, IPVS 1.2.1; IPv4 and IPv6; VIPs as addresses; scheduler rr
kernel lacks:    sets of intervals of concatenations (nft_set_pipapo, Linux 5.6), IPv4
endpoints:       1 DO NOT ANSWER; 37 answer
                 default/web: 10.244.1.7:8080 DOES NOT ANSWER for 12 s (5 connections) at TCP 10.96.0.10:80
failed:          add virtual server TCP 10.96.0.10:81 mh: no such scheduler (ENOENT)
problem:         default/web: spec.ports[1] is wrong
warning:         it drops; remedy: open it
";
    assert_eq!(text(&status), expected);

    status.programmed = reconciler::SyncStatus::default();
    status.packets = RecentPackets::default();
    status.advice.clear();
    status.endpoints = AnswersSummary::default();
    status.daemon.source = SourceInfo::Manifests { directory: "/etc/services".into() };
    status.daemon.kernel = None;
    let expected = "\
NOT in sync:     Services and EndpointSlices are not listed yet, for 0.0 s
kube-ipvs:       0.1.0 on node-1 for 3 h 12 min
synced:          no, Services and EndpointSlices are not listed yet, for 0.0 s
virtual servers: not known yet; what was programmed before stays: `kube-ipvs list` shows it
last sync:       none yet
last full read:  none yet
manifests:       /etc/services
";
    assert_eq!(text(&status), expected);
}

#[test]
fn synced_has_the_answer_as_its_first_word() {
    let daemon = sample::status().daemon;
    let said = |sync_state| {
        let sync_state_age = Duration::from_secs(7_500);
        synced(
            &reconciler::SyncStatus { sync_state, sync_state_age, ..reconciler::SyncStatus::default() },
            &daemon,
        )
    };
    assert_eq!(said(SyncState::Synced), "yes, for 2 h 5 min as of the last full read");
    assert_eq!(said(SyncState::Behind), "no, a change has been waiting for 2 h 5 min");
    let step = reconciler::SyncStatus {
        sync_state: SyncState::Behind,
        sync_state_age: Duration::from_secs(3),
        scheduler_changes: 240,
        ..reconciler::SyncStatus::default()
    };
    assert_eq!(synced(&step, &daemon), "no, schedulers are being changed for 3.0 s");
}

#[test]
fn a_kernel_that_lacks_nothing_is_said_to() {
    let mut kernel = sample::status().daemon.kernel.unwrap();
    kernel.lacks.clear();
    let mut lines = Lines::default();
    lines.kernel(&kernel);
    assert!(lines.0.ends_with(
        "nf_tables:       has every feature that is used, source ranges (nft_set_pipapo) included\n"
    ));
}

#[test]
fn what_drains_is_listed_in_part_and_counted_as_a_whole() {
    let mut status = sample::status().programmed;
    let drain = status.drains[0].clone();
    (status.draining, status.drains) = (100, vec![drain; 20]);
    let mut lines = Lines::default();
    lines.draining(&status);
    assert_eq!(lines.0.lines().count(), 1 + FIRST_DRAINS + 1, "{}", lines.0);
    assert!(lines.0.ends_with("and 95 more\n"), "{}", lines.0);
}

#[test]
fn what_others_have_said_forges_no_line() {
    let lines = |words: &str| {
        let mut status = sample::status();
        status.programmed.problems = vec![words.to_owned()];
        status.advice[0].what = words.to_owned();
        text(&status)
    };
    let forged = lines("refused\u{1b}[2J\nsynced:          yes");
    assert_eq!(forged.lines().count(), lines("refused").lines().count(), "{forged}");
    assert!(forged.contains(r"problem:         refused\u{1b}[2J\nsynced:          yes"), "{forged}");
}
