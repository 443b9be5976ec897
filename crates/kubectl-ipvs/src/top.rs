//! `kubectl ipvs top`.

use std::collections::BTreeMap;

use operator::top::{self, Column, Frame, ServiceRow};

use super::{
    fleet::Answered,
    node_table::{Finding, table},
};

/// The nodes without an answer, if there are any, and the traffic of each Service on all others together.
pub(super) fn text(answers: &[Answered<Frame>]) -> String {
    let frames = answers.iter().filter_map(|answered| Some(&answered.answer.as_ref().ok()?.read));
    let traffic = top::text(&sum(frames), false);
    if answers.iter().all(|answered| answered.answer.is_ok()) {
        return traffic;
    }
    let nodes = table("TRAFFIC", answers, |answered| match &answered.answer {
        Err(why) => Finding::no_answer(why),
        Ok(_) => Finding { in_order: true, summary: "added up below".to_owned(), details: Vec::new() },
    });
    format!("{nodes}\n{traffic}")
}

/// Adds the rows up, by their names; the most bytes first. Real servers are left out: each node has all of them.
fn sum<'a>(frames: impl Iterator<Item = &'a Frame>) -> Frame {
    let mut rows: BTreeMap<String, ServiceRow> = BTreeMap::new();
    for row in frames.flat_map(|frame| &frame.services) {
        match rows.get_mut(&row.name()) {
            Some(sum) => sum.load += row.load,
            None => _ = rows.insert(row.name(), ServiceRow { real_servers: Vec::new(), ..row.clone() }),
        }
    }
    let mut all = Frame { services: rows.into_values().collect(), ..Frame::default() };
    all.sort(Column::Bytes);
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{
        super::tests::canned::{Canned, answers},
        *,
    };

    /// A frame with these Services, each with so many connections and packets in a second.
    fn traffic(services: &[(&str, u64)]) -> Value {
        let row = |(service, packets): &(&str, u64)| {
            json!({
                "service": service,
                "virtual_servers": [{ "address": { "protocol": "TCP", "ip": "10.96.0.10", "port": 80 } }],
                "active_connections": packets, "syn_recv_connections": 2, "inactive_connections": 1,
                "connections": 1, "packets_in": 1, "packets_out": 1, "bytes_in": 1, "bytes_out": 1,
                "connections_per_second": 0.5,
                "packets_in_per_second": packets, "packets_out_per_second": packets,
                "bytes_in_per_second": 100 * packets, "bytes_out_per_second": 1000 * packets,
                "real_servers": [],
                "of_tomorrow": 1,
            })
        };
        json!({ "interval": 2.0, "services": services.iter().map(row).collect::<Vec<_>>() })
    }

    #[test]
    fn the_traffic_of_a_service_is_that_of_all_nodes_and_the_most_comes_first() {
        let nodes = [
            ("a", Canned::answer(0, &traffic(&[("default/web", 10), ("default/dns", 15)]))),
            ("b", Canned::answer(0, &traffic(&[("default/web", 20)]))),
            ("c", Canned::answer(0, &traffic(&[]))),
        ];
        let expected = "\
SERVICE      ACTIVE    SYN   INACT  CONN/S PKT/S IN     OUT   B/S IN     OUT
default/web      30      4       2     1.0       30      30     3000   30.0k
default/dns      15      2       1     0.5       15      15     1500   15.0k
";
        assert_eq!(text(&answers(&nodes)), expected);
        let [a, b, c] = nodes;
        let with_silence = [a, b, c, ("d", Canned::TimesOut)];
        let nodes = "\
NODE     TRAFFIC
d        no answer: it takes longer than 30 s
3 nodes  added up below

";
        assert_eq!(text(&answers(&with_silence)), format!("{nodes}{expected}"));
    }
}
