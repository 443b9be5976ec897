//! Exchanges with the kernel: requests, and matching the answers to them.

use std::ops::ControlFlow;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage};
use netlink_packet_generic::{
    GenlMessage,
    ctrl::{GenlCtrl, GenlCtrlCmd, nlas::GenlCtrlAttrs},
};
use nix::errno::Errno;

use super::Socket;
use crate::{Batch, Error, FailedRequest, Reply, attributes};

/// One datagram of a pipeline stays below this, so that the kernel need not find megabytes of memory
/// in one piece.
const DATAGRAM: usize = 256 << 10;

/// A dump that was interrupted this often is given up.
const DUMP_ATTEMPTS: u32 = 5;

/// include/uapi/linux/genetlink.h.
const CTRL_ATTR_FAMILY_ID: u16 = 1;

impl Socket {
    /// Executes every request, in order, and returns those that the kernel refused.
    ///
    /// A refused request does not stop the ones after it. The batch is split into datagrams whose
    /// answers are sure to fit the receive queue. On `Err` some requests may have been executed.
    pub fn pipeline(&mut self, batch: &mut Batch) -> Result<Vec<FailedRequest>, Error> {
        let mut failures = Vec::new();
        let mut from = 0;
        while from < batch.len() {
            let to = self.datagram_end(batch, from);
            let first = self.stamp(batch, from, to);
            let last = self.sequence;
            batch.stamp(to - 1, last, NLM_F_ACK);
            self.send(batch.slice(from, to))?;
            self.receive_until(|reply| {
                let Some(verdict) = reply.verdict() else { return Ok(ControlFlow::Continue(())) };
                let offset = reply.sequence.wrapping_sub(first);
                if offset > last.wrapping_sub(first) {
                    return Ok(ControlFlow::Continue(())); // an answer to an earlier exchange
                }
                if let Err(error) = verdict {
                    failures.push(FailedRequest { index: from + offset as usize, error });
                }
                Ok(if reply.sequence == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
            from = to;
        }
        Ok(failures)
    }

    /// Executes one request that is answered by an acknowledgement alone.
    pub fn execute(&mut self, batch: &mut Batch) -> Result<(), Error> {
        match self.pipeline(batch)?.pop() {
            Some(failure) => Err(failure.error.into()),
            None => Ok(()),
        }
    }

    /// Sends a begin…end sequence as one datagram, which the kernel applies whole or not at all.
    ///
    /// The last request before the end is acknowledged: that acknowledgement is delivered after the
    /// commit (`nfnetlink_rcv_batch` in net/netfilter/nfnetlink.c). A failed commit is reported on the
    /// begin message, a failed request on itself, as [`Error::RolledBack`].
    pub fn transact(&mut self, batch: &mut Batch) -> Result<(), Error> {
        let count = batch.len();
        let Some(acknowledged) = count.checked_sub(2).filter(|index| *index > 0) else { return Ok(()) };
        let begin = self.stamp(batch, 0, count);
        let last = begin.wrapping_add(u32::try_from(acknowledged).unwrap_or(u32::MAX));
        batch.stamp(acknowledged, last, NLM_F_ACK);
        self.send(batch.slice(0, count))?;
        let mut first_failure = None;
        self.receive_until(|reply| {
            let Some(verdict) = reply.verdict() else { return Ok(ControlFlow::Continue(())) };
            let offset = reply.sequence.wrapping_sub(begin);
            if offset as usize >= count {
                return Ok(ControlFlow::Continue(()));
            }
            if let Err(error) = verdict {
                first_failure.get_or_insert(FailedRequest { index: offset as usize, error });
                if offset == 0 {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(if reply.sequence == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        match first_failure {
            Some(failure) => Err(Error::RolledBack(failure)),
            None => Ok(()),
        }
    }

    /// Executes one request that is answered by data, and decodes each answer.
    pub fn get<T>(
        &mut self,
        batch: &mut Batch,
        decode: impl FnMut(&Reply<'_>) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let sequence = self.stamp(batch, 0, 1);
        batch.stamp(0, sequence, NLM_F_ACK);
        self.send(batch.slice(0, 1))?;
        let mut found = Vec::new();
        self.collect(sequence, &mut found, decode)?;
        Ok(found)
    }

    /// Dumps a table: executes the one request in `batch` and decodes every entry.
    ///
    /// Starts over, up to five times, when the kernel marks the dump as interrupted. Families that
    /// never set that mark (IPVS) may skip or repeat entries of a table that changes meanwhile.
    pub fn dump<T>(
        &mut self,
        batch: &mut Batch,
        mut decode: impl FnMut(&Reply<'_>) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        for _ in 0..DUMP_ATTEMPTS {
            let (found, interrupted) = self.dump_once(batch, &mut decode)?;
            if !interrupted {
                return Ok(found);
            }
        }
        Err(Error::DumpInterrupted { attempts: DUMP_ATTEMPTS })
    }

    /// Dumps a table once. Returns also whether the kernel marked that as interrupted. For callers that know what
    /// changes meanwhile, and what does not.
    pub fn dump_once<T>(
        &mut self,
        batch: &mut Batch,
        decode: impl FnMut(&Reply<'_>) -> Result<T, Error>,
    ) -> Result<(Vec<T>, bool), Error> {
        let mut found = Vec::new();
        let sequence = self.stamp(batch, 0, 1);
        batch.stamp(0, sequence, NLM_F_REQUEST | NLM_F_DUMP);
        self.send(batch.slice(0, 1))?;
        let interrupted = self.collect(sequence, &mut found, decode)?;
        Ok((found, interrupted))
    }

    /// Asks the controller for the number of the family `name`.
    ///
    /// The kernel loads the family's module by itself if it can (`genl_request_module`), so
    /// [`Error::NoSuchFamily`] means that the kernel has no such module.
    pub fn generic_family(&mut self, name: &str) -> Result<u16, Error> {
        let mut request = GenlMessage::from_payload(GenlCtrl {
            cmd: GenlCtrlCmd::GetFamily,
            nlas: vec![GenlCtrlAttrs::FamilyName(name.to_owned())],
        });
        request.finalize();
        let mut batch = Batch::default();
        batch.packet(NetlinkMessage::new(NetlinkHeader::default(), request.into()));
        match self.get(&mut batch, number) {
            Ok(ids) => ids.into_iter().flatten().next().ok_or_else(|| Error::Malformed {
                what: format!("the controller gave family {name} no number"),
            }),
            Err(error) if error.errno() == Some(Errno::ENOENT) => Err(Error::NoSuchFamily(name.to_owned())),
            Err(error) => Err(error),
        }
    }

    /// Decodes the answers to request `sequence` until the kernel's verdict. Returns whether any of them
    /// marks a dump as interrupted.
    ///
    /// An answer that cannot be decoded fails this after the verdict only: as long as a dump was not received
    /// to its end the kernel refuses the next one with EBUSY (`__netlink_dump_start` in
    /// net/netlink/af_netlink.c).
    fn collect<T>(
        &mut self,
        sequence: u32,
        found: &mut Vec<T>,
        mut decode: impl FnMut(&Reply<'_>) -> Result<T, Error>,
    ) -> Result<bool, Error> {
        let (mut interrupted, mut decoded) = (false, Ok(()));
        self.receive_until(|reply| {
            if reply.sequence != sequence {
                return Ok(ControlFlow::Continue(()));
            }
            interrupted |= reply.interrupted();
            match reply.verdict() {
                Some(verdict) => verdict.map(ControlFlow::Break).map_err(Error::from),
                None => {
                    if decoded.is_ok() {
                        decoded = decode(reply).map(|entry| found.push(entry));
                    }
                    Ok(ControlFlow::Continue(()))
                }
            }
        })?;
        decoded.map(|()| interrupted)
    }

    /// Where the datagram that starts at request `from` ends: at the size or the answer limit.
    fn datagram_end(&self, batch: &Batch, from: usize) -> usize {
        let most = batch.len().min(from + self.answers_that_fit);
        (from + 1..=most).rev().find(|to| batch.slice(from, *to).len() <= DATAGRAM).unwrap_or(from + 1)
    }
}

/// The number of the family that an answer is about. Its operations and groups, which follow, are not read:
/// netlink-packet-generic reads them too, and panics where one is shorter than its own header.
fn number(reply: &Reply<'_>) -> Result<Option<u16>, Error> {
    for attribute in attributes(reply.generic()?.1) {
        let attribute = attribute?;
        if attribute.kind == CTRL_ATTR_FAMILY_ID {
            return attribute.u16().map(Some);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENL_ID_CTRL: u16 = 16;
    const CTRL_CMD_NEWFAMILY: u8 = 1;
    const CTRL_ATTR_OP_POLICY: u16 = 9;

    #[test]
    fn what_an_answer_says_beside_the_number_may_be_nonsense() {
        let mut batch = Batch::default();
        batch.generic(GENL_ID_CTRL, CTRL_CMD_NEWFAMILY, 2, |encoder| {
            // An attribute that is shorter than its own header.
            encoder.bytes(CTRL_ATTR_OP_POLICY, &[0, 0, 1, 0]);
            encoder.u16(CTRL_ATTR_FAMILY_ID, 0x1f);
        });
        let payload = batch.as_bytes().get(16..).unwrap();
        let reply = Reply { kind: GENL_ID_CTRL, flags: 0, sequence: 1, payload };
        assert_eq!(number(&reply).unwrap(), Some(0x1f));
    }
}
