pub(in crate::cli::top) mod made_up;

use operator::{
    output::{Format, one_of_many},
    top::text,
};

use service::liveness::{Answering, Liveness};

use super::{super::documented_tests::assert_documented, *};
use made_up::{frame, server, traffic, vip};

fn answering(liveness: Liveness) -> Answering {
    Answering { liveness, age: Duration::from_secs(3), failed_connections: 0 }
}

#[test]
fn a_frame_is_a_table_of_services_with_their_real_servers() {
    let mut frame = traffic();
    frame.sort(Column::Bytes);
    let web = &mut frame.services[1];
    web.liveness = Some(Liveness::Refuses);
    for (server, liveness) in web.real_servers.iter_mut().zip([Liveness::Answers, Liveness::Refuses]) {
        server.answering = Some(answering(liveness));
    }
    let expected = "\
SERVICE               ACTIVE    SYN   INACT  CONN/S PKT/S IN     OUT   B/S IN     OUT  ANSWER
FWM 7                4000000      -       1  200.0k     2.0M    2.0M   200.0M    2.0G       -
  -> 10.244.0.9:8080 4000000      -       1  200.0k     2.0M    2.0M   200.0M    2.0G       -
default/web              400     30       3      15      150     150    15.0k  150.0k REFUSES
  -> 10.244.0.1:8080     260     30       2      10      100     100    10.0k  100.0k answers
  -> 10.244.0.2:8080     140      0       1     5.0       50      50     5000   50.0k REFUSES
default/dns                3      0       1       0      1.5     1.5      150    1500       -
  -> 10.244.0.5:8080       3      0       1       0      1.5     1.5      150    1500       -
";
    assert_eq!(text(&frame, false), expected);
    assert_eq!(text(&frame, true), format!("\n{expected}"), "the next one is apart");
}

#[test]
fn no_service_is_a_head_alone() {
    let text = text(&Frame::default(), false);
    assert_eq!(text, "SERVICE  ACTIVE    SYN   INACT  CONN/S PKT/S IN     OUT   B/S IN     OUT  ANSWER\n");
}

#[test]
fn programs_have_a_line_or_a_document_for_each_frame() {
    let shown = |format| one_of_many(format, &traffic(), || unreachable!("no text")).unwrap();
    let json = shown(Format::Json);
    assert_eq!(json.lines().count(), 1);
    let frame: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(frame["services"].as_array().unwrap().len(), 3);
    let twice = shown(Format::Yaml).repeat(2);
    assert_eq!(serde_saphyr::from_multiple::<serde_json::Value>(&twice).unwrap(), [frame.clone(), frame]);
}

#[test]
fn its_json_is_documented() {
    let before = vec![server(vip(10, 80), 100, &[(1, 100)])];
    let now = vec![server(vip(10, 80), 300, &[(1, 300)])];
    let mut frame = frame(before, now);
    let web = &mut frame.services[0];
    (web.liveness, web.real_servers[0].answering) =
        (Some(Liveness::Answers), Some(answering(Liveness::Answers)));
    assert_documented("top", &frame);
}

#[test]
fn a_delay_is_a_number_of_seconds_within_reason() {
    assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
    for odd in ["0", "-1", "nan", "inf", "1e9", "2s", ""] {
        assert_eq!(seconds(odd), Err("expected 0.1 to 3600".to_owned()), "{odd}");
    }
}

#[test]
fn a_number_of_refreshes_is_at_least_one() {
    assert_eq!(refreshes("2").map(NonZero::get), Ok(2));
    for odd in ["0", "-1", "x", ""] {
        assert_eq!(refreshes(odd), Err("expected a number of at least 1".to_owned()), "{odd}");
    }
}
