//! Ports and protocols, in Services and in EndpointSlices.

use std::fmt::Display;

use ipvs::Protocol;

use super::{Problems, field::Field};

/// A port number: 1 to 65535. 0 is what Kubernetes writes for "not set".
pub(super) fn number(field: Field<i64>, at: impl Display + Copy, problems: &mut Problems) -> Option<u16> {
    if !field.is_present() {
        problems.add(at, "not set");
        return None;
    }
    let number = field.read(at, problems)?;
    let port = u16::try_from(number).ok().filter(|port| *port != 0);
    if port.is_none() {
        problems.add(at, format_args!("{number} is not between 1 and 65535"));
    }
    port
}

/// A transport protocol; TCP where there is none, as the API defaults it.
pub(super) fn protocol(
    field: Field<Box<str>>,
    at: impl Display + Copy,
    problems: &mut Problems,
) -> Option<Protocol> {
    if !field.is_present() {
        return Some(Protocol::Tcp);
    }
    let name = field.read(at, problems)?;
    let protocol = name.parse().ok();
    if protocol.is_none() {
        problems.add(at, format_args!("{name:?} is not TCP, UDP or SCTP"));
    }
    protocol
}
