//! Weights in annotations.

use std::fmt::Display;

use service::Weight;

use super::{Problems, field::Quoted};

/// A weight, 1 or more. 0 is refused, since a real server of weight 0 drains.
pub(super) fn weight(text: &str, at: impl Display, problems: &mut Problems) -> Option<Weight> {
    let weight = text.trim().parse().ok();
    if weight.is_none() {
        problems.add(
            at,
            format_args!("{} is not a weight, a number between 1 and {}", Quoted(text), Weight::MAX),
        );
    }
    weight
}
