//! Reading attributes.

use netlink_packet_core::NlasIterator;

use crate::Error;

/// One attribute of a reply.
#[derive(Clone, Copy, Debug)]
pub struct Attribute<'a> {
    /// The attribute's number, without the nested and byte-order bits.
    pub kind: u16,
    /// Its payload, without padding.
    pub payload: &'a [u8],
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Encoder;

    #[test]
    fn what_was_written_is_read_back() {
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new(&mut bytes);
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
