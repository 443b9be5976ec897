//! Exchanges with the kernel: sending requests, and matching the answers to them.

use std::ops::Range;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};
use netlink_packet_generic::{
    GenlMessage,
    ctrl::{GenlCtrl, GenlCtrlCmd, nlas::GenlCtrlAttrs},
};
use nix::errno::Errno;

use super::Socket;
use crate::{Batch, Error, FailedRequest, Reply, find, if_exists};

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
            failures.extend(self.refused(batch, from..to, to - 1, false)?);
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
        match self.refused(batch, 0..count, acknowledged, true)?.into_iter().next() {
            Some(failure) => Err(Error::RolledBack(failure)),
            None => Ok(()),
        }
    }

    /// Sends requests as one datagram. Returns those that the kernel refused, up to its verdict on the one to be
    /// acknowledged. In a transaction a refusal of the first request, the begin, is the last answer.
    fn refused(
        &mut self,
        batch: &mut Batch,
        requests: Range<usize>,
        acknowledged: usize,
        is_transaction: bool,
    ) -> Result<Vec<FailedRequest>, Error> {
        let first = self.send(batch, requests.clone(), acknowledged, NLM_F_ACK)?;
        let mut failures = Vec::new();
        self.receive_until(|reply| {
            let offset = reply.sequence.wrapping_sub(first) as usize;
            // Others are answers to an earlier exchange.
            let Some(verdict) = reply.verdict().filter(|_| offset < requests.len()) else { return Ok(false) };
            let index = requests.start + offset;
            let is_refused = verdict.is_err();
            failures.extend(verdict.err().map(|error| FailedRequest { index, error }));
            Ok(index == acknowledged || is_transaction && is_refused && index == requests.start)
        })?;
        Ok(failures)
    }

    /// Executes one request that is answered by data. Returns the first answer that is not skipped: `decode` returns
    /// `None` for those.
    pub fn get<T>(
        &mut self,
        batch: &mut Batch,
        decode: impl FnMut(&Reply<'_>) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let (found, _) = self.read(batch, NLM_F_ACK, decode)?;
        Ok(found.into_iter().next())
    }

    /// Dumps a table: executes the one request in `batch` and decodes every entry, but for those that are skipped:
    /// `decode` returns `None` for them.
    ///
    /// Starts over, up to five times, when the kernel marks the dump as interrupted. Families that
    /// never set that mark (IPVS) may skip or repeat entries of a table that changes meanwhile.
    pub fn dump<T>(
        &mut self,
        batch: &mut Batch,
        mut decode: impl FnMut(&Reply<'_>) -> Result<Option<T>, Error>,
    ) -> Result<Vec<T>, Error> {
        for _ in 0..DUMP_ATTEMPTS {
            let (found, interrupted) = self.read(batch, NLM_F_DUMP, &mut decode)?;
            if !interrupted {
                return Ok(found);
            }
        }
        Err(Error::DumpInterrupted { attempts: DUMP_ATTEMPTS })
    }

    /// Dumps a table once, even if the kernel marks the dump as interrupted. For callers that know what changes
    /// meanwhile, and what does not.
    pub fn dump_once<T>(
        &mut self,
        batch: &mut Batch,
        decode: impl FnMut(&Reply<'_>) -> Result<Option<T>, Error>,
    ) -> Result<Vec<T>, Error> {
        self.read(batch, NLM_F_DUMP, decode).map(|(found, _)| found)
    }

    /// Asks the controller for the number of the family `name`.
    ///
    /// The kernel loads the family's module by itself if it can (`genl_request_module`), so
    /// [`Error::NoSuchFamily`] means that the kernel has no such module.
    pub fn generic_family(&mut self, name: &str) -> Result<u16, Error> {
        let nlas = vec![GenlCtrlAttrs::FamilyName(name.to_owned())];
        let mut request = GenlMessage::from_payload(GenlCtrl { cmd: GenlCtrlCmd::GetFamily, nlas });
        request.finalize();
        let mut batch = Batch::default();
        batch.packet(&request, 0);
        let number = if_exists(self.get(&mut batch, number), &[Errno::ENOENT])?;
        number.ok_or_else(|| Error::NoSuchFamily(name.to_owned()))?.ok_or_else(|| Error::Malformed {
            what: format!("the controller's answer about family {name} has no number"),
        })
    }

    /// Sends the one request in `batch` with these flags, and decodes the answers until the kernel's verdict. Returns
    /// also whether any of them marks a dump as interrupted.
    ///
    /// An answer that cannot be decoded fails this after the verdict only: as long as a dump was not received
    /// to its end the kernel refuses the next one with EBUSY (`__netlink_dump_start` in
    /// net/netlink/af_netlink.c).
    fn read<T>(
        &mut self,
        batch: &mut Batch,
        flags: u16,
        mut decode: impl FnMut(&Reply<'_>) -> Result<Option<T>, Error>,
    ) -> Result<(Vec<T>, bool), Error> {
        let sequence = self.send(batch, 0..1, 0, flags)?;
        let (mut found, mut interrupted, mut decoded) = (Vec::new(), false, Ok(()));
        self.receive_until(|reply| {
            if reply.sequence != sequence {
                return Ok(false);
            }
            interrupted |= reply.interrupted();
            if let Some(verdict) = reply.verdict() {
                return verdict.map(|()| true).map_err(Error::from);
            }
            if decoded.is_ok() {
                decoded = decode(reply).map(|entry| found.extend(entry));
            }
            Ok(false)
        })?;
        decoded.map(|()| (found, interrupted))
    }

    /// Where the datagram that starts at request `from` ends: at the size or the answer limit.
    fn datagram_end(&self, batch: &Batch, from: usize) -> usize {
        let most = batch.len().min(from + self.answers_that_fit);
        (from + 1..=most).rev().find(|to| batch.slice(from..*to).len() <= DATAGRAM).unwrap_or(from + 1)
    }
}

/// The number of the family that an answer is about. Its operations and groups, which follow, are not read.
fn number(reply: &Reply<'_>) -> Result<Option<u16>, Error> {
    find(reply.generic()?.1, CTRL_ATTR_FAMILY_ID).map(|number| number.u16()).transpose()
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
        let reply = Reply { kind: GENL_ID_CTRL, payload, ..Reply::default() };
        assert_eq!(number(&reply).unwrap(), Some(0x1f));
    }
}
