use ipvs::RealServer;

use super::*;

fn virtual_server(port: u16) -> ServiceAddress {
    ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 1].into(), port }
}

fn real_server(last: u8) -> RealServerAddress {
    RealServerAddress { ip: [10, 244, 0, last].into(), port: 8080 }
}

/// These real servers, with a connection each and weight 0.
fn drain(lasts: &[u8]) -> impl Iterator<Item = RealServerImage> + Clone {
    let config = |last: &u8| RealServer::masquerade(real_server(*last).ip, 8080).weight(0);
    lasts.iter().map(move |last| RealServerImage { config: config(last), connections: 1 })
}

fn has_expired(draining: &mut Draining, now: Instant) -> bool {
    draining.expire(now);
    draining.has_expired(&virtual_server(80), &real_server(1))
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn real_server_is_checked_after_a_second_and_then_ever_more_rarely() {
    let begin = Instant::now();
    let mut draining = Draining::new(None);
    let (mut now, mut checks) = (begin, Vec::new());
    for _ in 0..8 {
        draining.update(virtual_server(80), drain(&[1]), now);
        now = draining.next_check().unwrap();
        checks.push((now - begin).as_secs());
    }
    assert_eq!(checks, [1, 2, 4, 8, 16, 26, 36, 46]);
    assert_eq!(draining.longest(now), seconds(46));
    assert!(!has_expired(&mut draining, now + seconds(1_000_000)), "it may drain for ever");
}

#[test]
fn each_has_its_own_time_and_only_its_virtual_server_is_due() {
    let begin = Instant::now();
    let mut draining = Draining::new(None);
    draining.update(virtual_server(80), drain(&[1]), begin);
    draining.update(virtual_server(81), drain(&[1]), begin + seconds(20));
    assert_eq!(draining.next_check(), Some(begin + seconds(1)));
    let due = |draining: &Draining, after| draining.due(begin + seconds(after)).collect::<Vec<_>>();
    assert_eq!(due(&draining, 0), []);
    assert_eq!(due(&draining, 20), [virtual_server(80)]);
    // The second real server of a virtual server keeps its own time too.
    draining.update(virtual_server(80), drain(&[1, 2]), begin + seconds(20));
    assert_eq!(due(&draining, 21), [virtual_server(80), virtual_server(81)]);
    let both = drain(&[1, 2]);
    draining.update(virtual_server(80), both, begin + seconds(21));
    assert_eq!(draining.longest(begin + seconds(21)), seconds(21));
    assert_eq!(draining.next_check(), Some(begin + seconds(21)), "that of the other virtual server");
    assert_eq!(draining.count(), 3);
    let oldest: Vec<_> = draining.oldest(begin + seconds(21)).take(2).collect();
    assert_eq!(
        oldest,
        [(virtual_server(80), real_server(1), seconds(21)), (virtual_server(80), real_server(2), seconds(1))]
    );
}

#[test]
fn begin_and_end_of_a_drain_count_once_and_pending_ones_have_an_age() {
    let begin = Instant::now();
    let mut draining = Draining::new(None);
    draining.update(virtual_server(80), drain(&[1, 2]), begin);
    draining.update(virtual_server(81), drain(&[1]), begin + seconds(1));
    let pending = DrainStats { pending: 3, oldest: Some(begin), ..DrainStats::default() };
    assert_eq!(draining.take_stats(0), DrainStats { started: 3, ..pending });
    assert_eq!(draining.take_stats(0), pending);
    // One goes, another comes, and one stays.
    draining.update(virtual_server(80), drain(&[2, 3]), begin + seconds(2));
    assert_eq!(draining.take_stats(7), DrainStats { started: 1, ended: 1, cut_off: 7, ..pending });
    draining.update(virtual_server(80), drain(&[]), begin + seconds(3));
    let one = DrainStats { pending: 1, oldest: Some(begin + seconds(1)), ..DrainStats::default() };
    assert_eq!(draining.take_stats(0), DrainStats { ended: 2, ..one });
}

#[test]
fn one_that_is_gone_is_forgotten_and_its_time_begins_anew_when_it_drains_again() {
    let begin = Instant::now();
    let mut draining = Draining::new(None);
    draining.update(virtual_server(80), drain(&[1]), begin);
    draining.update(virtual_server(80), drain(&[]), begin + seconds(1));
    assert_eq!((draining.count(), draining.next_check()), (0, None));
    assert_eq!(draining.virtual_servers().count(), 0);
    draining.update(virtual_server(80), drain(&[1]), begin + seconds(5));
    assert_eq!(draining.longest(begin + seconds(7)), seconds(2));
}

#[test]
fn timeout_is_a_time_to_check_and_what_outlasts_it_is_checked_on() {
    let begin = Instant::now();
    let mut draining = Draining::new(Some(seconds(5)));
    let mut now = begin;
    let mut checks = Vec::new();
    for _ in 0..6 {
        draining.update(virtual_server(80), drain(&[1]), now);
        now = draining.next_check().unwrap();
        checks.push(((now - begin).as_secs(), has_expired(&mut draining, now)));
    }
    assert_eq!(checks, [(1, false), (2, false), (4, false), (5, true), (10, true), (20, true)]);
}

#[test]
fn nothing_is_due_after_a_sync_that_saw_nothing() {
    let begin = Instant::now();
    let mut draining = Draining::new(Some(seconds(1)));
    draining.update(virtual_server(80), drain(&[1]), begin);
    let now = begin + seconds(3);
    draining.postpone_due(now);
    assert_eq!(draining.next_check(), Some(begin + seconds(6)));
    assert!(has_expired(&mut draining, now));
    assert_eq!(draining.longest(now), seconds(3), "it drains on");
}

#[test]
fn one_without_connections_does_not_drain_but_is_removed() {
    let now = Instant::now();
    let mut draining = Draining::new(None);
    let idle = drain(&[1]).map(|server| RealServerImage { connections: 0, ..server });
    draining.update(virtual_server(80), idle.clone(), now);
    assert_eq!(draining.take_stats(0), DrainStats::default(), "its removal was put off");
    let step =
        |server: RealServerImage| draining.next_step(&virtual_server(80), &server).unwrap().to_string();
    let removal = "delete real server TCP 10.96.0.1:80 -> 10.244.0.1:8080";
    assert_eq!(idle.map(step).collect::<Vec<_>>(), [removal]);
}
