//! The weights of endpoints by their node or zone, and by their distance.

use std::sync::Arc;

use service::{ByDistance, Weight, Weights};

use super::elements;
use crate::objects::{Problems, field::Quoted, metadata::Annotation, values::weight};

/// Weights by name, as in `a=3,b=1`. An element that cannot be used is left out.
pub(super) fn by_name(Annotation { at, text }: &Annotation<'_>, problems: &mut Problems) -> Weights {
    let mut found: Vec<(Arc<str>, Weight)> = Vec::new();
    for element in elements(text) {
        let Some((name, number)) = element.split_once('=').filter(|(name, _)| !name.trim().is_empty()) else {
            problems.add(at, format_args!("{} is not NAME=WEIGHT", Quoted(element)));
            continue;
        };
        let name = name.trim();
        found.extend(weight(number, at, problems).map(|weight| (name.into(), weight)));
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    for twice in found.windows(2) {
        if let [(one, _), (other, _)] = twice
            && one == other
        {
            problems.add(at, format_args!("{} is named twice; the first counts", Quoted(one)));
        }
    }
    found.into_iter().collect()
}

/// The factors by distance, as in `node=100,zone=10,other=1`; all or none of them.
pub(super) fn by_distance(
    Annotation { at, text }: &Annotation<'_>,
    problems: &mut Problems,
) -> Option<ByDistance> {
    let found = text.parse::<ByDistance>();
    found.inspect_err(|error| problems.add(at, format_args!("invalid value {}: {error}", Quoted(text)))).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{asked, problems, weights_of, with};
    use super::*;

    #[test]
    fn a_weight_that_cannot_be_used_is_left_out_and_named() {
        let service = with(&json!({"kube-ipvs.io/weights-by-zone": "a=-1,b=2,c,=3,d=x,b=4,e=65536,f=0"}));
        assert_eq!(service.balancing.unwrap().zone_weights, weights_of(&[("b", 2), ("f", 0)]));
        let at = "metadata.annotations[kube-ipvs.io/weights-by-zone]";
        assert_eq!(
            service.problems,
            [
                format!("{at}: \"-1\" is not a weight, a number between 0 and 65535"),
                format!("{at}: \"c\" is not NAME=WEIGHT"),
                format!("{at}: \"=3\" is not NAME=WEIGHT"),
                format!("{at}: \"x\" is not a weight, a number between 0 and 65535"),
                format!("{at}: \"65536\" is not a weight, a number between 0 and 65535"),
                format!("{at}: \"b\" is named twice; the first counts"),
            ]
        );
    }

    #[test]
    fn factors_by_distance_are_used_all_or_not_at_all() {
        let by_distance =
            |text: &str| asked(&json!({"kube-ipvs.io/weights-by-distance": text})).distance_weights;
        assert_eq!(by_distance("node=9,zone=3,other=1"), "node=9,zone=3,other=1".parse().ok());
        assert_eq!(by_distance("off"), Some(ByDistance::Off), "also where the flag says otherwise");
        for text in ["node=9,zone=3", "node=9,zone=3,other=0", "node=1001,zone=3,other=1", "on", ""] {
            assert_eq!(
                problems(&json!({"kube-ipvs.io/weights-by-distance": text})),
                [format!(
                    "metadata.annotations[kube-ipvs.io/weights-by-distance]: invalid value {text:?}: expected off or \
                     node=N,zone=N,other=N with numbers between 1 and 1000"
                )]
            );
        }
    }
}
