//! Values that several objects have: ports, protocols, weights.

use std::{fmt::Display, num::NonZero};

use ipvs::Protocol;
use service::Weight;

use super::{
    Problems,
    field::{Field, Quoted, Text},
};

/// A port number, 1 to 65535. Kubernetes writes 0 for "not set".
pub(super) fn port(field: Field<i64>, at: impl Display + Copy, problems: &mut Problems) -> Option<u16> {
    if !field.is_present() {
        problems.add(at, "not set");
        return None;
    }
    in_range(field.read(at, problems)?, at, problems).map(NonZero::get)
}

/// A port number that may be missing, as 0 is.
pub(super) fn optional_port(
    field: Field<i64>,
    at: impl Display + Copy,
    problems: &mut Problems,
) -> Option<NonZero<u16>> {
    match field.read(at, problems)? {
        0 => None,
        number => in_range(number, at, problems),
    }
}

fn in_range(number: i64, at: impl Display, problems: &mut Problems) -> Option<NonZero<u16>> {
    let port = u16::try_from(number).ok().and_then(NonZero::new);
    if port.is_none() {
        problems.add(at, format_args!("{number} is not between 1 and 65535"));
    }
    port
}

/// A transport protocol; TCP where none is given, as in the API's default.
pub(super) fn protocol(
    field: Field<Text>,
    at: impl Display + Copy,
    problems: &mut Problems,
) -> Option<Protocol> {
    if !field.is_present() {
        return Some(Protocol::Tcp);
    }
    let name = field.read(at, problems)?;
    let protocol = name.parse().ok();
    if protocol.is_none() {
        problems.add(at, format_args!("{} is not TCP, UDP or SCTP", Quoted(&name)));
    }
    protocol
}

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
