//! Requests: many in one buffer, and their attributes.

use std::ops::Range;

use netlink_packet_core::{NLA_F_NESTED, NLM_F_REQUEST, NetlinkSerializable};

pub(crate) const HEADER: usize = 16;

/// Requests in the order in which the kernel shall execute them, encoded back to back.
///
/// One allocation holds them all. Sequence numbers and the acknowledgement flag are set when the
/// batch is sent. A batch can be cleared and filled again without allocating.
#[derive(Debug, Default)]
pub struct Batch {
    pub(crate) bytes: Vec<u8>,
    pub(crate) starts: Vec<usize>,
}

impl Batch {
    /// Appends a request of message type `kind`; `NLM_F_REQUEST` is added to `flags`.
    pub fn add(&mut self, kind: u16, flags: u16, body: impl FnOnce(&mut Encoder<'_>)) {
        let start = self.bytes.len();
        self.starts.push(start);
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 8]);
        let mut encoder = Encoder { bytes: &mut self.bytes };
        body(&mut encoder);
        encoder.pad();
        let length = u32::try_from(self.bytes.len() - start).unwrap_or(u32::MAX);
        if let Some(field) = self.bytes.get_mut(start..start + 4) {
            field.copy_from_slice(&length.to_ne_bytes());
        }
    }

    /// Appends a generic netlink request: `struct genlmsghdr`, then `body`'s attributes.
    pub fn generic(&mut self, family: u16, command: u8, version: u8, body: impl FnOnce(&mut Encoder<'_>)) {
        self.add(family, 0, |encoder| {
            encoder.raw(&[command, version, 0, 0]);
            body(encoder);
        });
    }

    /// Appends a message of one of the netlink-packet crates as a request; `NLM_F_REQUEST` is added to `flags`.
    pub fn packet(&mut self, message: &impl NetlinkSerializable, flags: u16) {
        self.add(message.message_type(), flags, |encoder| {
            let start = encoder.bytes.len();
            encoder.bytes.resize(start + message.buffer_len(), 0);
            if let Some(space) = encoder.bytes.get_mut(start..) {
                message.serialize(space);
            }
        });
    }

    /// How many requests it holds.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether it holds no request.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Forgets the requests, keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.starts.clear();
    }

    /// The encoded requests, for tests and for replaying them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Sets sequence number and additional flags of request `index`.
    pub(crate) fn stamp(&mut self, index: usize, sequence: u32, extra_flags: u16) {
        let Some(&start) = self.starts.get(index) else { return };
        let Some(header) = self.bytes.get_mut(start..start + HEADER) else { return };
        if let Some(field) = header.first_chunk_mut::<HEADER>() {
            let flags = u16::from_ne_bytes([field[6], field[7]]) | extra_flags;
            field[6..8].copy_from_slice(&flags.to_ne_bytes());
            field[8..12].copy_from_slice(&sequence.to_ne_bytes());
        }
    }

    /// The bytes of these requests.
    pub(crate) fn slice(&self, requests: Range<usize>) -> &[u8] {
        let at = |index: usize| self.starts.get(index).copied().unwrap_or(self.bytes.len());
        self.bytes.get(at(requests.start)..at(requests.end)).unwrap_or_default()
    }
}

/// Appends attributes to one message of a [`Batch`].
///
/// Lengths and the padding to four bytes are kept by this type. Byte order is the caller's choice,
/// since netlink families mix both: the plain integer methods write host order, the `_be` ones
/// network order.
#[derive(Debug)]
pub struct Encoder<'a> {
    pub(crate) bytes: &'a mut Vec<u8>,
}

