//! Which clients may reach a load balancer's addresses.

use std::{collections::BTreeSet, fmt};

use ipnet::IpNet;

use crate::objects::{
    Problems, address,
    field::{Field, List, Quoted, Text},
};

const AT: &str = "spec.loadBalancerSourceRanges";

/// The ranges in `spec.loadBalancerSourceRanges`; `None` lets every client in. Where something is given and
/// nothing of it can be used, no client is let in: its author wanted to keep some clients out. (Upstream
/// lets all of them in then.)
///
/// The annotation `service.beta.kubernetes.io/load-balancer-source-ranges`, older than the field, means
/// something to cloud controllers only.
pub(super) fn source_ranges(list: List<Text>, problems: &mut Problems) -> Option<Vec<IpNet>> {
    match &list {
        Field::Absent => return None,
        Field::Is(texts) if texts.is_empty() => return None,
        Field::Is(_) | Field::Wrong(_) => {}
    }
    let ranges = list.read_each(AT, problems, |text, at, problems| range(&text, at, problems));
    if ranges.is_empty() {
        problems.add(AT, "none can be used; no client is let in");
    }
    // Sorted, and each range once: their order means nothing, so another order is no change.
    Some(BTreeSet::from_iter(ranges).into_iter().collect())
}

fn range(text: &str, at: fmt::Arguments<'_>, problems: &mut Problems) -> Option<IpNet> {
    let range = address::parse_range(text.trim());
    if range.is_none() {
        problems.add(at, format_args!("{} is not a CIDR", Quoted(text)));
    }
    range
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{decoded, with_spec};
    use crate::objects::Decoded;

    /// The ranges as text, and the problems.
    fn read(ranges: &Value) -> (String, Vec<String>) {
        let service = with_spec(json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ranges}));
        let words = match service.load_balancer_source_ranges.as_deref() {
            None => "everybody".to_owned(),
            Some([]) => "nobody".to_owned(),
            Some(ranges) => ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        (words, service.problems)
    }

    fn without_problem(words: &str) -> (String, Vec<String>) {
        (words.to_owned(), Vec::new())
    }

    #[test]
    fn without_ranges_everybody_is_let_in() {
        for none in [json!(null), json!([])] {
            assert_eq!(read(&none), without_problem("everybody"));
        }
    }

    #[test]
    fn ranges_are_trimmed_and_may_have_host_bits() {
        let ranges = json!([" 10.1.2.3/8\n", "\t2001:db8::1/32", "192.0.2.1/32"]);
        assert_eq!(read(&ranges), without_problem("10.0.0.0/8, 192.0.2.1/32, 2001:db8::/32"));
    }

    #[test]
    fn a_range_counts_once_however_it_is_written_and_their_order_means_nothing() {
        for ranges in [
            json!(["10.1.0.0/16", "10.0.0.0/8", "10.9.9.9/8"]),
            json!(["10.0.0.0/8", "010.1.0.0/16", "::ffff:10.1.0.0/112"]),
        ] {
            assert_eq!(read(&ranges), without_problem("10.0.0.0/8, 10.1.0.0/16"));
        }
    }

    #[test]
    fn a_range_that_cannot_be_read_is_named_and_left_out_alone() {
        let (ranges, problems) = read(&json!(["10.0.0.0", "10.0.0.0/8", 7, "", null, "office"]));
        assert_eq!(ranges, "10.0.0.0/8");
        assert_eq!(
            problems,
            [
                "spec.loadBalancerSourceRanges[0]: \"10.0.0.0\" is not a CIDR",
                "spec.loadBalancerSourceRanges[2]: 7 is not a string",
                "spec.loadBalancerSourceRanges[3]: \"\" is not a CIDR",
                "spec.loadBalancerSourceRanges[5]: \"office\" is not a CIDR",
            ]
        );
    }

    #[test]
    fn ranges_of_which_none_can_be_read_let_nobody_in() {
        const NOBODY: &str = "spec.loadBalancerSourceRanges: none can be used; no client is let in";
        for unreadable in [json!(["office"]), json!([null]), json!("10.0.0.0/8"), json!({})] {
            let (ranges, problems) = read(&unreadable);
            assert_eq!(ranges, "nobody", "{unreadable}");
            assert_eq!(problems.last().map(String::as_str), Some(NOBODY), "{unreadable}");
        }
    }

    #[test]
    fn the_annotation_of_old_restricts_nobody() {
        let annotations = json!({"service.beta.kubernetes.io/load-balancer-source-ranges": "10.0.0.0/8"});
        let metadata = json!({"name": "web", "namespace": "shop", "annotations": annotations});
        let Decoded::Object(service) = decoded(json!({"metadata": metadata})) else { panic!("not decoded") };
        assert_eq!(service.load_balancer_source_ranges, None);
    }
}
