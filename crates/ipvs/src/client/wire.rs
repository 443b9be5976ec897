//! The client's end of the wire. No part of the public API: it is for the tests, benches and fuzzers of the workspace
//! that this crate comes from, and changes without notice.

use netlink::Batch;

use super::encode::{Requests, Verb};
use crate::{Command, KernelIpvs};

/// Appends the requests that [`apply`](crate::Ipvs::apply) sends first, one for each command. `family` is the number
/// that the kernel has given IPVS among the families of generic netlink.
pub fn encode(family: u16, commands: &[Command], batch: &mut Batch) {
    for command in commands {
        Requests { family }.change(batch, command, Verb::first_for(command));
    }
}

/// Leaves a client as it is when the module was unloaded and loaded again: no family has the number that it knows.
pub fn forget_family(ipvs: &mut KernelIpvs) {
    /// `GENL_MAX_ID` in include/uapi/linux/genetlink.h.
    const LAST: u16 = 1023;
    ipvs.requests.family = LAST;
}
