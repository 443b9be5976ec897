use proptest::{collection::vec, option, prelude::*, sample::select};

use super::*;

const TIMING: Timing = Timing {
    sync_period: Duration::from_secs(30),
    min_sync_period: Duration::from_secs(2),
    drain_timeout: None,
    tcp_timeout: Timing::TCP_TIMEOUT,
};

const PART: SyncEnd = SyncEnd {
    full: false,
    unread: false,
    idle: false,
    failures: Failures::None,
    rest: Rest::None,
    next_check: None,
};

const FULL: SyncEnd = SyncEnd { full: true, ..PART };

/// A schedule whose first sync has just ended, and when.
fn synced() -> (Schedule, Instant) {
    let (mut schedule, now) = (Schedule::new(TIMING), Instant::now());
    schedule.sync_ended(now, FULL);
    (schedule, now)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn the_first_change_is_synced_at_once() {
    let now = Instant::now();
    let mut schedule = Schedule::new(TIMING);
    assert_eq!(schedule.next_sync(now), None, "nothing is asked for");
    schedule.request(Trigger::Start);
    assert_eq!(schedule.next_sync(now), Some((now, Trigger::Start)));
}

#[test]
fn a_change_after_a_quiet_time_is_synced_at_once() {
    let (mut schedule, end) = synced();
    schedule.request(Trigger::Change);
    let (due, _) = schedule.next_sync(end + seconds(10)).unwrap();
    assert!(due <= end + seconds(10));
}

#[test]
fn min_sync_period_counts_from_the_end_of_the_last_sync_and_a_burst_is_one_sync() {
    let (mut schedule, end) = synced();
    schedule.request(Trigger::Change);
    schedule.request(Trigger::Change);
    assert_eq!(schedule.next_sync(end), Some((end + seconds(2), Trigger::Change)));
    let end = end + seconds(5);
    schedule.sync_ended(end, FULL);
    assert_eq!(schedule.next_sync(end), Some((end + seconds(30), Trigger::Period)), "nothing is left");
}

#[test]
fn a_periodic_sync_with_nothing_to_do_does_not_delay_the_next_change() {
    let (mut schedule, end) = synced();
    let now = end + seconds(30);
    schedule.sync_ended(now, SyncEnd { idle: true, ..FULL });
    assert_eq!(schedule.next_sync(now), Some((now + seconds(30), Trigger::Period)));
    schedule.request(Trigger::Change);
    let (due, trigger) = schedule.next_sync(now).unwrap();
    assert!(due <= now && trigger == Trigger::Change, "{due:?} {trigger:?}");
    schedule.sync_ended(now, PART);
    schedule.request(Trigger::Change);
    assert_eq!(schedule.next_sync(now), Some((now + seconds(2), Trigger::Change)));
}

#[test]
fn a_forced_sync_does_not_wait() {
    let (mut schedule, end) = synced();
    schedule.request(Trigger::Change);
    schedule.request(Trigger::Forced);
    assert_eq!(schedule.next_sync(end), Some((end, Trigger::Forced)));
}

#[test]
fn a_repair_hardly_waits_but_it_does() {
    let end = Instant::now();
    for trigger in [Trigger::TablesChanged, Trigger::VirtualServerLost] {
        for min_sync_period in [Duration::ZERO, seconds(2)] {
            let mut schedule = Schedule::new(Timing { min_sync_period, ..TIMING });
            schedule.sync_ended(end, FULL);
            schedule.request(trigger);
            assert_eq!(schedule.next_sync(end), Some((end + REPAIR_PAUSE, trigger)));
        }
    }
}

#[test]
fn nor_does_a_repair_wait_longer_where_the_period_ends_meanwhile() {
    let (mut schedule, begin) = synced();
    let end = begin + Duration::from_millis(29_900);
    schedule.sync_ended(end, PART);
    schedule.request(Trigger::KernelEvent);
    let now = end + Duration::from_millis(50);
    assert_eq!(schedule.next_sync(now), Some((end + REPAIR_PAUSE, Trigger::Period)));
    schedule.request(Trigger::Forced);
    assert_eq!(schedule.next_sync(now), Some((end, Trigger::Forced)));
}

#[test]
fn a_failed_sync_is_tried_again_sooner_than_the_period_and_ever_more_slowly() {
    let mut end = Instant::now();
    let mut schedule = Schedule::new(Timing { min_sync_period: Duration::ZERO, ..TIMING });
    let mut waits = Vec::new();
    for _ in 0..7 {
        schedule.sync_ended(end, SyncEnd { failures: Failures::Tried, ..FULL });
        let (due, trigger) = schedule.next_sync(end).unwrap();
        waits.push(((due - end).as_secs(), trigger));
        end = due;
    }
    let expected = [1, 2, 4, 8, 16].map(|wait| (wait, Trigger::Retry));
    assert_eq!(waits.get(..5).unwrap(), expected);
    assert_eq!(*waits.last().unwrap(), (30, Trigger::Period), "never more slowly than the period");
    schedule.sync_ended(end, FULL);
    assert_eq!(schedule.next_sync(end), Some((end + seconds(30), Trigger::Period)));
}

#[test]
fn changes_failures_and_draining_do_not_put_off_the_period() {
    let begin = Instant::now();
    let mut schedule = Schedule::new(Timing { min_sync_period: Duration::ZERO, ..TIMING });
    schedule.sync_ended(begin, FULL);
    for second in 1..30 {
        let now = begin + seconds(second);
        schedule.request(Trigger::Change);
        assert_eq!(schedule.next_sync(now).unwrap().1, Trigger::Change, "second {second}");
        let next_check = Some((now + seconds(1), Trigger::Drain));
        schedule
            .sync_ended(now, SyncEnd { failures: Failures::Tried, rest: Rest::Deferred, next_check, ..PART });
    }
    schedule.request(Trigger::Change);
    assert_eq!(schedule.next_sync(begin + seconds(30)).unwrap().1, Trigger::Period);
}

#[test]
fn what_arrives_during_a_comparison_goes_first_and_the_period_follows() {
    let (mut schedule, begin) = synced();
    let now = begin + seconds(30);
    assert_eq!(schedule.next_sync(now), Some((now, Trigger::Period)));
    schedule.postpone_period();
    assert_eq!(schedule.next_sync(now), Some((now, Trigger::Period)), "nothing else is due");
    schedule.request(Trigger::Change);
    assert_eq!(schedule.next_sync(now).unwrap().1, Trigger::Change);
    schedule.sync_ended(now, PART);
    schedule.request(Trigger::Change);
    assert_eq!(schedule.next_sync(now + seconds(2)).unwrap().1, Trigger::Period, "one sync goes first");
}

#[test]
fn a_comparison_is_interrupted_from_the_end_of_the_period_to_that_of_another_one() {
    let begin = Instant::now();
    let mut schedule = Schedule::new(TIMING);
    assert!(!schedule.may_interrupt_comparison(begin), "nothing is known of the kernel");
    schedule.sync_ended(begin, FULL);
    // Whatever the pause after it.
    schedule.sync_ended(begin + seconds(29), PART);
    let may = [29, 30, 59, 60].map(|second| schedule.may_interrupt_comparison(begin + seconds(second)));
    assert_eq!(may, [false, true, true, false]);
}

#[test]
fn whatever_is_due_beside_the_period_is_known_while_the_kernel_is_compared() {
    let (mut schedule, begin) = synced();
    let now = begin + seconds(30);
    assert_eq!(schedule.next_but_periodic(now), None);
    let next_check = Some((now + seconds(3), Trigger::Drain));
    schedule.sync_ended(now, SyncEnd { next_check, ..PART });
    assert_eq!(schedule.next_but_periodic(now), next_check);
    schedule.request(Trigger::Change);
    assert_eq!(schedule.next_but_periodic(now), Some((now + seconds(2), Trigger::Change)));
    schedule.sync_ended(now, SyncEnd { rest: Rest::Interrupted, ..PART });
    assert_eq!(schedule.next_but_periodic(now), Some((now, Trigger::Continue)));
}

#[test]
fn a_kernel_that_cannot_be_read_is_not_read_without_a_pause() {
    let mut now = Instant::now();
    let mut schedule = Schedule::new(Timing { min_sync_period: Duration::ZERO, ..TIMING });
    schedule.sync_ended(now, FULL);
    now += seconds(40);
    schedule.sync_ended(now, SyncEnd { unread: true, failures: Failures::Tried, ..PART });
    assert!(schedule.next_sync(now).unwrap().0 >= now + seconds(1), "{:?}", schedule.next_sync(now));
}

#[test]
fn draining_real_servers_are_checked_when_due() {
    let end = Instant::now();
    let mut schedule = Schedule::new(TIMING);
    schedule.sync_ended(end, SyncEnd { next_check: Some((end + seconds(5), Trigger::Drain)), ..FULL });
    assert_eq!(schedule.next_sync(end), Some((end + seconds(5), Trigger::Drain)));
    schedule.sync_ended(end, SyncEnd { next_check: Some((end + seconds(1), Trigger::Drain)), ..FULL });
    assert_eq!(schedule.next_sync(end), Some((end + seconds(2), Trigger::Drain)), "the pause is kept");
}

#[test]
fn deferred_work_follows_soon_and_other_changes_come_in_between() {
    let end = Instant::now();
    let mut schedule = Schedule::new(Timing { min_sync_period: Duration::ZERO, ..TIMING });
    schedule.sync_ended(end, SyncEnd { rest: Rest::Deferred, ..FULL });
    assert_eq!(schedule.next_sync(end), Some((end + CONTINUE_PAUSE, Trigger::Continue)));
    schedule.request(Trigger::Change);
    assert_eq!(schedule.next_sync(end), Some((end, Trigger::Change)));
}

#[test]
fn what_was_interrupted_goes_on_at_once_whatever_the_pause() {
    let end = Instant::now();
    let mut schedule = Schedule::new(TIMING);
    schedule.sync_ended(end, SyncEnd { rest: Rest::Interrupted, ..FULL });
    assert_eq!(schedule.next_sync(end), Some((end, Trigger::Continue)));
    schedule.request(Trigger::Forced);
    assert_eq!(schedule.next_sync(end), Some((end, Trigger::Forced)));
}

#[test]
fn what_failed_waits_for_its_retry_while_there_is_more_to_do() {
    let mut now = Instant::now();
    let mut schedule = Schedule::new(Timing { min_sync_period: Duration::ZERO, ..TIMING });
    let slice = SyncEnd { failures: Failures::Tried, rest: Rest::Interrupted, ..PART };
    schedule.sync_ended(now, slice);
    let retry = now + seconds(1);
    while now < retry {
        assert_eq!(schedule.next_sync(now), Some((now, Trigger::Continue)));
        now += Duration::from_millis(300);
        schedule.sync_ended(now, SyncEnd { failures: Failures::Waiting, ..slice });
    }
    assert_eq!(schedule.next_sync(now), Some((retry, Trigger::Retry)));
    schedule.sync_ended(now, slice);
    schedule.sync_ended(now, PART);
    assert_eq!(schedule.next_sync(now).unwrap().1, Trigger::Period, "nothing fails any more");
}

fn any_time(most: u64) -> impl Strategy<Value = Duration> {
    (0..most).prop_map(Duration::from_millis)
}

fn any_timing() -> impl Strategy<Value = Timing> {
    // The configuration refuses a least time above the period.
    (any_time(5_000), any_time(60_000)).prop_map(|(min_sync_period, more)| Timing {
        sync_period: min_sync_period + more,
        min_sync_period,
        drain_timeout: None,
        tcp_timeout: Timing::TCP_TIMEOUT,
    })
}

fn any_trigger() -> impl Strategy<Value = Trigger> {
    select(vec![
        Trigger::Change,
        Trigger::KernelEvent,
        Trigger::TablesChanged,
        Trigger::NodeAddresses,
        Trigger::VirtualServerLost,
        Trigger::Forced,
    ])
}

fn any_rest() -> impl Strategy<Value = Rest> {
    select(vec![Rest::None, Rest::Deferred, Rest::Interrupted])
}

/// The end of a sync at this time after the begin.
fn any_end(begin: Instant) -> impl Strategy<Value = (Instant, SyncEnd)> {
    let idle = [FULL, PART].map(|end| SyncEnd { idle: true, ..end });
    let read = select([vec![FULL, PART, SyncEnd { unread: true, ..PART }], idle.to_vec()].concat());
    (any_time(90_000), read, any::<bool>(), any_rest(), option::of(any_time(120_000))).prop_map(
        move |(at, read, failed, rest, check)| {
            (
                begin + at,
                SyncEnd {
                    failures: match (failed || read.unread, read.idle) {
                        (false, _) => Failures::None,
                        (true, false) => Failures::Tried,
                        (true, true) => Failures::Waiting,
                    },
                    rest,
                    next_check: check.map(|check| (begin + check, Trigger::Drain)),
                    ..read
                },
            )
        },
    )
}

proptest! {
    #[test]
    fn next_sync_is_never_later_than_the_period_nor_too_soon_after_the_last(
        (timing, mut ends, wanted, later) in (
            any_timing(),
            vec(any_end(Instant::now()), 1..6),
            vec(any_trigger(), 0..3),
            any_time(90_000),
        ),
    ) {
        ends.sort_by_key(|(at, _)| *at);
        // The first sync is neither periodic nor continued.
        ends.iter_mut().take(1).for_each(|(_, end)| end.idle = false);
        let mut schedule = Schedule::new(timing);
        for (at, end) in &ends {
            schedule.sync_ended(*at, *end);
        }
        for trigger in &wanted {
            schedule.request(*trigger);
        }

        let (last_end, last) = *ends.last().unwrap();
        let (due, trigger) = schedule.next_sync(last_end + later).unwrap();
        let full = ends.iter().rev().find(|(_, end)| end.full);
        // A kernel that could not be read is read again after a pause.
        let begin = full.filter(|_| !last.unread).map_or(last_end, |(at, _)| *at);
        let latest = (last_end + timing.min_sync_period).max(begin + timing.sync_period);
        let (active_end, _) = *ends.iter().rfind(|(_, end)| !end.idle).unwrap();
        // A retry that waits was due already before an idle sync.
        let is_from_active = wanted.contains(&Trigger::Change) || last.failures == Failures::Waiting;
        let soonest = if is_from_active { active_end } else { last_end } + timing.min_sync_period;
        prop_assert!(due <= latest, "{:?} late, {trigger:?}", due - latest);
        // Of these the period may do the work.
        if last.rest != Rest::Interrupted && trigger != Trigger::Forced && !wanted.into_iter().any(Trigger::is_repair) {
            prop_assert!(due >= soonest, "{:?} too soon, {trigger:?}", soonest - due);
        }
    }
}
