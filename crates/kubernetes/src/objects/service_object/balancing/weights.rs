//! The weights of endpoints by their node or zone.

use std::sync::Arc;

use service::{Weight, Weights};

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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{weights_of, with};

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
}
