//! Weights in annotations.

use std::fmt::Display;

use service::Weight;

use super::{Problems, field::Quoted};

/// A weight. 0 is none: a real server drains by it.
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
