use std::time::{Duration, Instant};

use ipvs::{Protocol, RealServerAddress, ServiceAddress, Stats};
use proptest::prelude::*;

use super::{Evidence, Liveness};
use crate::input::{Answer, EndpointAnswer};

/// Connections, packets in and out, bytes in and out.
fn stats([connections, packets_in, packets_out, bytes_in, bytes_out]: [u64; 5]) -> Stats {
    let mut stats = Stats::default();
    stats.connections = connections;
    stats.packets_in = packets_in;
    stats.packets_out = packets_out;
    stats.bytes_in = bytes_in;
    stats.bytes_out = bytes_out;
    stats
}

/// The judgement after each reading; the first is of a server that has counted nothing.
fn judged(protocol: Protocol, expects_answers: bool, readings: &[(u64, [u64; 5])]) -> Vec<Liveness> {
    let begin = Instant::now();
    let mut evidence = Evidence::begin(protocol, false, &Stats::default(), expects_answers, begin);
    let judge = |(seconds, counted): &(u64, [u64; 5])| {
        let now = begin + Duration::from_secs(*seconds);
        evidence.update(&stats(*counted), 1, expects_answers, now);
        evidence.answering(now).liveness
    };
    readings.iter().map(judge).collect()
}

/// As counted on Linux 7.2.
const SERVES: [u64; 5] = [4, 24, 16, 1284, 904];
const REFUSES: [u64; 5] = [4, 4, 4, 240, 160];
const SILENT: [u64; 5] = [4, 4, 0, 240, 0];

#[test]
fn the_counters_of_three_endpoints_tell_them_apart() {
    assert_eq!(judged(Protocol::Tcp, true, &[(2, SERVES)]), [Liveness::Answers]);
    assert_eq!(judged(Protocol::Tcp, true, &[(2, REFUSES)]), [Liveness::Refuses]);
    let silent = judged(Protocol::Tcp, true, &[(2, SILENT), (3, SILENT), (6, SILENT)]);
    assert_eq!(
        silent,
        [Liveness::Idle, Liveness::Idle, Liveness::Silent],
        "the answer may be counted in the next tick"
    );
}

#[test]
fn a_firewall_refuses_a_connection_by_an_icmp_error() {
    assert_eq!(judged(Protocol::Tcp, true, &[(2, [2, 2, 2, 120, 176])]), [Liveness::Refuses]);
    assert_eq!(
        judged(Protocol::Tcp, true, &[(2, [1, 5, 5, 360, 500])]),
        [Liveness::Answers],
        "of equal length by chance"
    );
}

#[test]
fn datagrams_are_refused_by_icmp_errors_that_quote_them() {
    assert_eq!(judged(Protocol::Udp, true, &[(2, [3, 3, 3, 144, 228])]), [Liveness::Refuses]);
    assert_eq!(
        judged(Protocol::Udp, true, &[(2, [3, 3, 2, 144, 152])]),
        [Liveness::Refuses],
        "one ICMP error was limited"
    );
    assert_eq!(judged(Protocol::Udp, true, &[(2, [3, 3, 3, 144, 300])]), [Liveness::Answers]);
    assert_eq!(
        judged(Protocol::Udp, true, &[(2, [2, 2, 2, 2456, 1152])]),
        [Liveness::Refuses],
        "quoted in part"
    );
}

#[test]
fn datagrams_without_an_answer_are_a_fault_only_where_answers_are_expected() {
    let asked = [(2, [1, 3, 0, 144, 0]), (4, [1, 4, 0, 192, 0])];
    assert_eq!(judged(Protocol::Udp, false, &asked)[1], Liveness::OneWay);
    assert_eq!(judged(Protocol::Udp, true, &asked)[1], Liveness::Silent);
}

#[test]
fn a_lost_datagram_or_two_are_no_fault() {
    let asked = [(2, [1, 2, 0, 96, 0]), (20, [1, 2, 0, 96, 0]), (22, [2, 3, 0, 144, 0])];
    assert_eq!(judged(Protocol::Udp, true, &asked), [Liveness::Idle, Liveness::Idle, Liveness::Silent]);
}

