use ipvs::Protocol;

use super::*;

fn virtual_server(port: u16) -> ServiceAddress {
    ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 1].into(), port }
}

fn real_server(last: u8) -> RealServerAddress {
    RealServerAddress { ip: [10, 244, 0, last].into(), port: 8080 }
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
        draining.update(virtual_server(80), [real_server(1)].into_iter(), now);
        now = draining.next_check().unwrap();
        checks.push((now - begin).as_secs());
    }
    assert_eq!(checks, [1, 2, 4, 8, 16, 26, 36, 46]);
    assert_eq!(draining.longest(now), seconds(46));
    assert_eq!(
        draining.expired(&virtual_server(80), now + seconds(1_000_000)).count(),
        0,
        "it may drain for ever"
    );
}

#[test]
fn each_has_its_own_time_and_only_its_virtual_server_is_due() {
    let begin = Instant::now();
    let mut draining = Draining::new(None);
    draining.update(virtual_server(80), [real_server(1)].into_iter(), begin);
    draining.update(virtual_server(81), [real_server(1)].into_iter(), begin + seconds(20));
    assert_eq!(draining.next_check(), Some(begin + seconds(1)));
    let due = |draining: &Draining, after| draining.due(begin + seconds(after)).collect::<Vec<_>>();
    assert_eq!(due(&draining, 0), []);
    assert_eq!(due(&draining, 20), [virtual_server(80)]);
    // The second real server of a virtual server keeps its own time too.
    draining.update(virtual_server(80), [real_server(1), real_server(2)].into_iter(), begin + seconds(20));
    assert_eq!(due(&draining, 21), [virtual_server(80), virtual_server(81)]);
    let both = [real_server(1), real_server(2)].into_iter();
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
    draining.update(virtual_server(80), [real_server(1), real_server(2)].into_iter(), begin);
    draining.update(virtual_server(81), [real_server(1)].into_iter(), begin + seconds(1));
    let pending = DrainStats { pending: 3, oldest: Some(begin), ..DrainStats::default() };
    assert_eq!(draining.take_stats(0), DrainStats { started: 3, ..pending });
    assert_eq!(draining.take_stats(0), pending);
    // One goes, another comes, and one stays.
    draining.update(virtual_server(80), [real_server(2), real_server(3)].into_iter(), begin + seconds(2));
    assert_eq!(draining.take_stats(7), DrainStats { started: 1, ended: 1, cut_off: 7, ..pending });
    draining.update(virtual_server(80), [].into_iter(), begin + seconds(3));
    let one = DrainStats { pending: 1, oldest: Some(begin + seconds(1)), ..DrainStats::default() };
    assert_eq!(draining.take_stats(0), DrainStats { ended: 2, ..one });
}

#[test]
fn one_that_is_gone_is_forgotten_and_its_time_begins_anew_when_it_drains_again() {
    let begin = Instant::now();
    let mut draining = Draining::new(None);
    draining.update(virtual_server(80), [real_server(1)].into_iter(), begin);
    draining.update(virtual_server(80), [].into_iter(), begin + seconds(1));
    assert_eq!((draining.count(), draining.next_check()), (0, None));
    assert_eq!(draining.virtual_servers().count(), 0);
    draining.update(virtual_server(80), [real_server(1)].into_iter(), begin + seconds(5));
    assert_eq!(draining.longest(begin + seconds(7)), seconds(2));
}

#[test]
fn timeout_is_a_time_to_check_and_what_outlasts_it_is_checked_on() {
    let begin = Instant::now();
    let mut draining = Draining::new(Some(seconds(5)));
    let mut now = begin;
    let mut checks = Vec::new();
    for _ in 0..6 {
        draining.update(virtual_server(80), [real_server(1)].into_iter(), now);
        now = draining.next_check().unwrap();
        checks.push(((now - begin).as_secs(), draining.expired(&virtual_server(80), now).count()));
    }
    assert_eq!(checks, [(1, 0), (2, 0), (4, 0), (5, 1), (10, 1), (20, 1)]);
}

#[test]
fn nothing_is_due_after_a_sync_that_saw_nothing() {
    let begin = Instant::now();
    let mut draining = Draining::new(Some(seconds(1)));
    draining.update(virtual_server(80), [real_server(1)].into_iter(), begin);
    let now = begin + seconds(3);
    draining.postpone_due(now);
    assert_eq!(draining.next_check(), Some(begin + seconds(6)));
    assert_eq!(draining.expired(&virtual_server(80), now).next(), Some(real_server(1)));
    assert_eq!(draining.longest(now), seconds(3), "it drains on");
}
