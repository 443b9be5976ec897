//! One message from the kernel.

use netlink_packet_core::{NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR};
use nix::errno::Errno;

use crate::{Error, KernelError, attributes, batch::HEADER};

/// A message as the kernel sent it: a reply to a request, an entry of a dump, or a notification.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    /// The message type.
    pub kind: u16,
    /// The `NLM_F_*` flags.
    pub flags: u16,
    /// The sequence number of the request it answers; 0 in notifications.
    pub sequence: u32,
    /// Everything after the netlink header.
    pub payload: &'a [u8],
}

impl<'a> Reply<'a> {
    /// The payload of a generic netlink reply: its command, and its attributes undecoded.
    pub fn generic(&self) -> Result<(u8, &'a [u8]), Error> {
        match self.payload {
            [command, _version, _, _, attributes @ ..] => Ok((*command, attributes)),
            _ => Err(Error::Malformed { what: "generic netlink header cut short".into() }),
        }
    }

    pub(crate) fn interrupted(&self) -> bool {
        self.flags & NLM_F_DUMP_INTR != 0
    }

    /// The kernel's verdict, in an acknowledgement or at the end of a dump. `None` for data.
    pub(crate) fn verdict(&self) -> Option<Result<(), KernelError>> {
        if self.kind != NLMSG_ERROR && self.kind != NLMSG_DONE {
            return None;
        }
        // NLMSG_DONE of old kernels carries no code.
        let code = self.payload.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
        if code == 0 {
            return Some(Ok(()));
        }
        Some(Err(KernelError {
            errno: Errno::from_raw(code.saturating_neg()),
            message: self.extended_message(),
        }))
    }

    /// The text of an extended acknowledgement (`NLMSGERR_ATTR_MSG`).
    ///
    /// It follows the error code and the refused request: its header alone when the answer is
    /// capped, the whole request otherwise.
    fn extended_message(&self) -> Option<Box<str>> {
        const NLMSGERR_ATTR_MSG: u16 = 1;
        if self.flags & NLM_F_ACK_TLVS == 0 {
            return None;
        }
        let request = self.payload.get(4..)?;
        let skip = if self.kind == NLMSG_DONE {
            0
        } else if self.flags & NLM_F_CAPPED != 0 {
            HEADER
        } else {
            let length = u32::from_ne_bytes(*request.first_chunk()?);
            usize::try_from(length).ok()?.next_multiple_of(4)
        };
        attributes(request.get(skip..)?)
            .filter_map(Result::ok)
            .find(|attribute| attribute.kind == NLMSGERR_ATTR_MSG)
            .and_then(|attribute| attribute.string().ok().map(Into::into))
    }
}

/// Splits a received datagram into its messages.
pub(crate) fn replies(mut bytes: &[u8]) -> impl Iterator<Item = Result<Reply<'_>, Error>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let message = split(bytes);
        bytes = match &message {
            Ok((_, rest)) => rest,
            Err(_) => &[],
        };
        Some(message.map(|(reply, _)| reply))
    })
}

fn split(bytes: &[u8]) -> Result<(Reply<'_>, &[u8]), Error> {
    let cut = || Error::Malformed { what: format!("message cut short after {} bytes", bytes.len()) };
    let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, ..] = *bytes else { return Err(cut()) };
    let length = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).map_err(|_| cut())?;
    let reply = Reply {
        kind: u16::from_ne_bytes([k0, k1]),
        flags: u16::from_ne_bytes([f0, f1]),
        sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
        payload: bytes.get(HEADER..length).ok_or_else(cut)?,
    };
    Ok((reply, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADER + payload.len()).unwrap();
        let mut bytes =
            [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8], payload].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn an_error_carries_the_kernels_words_when_there_are_any() {
        let mut payload = [&(-2i32).to_ne_bytes()[..], &[0; HEADER]].concat();
        payload.extend([12u16.to_ne_bytes(), 1u16.to_ne_bytes()].concat());
        payload.extend(b"no luck\0");
        let bytes = message(NLMSG_ERROR, NLM_F_CAPPED | NLM_F_ACK_TLVS, &payload);
        let reply = replies(&bytes).next().unwrap().unwrap();
        let error = reply.verdict().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "ENOENT (No such file or directory): no luck");
    }

    #[test]
    fn a_cut_message_ends_the_datagram_with_an_error() {
        let mut bytes = message(20, 0, &[1, 2, 3, 4]);
        bytes.extend([99, 0, 0]);
        let read: Vec<_> = replies(&bytes).collect();
        assert!(matches!(read.as_slice(), [Ok(Reply { kind: 20, .. }), Err(Error::Malformed { .. })]));
    }

    #[test]
    fn a_length_below_the_header_is_refused() {
        let bytes = [4u32.to_ne_bytes(), [0; 4], [0; 4], [0; 4]].concat();
        assert!(matches!(replies(&bytes).next(), Some(Err(Error::Malformed { .. }))));
    }
}