#[test]
fn an_answer_in_the_next_tick_is_one() {
    let read = judged(Protocol::Tcp, true, &[(2, [1, 1, 0, 60, 0]), (4, [1, 3, 2, 164, 112])]);
    assert_eq!(read[1], Liveness::Answers);
    let read = judged(Protocol::Tcp, true, &[(2, [1, 1, 0, 60, 0]), (4, [1, 1, 1, 60, 40])]);
    assert_eq!(read[1], Liveness::Refuses);
}

#[test]
fn a_client_that_asks_again_within_a_tick_has_no_answer() {
    assert_eq!(judged(Protocol::Tcp, true, &[(2, [2, 3, 0, 180, 0])]), [Liveness::Silent]);
    assert_eq!(judged(Protocol::Tcp, true, &[(2, [2, 2, 0, 120, 0])]), [Liveness::Idle]);
    let others = [(2, [1, 2, 0, 112, 0]), (2, [1, 3, 0, 60 + 2 * 180, 0])];
    assert!(
        others.iter().all(|read| judged(Protocol::Tcp, true, &[*read]) == [Liveness::Idle]),
        "the last packet of an earlier connection; data that was sent again"
    );
    assert_eq!(
        judged(Protocol::Udp, true, &[(2, [2, 9, 0, 432, 0])]),
        [Liveness::Idle],
        "a burst of questions"
    );
}

#[test]
fn a_packet_without_an_answer_may_be_the_last_of_a_connection() {
    let read = [(2, SERVES), (4, [4, 25, 16, 1324, 904]), (30, [4, 25, 16, 1324, 904])];
    assert_eq!(judged(Protocol::Tcp, true, &read), [Liveness::Answers; 3]);
}

#[test]
fn clients_that_ask_again_and_again_show_it_without_new_connections() {
    let asked = |ticks: u64| [4, 24 + ticks, 16, 1284 + 61 * ticks, 904];
    let read = [(2, SERVES), (4, asked(1)), (6, asked(2)), (8, asked(3))];
    assert_eq!(judged(Protocol::Tcp, true, &read)[2..], [Liveness::Answers, Liveness::Silent]);
    let now_and_then = [(2, SERVES), (12, asked(1)), (30, asked(2)), (50, asked(3))];
    assert_eq!(judged(Protocol::Tcp, true, &now_and_then), [Liveness::Answers; 4]);
}

#[test]
fn a_client_that_reads_slowly_what_it_was_sent_needs_no_answer() {
    let window = |updates: u64| [4, 24 + updates, 16, 1284 + 52 * updates, 904];
    let read: Vec<_> =
        [(2, SERVES)].into_iter().chain((2..20).map(|tick| (2 * tick, window(3 * tick)))).collect();
    assert_eq!(judged(Protocol::Tcp, true, &read), [Liveness::Answers; 19]);
    // Data and a reset close one of its connections, and no other packet needs an answer.
    let closed = |then: u64| [4, 26 + then, 16, 1284 + 128 + 52 * then, 904];
    let read: Vec<_> =
        [(2, SERVES)].into_iter().chain((2..5).map(|tick| (2 * tick, closed(tick - 2)))).collect();
    assert_eq!(judged(Protocol::Tcp, true, &read), [Liveness::Answers; 4]);
}

#[test]
fn what_was_asked_a_minute_ago_says_nothing_any_more() {
    let read = [(2, SILENT), (6, SILENT), (61, SILENT), (62, SILENT)];
    assert_eq!(judged(Protocol::Tcp, true, &read)[1..], [Liveness::Silent, Liveness::Silent, Liveness::Idle]);
}

#[test]
fn an_endpoint_changes_from_one_fault_to_the_other_and_back() {
    let read = [
        (2, REFUSES),
        (4, [5, 5, 4, 300, 160]),
        (6, [5, 6, 4, 360, 160]),
        (8, [6, 7, 6, 420, 240]),
        (10, [7, 13, 10, 740, 500]),
    ];
    let expected =
        [Liveness::Refuses, Liveness::Refuses, Liveness::Silent, Liveness::Refuses, Liveness::Answers];
    assert_eq!(judged(Protocol::Tcp, true, &read), expected);
}

#[test]
fn totals_alone_show_no_failure() {
    let now = Instant::now();
    let begun = |counted| {
        let mut evidence = Evidence::begin(Protocol::Tcp, false, &stats(counted), true, now);
        evidence.update(&stats(counted), 0, true, now + Duration::from_secs(4));
        evidence.answering(now).liveness
    };
    assert_eq!([SERVES, REFUSES, SILENT].map(begun), [Liveness::Idle; 3]);
}