impl Encoder<'_> {
    /// Appends a family's fixed header, such as `struct nfgenmsg`, padded to four bytes.
    pub fn raw(&mut self, header: &[u8]) {
        self.bytes.extend_from_slice(header);
        self.pad();
    }

    /// Appends an attribute with any payload of at most 65,531 bytes.
    pub fn bytes(&mut self, kind: u16, payload: &[u8]) {
        self.attribute(kind, |encoder| encoder.bytes.extend_from_slice(payload));
    }

    /// Appends one byte.
    pub fn u8(&mut self, kind: u16, value: u8) {
        self.bytes(kind, &[value]);
    }

    /// Appends 16 bits in host order.
    pub fn u16(&mut self, kind: u16, value: u16) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// Appends 16 bits in network order.
    pub fn u16_be(&mut self, kind: u16, value: u16) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// Appends 32 bits in host order.
    pub fn u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// Appends 32 bits in network order.
    pub fn u32_be(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// Appends 64 bits in network order.
    pub fn u64_be(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// Appends a NUL-terminated string.
    pub fn string(&mut self, kind: u16, value: &str) {
        self.attribute(kind, |encoder| {
            encoder.bytes.extend_from_slice(value.as_bytes());
            encoder.bytes.push(0);
        });
    }

    /// Appends a container and whatever `content` puts into it.
    pub fn nest(&mut self, kind: u16, content: impl FnOnce(&mut Encoder<'_>)) {
        self.attribute(kind | NLA_F_NESTED, content);
    }

    fn attribute(&mut self, kind: u16, payload: impl FnOnce(&mut Encoder<'_>)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0, 0]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        payload(self);
        let length = self.bytes.len() - start;
        debug_assert!(u16::try_from(length).is_ok());
        // An attribute's length field has 16 bits; a longer payload is a bug of the caller that the
        // kernel refuses (EINVAL), so saturating is as good as any value.
        let length = u16::try_from(length).unwrap_or(u16::MAX).to_ne_bytes();
        if let Some(field) = self.bytes.get_mut(start..start + 2) {
            field.copy_from_slice(&length);
        }
        self.pad();
    }

    fn pad(&mut self) {
        let padded = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(padded, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generic_request_is_two_headers_and_its_attributes() {
        let mut batch = Batch::default();
        batch.generic(0x20, 8, 1, |e| e.u16(1, 2));
        batch.stamp(0, 0x0a0b_0c0d, 0x300);
        let expected = [
            &28u32.to_ne_bytes()[..],
            &0x20u16.to_ne_bytes(),
            &0x301u16.to_ne_bytes(),
            &0x0a0b_0c0du32.to_ne_bytes(),
            &0u32.to_ne_bytes(),
            &[8, 1, 0, 0],
            &6u16.to_ne_bytes(),
            &1u16.to_ne_bytes(),
            &2u16.to_ne_bytes(),
            &[0, 0],
        ];
        assert_eq!(batch.as_bytes(), expected.concat());
    }

    #[test]
    fn requests_can_be_sliced_by_position() {
        let mut batch = Batch::default();
        for kind in 1..=3 {
            batch.add(kind, 0, |_| {});
        }
        assert_eq!(batch.slice(1..3).len(), 32);
        assert_eq!(batch.slice(3..3), &[] as &[u8]);
    }

    fn encoded(write: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut Encoder { bytes: &mut bytes });
        bytes
    }

    #[test]
    fn an_attribute_is_padded_to_four_bytes_but_its_length_is_not() {
        let bytes = encoded(|e| e.u8(7, 0xff));
        assert_eq!(bytes, [5u16.to_ne_bytes(), 7u16.to_ne_bytes(), [0xff, 0], [0, 0]].concat());
    }

    #[test]
    fn a_container_counts_its_content_and_carries_the_nested_flag() {
        let bytes = encoded(|e| e.nest(1, |e| e.u16_be(2, 0x0102)));
        let expected = [
            12u16.to_ne_bytes(),
            0x8001u16.to_ne_bytes(),
            6u16.to_ne_bytes(),
            2u16.to_ne_bytes(),
            [1, 2],
            [0, 0],
        ];
        assert_eq!(bytes, expected.concat());
    }

    #[test]
    fn a_string_ends_with_nul() {
        assert_eq!(encoded(|e| e.string(3, "rr")).get(4..8), Some(&b"rr\0\0"[..]));
    }
}
