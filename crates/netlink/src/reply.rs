//! Messages from the kernel, and their attributes.

use netlink_packet_core::{
    NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NlasIterator,
};
use nix::errno::Errno;

use crate::{Error, KernelError, batch::HEADER};

/// A message as the kernel sent it: a reply to a request, an entry of a dump, or a notification.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reply<'a> {
    /// The message type.
    pub kind: u16,
    /// The `NLM_F_*` flags.
    pub flags: u16,
    /// The sequence number of the request it answers; 0 in notifications.
    pub sequence: u32,
    /// The port of the socket that sent the request; in notifications, where the family names it, of the one whose
    /// request made the change. 0 is the kernel.
    pub port: u32,
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
        find(request.get(skip..)?, NLMSGERR_ATTR_MSG)?.string().ok().map(Into::into)
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
    let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, p0, p1, p2, p3, ..] = *bytes else {
        return Err(cut());
    };
    let length = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).map_err(|_| cut())?;
    let reply = Reply {
        kind: u16::from_ne_bytes([k0, k1]),
        flags: u16::from_ne_bytes([f0, f1]),
        sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
        port: u32::from_ne_bytes([p0, p1, p2, p3]),
        payload: bytes.get(HEADER..length).ok_or_else(cut)?,
    };
    Ok((reply, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// One attribute of a reply.
#[derive(Clone, Copy, Debug)]
pub struct Attribute<'a> {
    /// The attribute's number, without the nested and byte-order bits.
    pub kind: u16,
    /// Its payload, without padding.
    pub payload: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// The payload as one byte.
    pub fn u8(&self) -> Result<u8, Error> {
        self.array().map(u8::from_ne_bytes)
    }

    /// The payload as 16 bits in host order.
    pub fn u16(&self) -> Result<u16, Error> {
        self.array().map(u16::from_ne_bytes)
    }

    /// The payload as 16 bits in network order.
    pub fn u16_be(&self) -> Result<u16, Error> {
        self.array().map(u16::from_be_bytes)
    }

    /// The payload as 32 bits in host order.
    pub fn u32(&self) -> Result<u32, Error> {
        self.array().map(u32::from_ne_bytes)
    }

    /// The payload as 32 bits in network order.
    pub fn u32_be(&self) -> Result<u32, Error> {
        self.array().map(u32::from_be_bytes)
    }

    /// The payload as 64 bits in host order.
    pub fn u64(&self) -> Result<u64, Error> {
        self.array().map(u64::from_ne_bytes)
    }

    /// The payload as text up to its first NUL.
    pub fn string(&self) -> Result<&'a str, Error> {
        let text = self.payload.split(|byte| *byte == 0).next().unwrap_or_default();
        std::str::from_utf8(text)
            .map_err(|_| Error::Malformed { what: format!("attribute {} is not UTF-8", self.kind) })
    }

    /// The first `N` bytes of the payload. A longer payload is accepted, as the kernel does.
    pub fn array<const N: usize>(&self) -> Result<[u8; N], Error> {
        self.payload.first_chunk().copied().ok_or_else(|| Error::Malformed {
            what: format!("attribute {} has {} bytes, not {N}", self.kind, self.payload.len()),
        })
    }
}

/// The first attribute of a kind in `bytes`; what cannot be read counts as not there.
pub fn find(bytes: &[u8], kind: u16) -> Option<Attribute<'_>> {
    attributes(bytes).filter_map(Result::ok).find(|attribute| attribute.kind == kind)
}

/// Walks the attributes in `bytes`; use it again on a container's payload.
///
/// Yields [`Error::Malformed`] once, and ends, where a length runs past the buffer.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = Result<Attribute<'_>, Error>> {
    let mut rest = NlasIterator::new(bytes);
    let mut broken = false;
    std::iter::from_fn(move || {
        if broken {
            return None;
        }
        match rest.next()? {
            Ok(nla) => {
                let (kind, length) = (nla.kind(), nla.value_length());
                let payload = nla.into_inner().get(4..4 + length).unwrap_or_default();
                Some(Ok(Attribute { kind, payload }))
            }
            Err(error) => {
                broken = true;
                Some(Err(Error::Malformed { what: error.to_string() }))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Encoder;

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

    #[test]
    fn what_was_written_is_read_back() {
        let mut bytes = Vec::new();
        let mut encoder = Encoder { bytes: &mut bytes };
        encoder.u32(1, 7);
        encoder.nest(2, |e| e.string(3, "wlc"));
        let read: Vec<_> = attributes(&bytes).map(Result::unwrap).collect();
        assert_eq!((read[0].kind, read[0].u32().unwrap()), (1, 7));
        assert_eq!(read[1].kind, 2, "the nested bit is not part of the number");
        let inner = attributes(read[1].payload).next().unwrap().unwrap();
        assert_eq!(inner.string().unwrap(), "wlc");
    }

    #[test]
    fn a_length_past_the_end_is_an_error_and_then_the_end() {
        let bytes = [200u16.to_ne_bytes(), 1u16.to_ne_bytes()].concat();
        let mut read = attributes(&bytes);
        assert!(matches!(read.next(), Some(Err(Error::Malformed { .. }))));
        assert!(read.next().is_none());
    }

    #[test]
    fn a_short_payload_is_an_error_that_names_the_attribute() {
        let attribute = Attribute { kind: 9, payload: &[1] };
        assert_eq!(
            attribute.u32().unwrap_err().to_string(),
            "malformed netlink message: attribute 9 has 1 bytes, not 4"
        );
    }
}