#[test]
fn a_client_that_began_before_the_first_reading_shows_silence_when_it_asks_again() {
    let begin = Instant::now();
    let answer = |counted, again| {
        let mut evidence = Evidence::begin(Protocol::Tcp, false, &stats(counted), true, begin);
        evidence.update(&stats(again), 0, true, begin + Duration::from_secs(2));
        (answer_of(&evidence, begin).map(|it| it.answer), evidence.liveness())
    };
    let (begun, again) = ([1, 2, 0, 120, 0], [1, 3, 0, 180, 0]);
    assert_eq!(answer(begun, again), (Some(Answer::Silent), Liveness::Silent));
    assert_eq!(answer(begun, begun), (None, Liveness::Idle), "it may be of any age");
}

/// What is sent of an endpoint's evidence.
fn answer_of(evidence: &Evidence, now: Instant) -> Option<EndpointAnswer> {
    let at = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 1].into(), port: 80 };
    evidence.answer(at, RealServerAddress { ip: [10, 1, 0, 1].into(), port: 8080 }, now)
}

#[test]
fn syns_that_are_repeated_show_silence_although_no_connection_is_open() {
    let begin = Instant::now();
    let mut evidence = Evidence::begin(Protocol::Tcp, false, &stats(SERVES), true, begin);
    for (tick, liveness) in [(1, Liveness::Idle), (2, Liveness::Silent)] {
        let repeated = [4, 24 + tick, 16, 1284 + 60 * tick, 904];
        evidence.update(&stats(repeated), 0, true, begin + Duration::from_secs(2 * tick));
        assert_eq!(evidence.liveness(), liveness, "tick {tick}");
    }
}

#[test]
fn what_was_sent_without_an_answer_is_not_what_it_last_answered() {
    let begin = Instant::now();
    let mut evidence = Evidence::begin(Protocol::Tcp, false, &Stats::default(), true, begin);
    let once_more = [4, 25, 16, 1344, 904];
    let of_an_open_connection = [4, 26, 17, 1396, 956];
    for (seconds, counted) in [(2, SERVES), (4, once_more), (12, once_more), (14, of_an_open_connection)] {
        evidence.update(&stats(counted), 0, true, begin + Duration::from_secs(seconds));
        if seconds != 4 {
            let last = Some((Answer::Answered, begin + Duration::from_secs(2)));
            let answer = answer_of(&evidence, begin + Duration::from_secs(seconds));
            assert_eq!(answer.map(|it| (it.answer, it.asked)), last, "after {seconds} s");
        }
    }
    assert!(answer_of(&evidence, begin + Duration::from_secs(32)).is_some());
    assert_eq!(answer_of(&evidence, begin + Duration::from_secs(33)), None, "that is too long ago");
}

#[test]
fn a_failing_endpoint_has_the_connections_that_failed_and_since_when() {
    let begin = Instant::now();
    let mut evidence = Evidence::begin(Protocol::Tcp, false, &Stats::default(), true, begin);
    for (seconds, connections) in [(2, 4), (4, 6), (6, 7)] {
        let counted = stats([connections, connections, 0, 60 * connections, 0]);
        evidence.update(&counted, 1, true, begin + Duration::from_secs(seconds));
    }
    let answering = evidence.answering(begin + Duration::from_secs(7));
    assert_eq!((answering.age, answering.failed_connections), (Duration::from_secs(5), 7));
    assert_eq!(answering.to_string(), "DOES NOT ANSWER for 5 s (7 connections)");
}

proptest! {
    #[test]
    fn whatever_is_counted_what_sends_packets_longer_than_refusals_is_never_failing(
        growth in proptest::collection::vec((0_u64..5, 0_u64..20, 1_u64..20), 1..20),
    ) {
        let begin = Instant::now();
        let mut evidence = Evidence::begin(Protocol::Tcp, false, &Stats::default(), true, begin);
        let mut counted = [0; 5];
        for (number, (connections, packets_in, packets_out)) in growth.into_iter().enumerate() {
            let more = [connections, packets_in, packets_out, 60 * packets_in, 41 * packets_out];
            counted.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            let now = begin + Duration::from_secs(2 * number as u64);
            evidence.update(&stats(counted), 1, true, now);
            prop_assert!(!evidence.answering(now).liveness.is_failing());
        }
    }
}
