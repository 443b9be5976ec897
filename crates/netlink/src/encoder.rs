//! Writing attributes.

use netlink_packet_core::NLA_F_NESTED;

/// Appends attributes to one message of a [`Batch`](crate::Batch).
///
/// Lengths and the padding to four bytes are kept by this type. Byte order is the caller's choice,
/// since netlink families mix both: the plain integer methods write host order, the `_be` ones
/// network order.
#[derive(Debug)]
pub struct Encoder<'a> {
    bytes: &'a mut Vec<u8>,
}

impl<'a> Encoder<'a> {
    pub(crate) fn new(bytes: &'a mut Vec<u8>) -> Self {
        Self { bytes }
    }

    /// Appends a family's fixed header, such as `struct nfgenmsg`, padded to four bytes.
    pub fn raw(&mut self, header: &[u8]) {
        self.bytes.extend_from_slice(header);
        self.pad();
    }

    /// Appends an attribute with any payload of at most 65,531 bytes.
    pub fn bytes(&mut self, kind: u16, payload: &[u8]) {
        let start = self.open(kind);
        self.bytes.extend_from_slice(payload);
        self.close(start);
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

    /// Appends a NUL-terminated string.
    pub fn string(&mut self, kind: u16, value: &str) {
        let start = self.open(kind);
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.close(start);
    }

    /// Appends a container and whatever `content` puts into it.
    pub fn nest(&mut self, kind: u16, content: impl FnOnce(&mut Encoder<'_>)) {
        let start = self.open(kind | NLA_F_NESTED);
        content(&mut Encoder::new(self.bytes));
        self.close(start);
    }

    fn open(&mut self, kind: u16) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0, 0]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        start
    }

    fn close(&mut self, start: usize) {
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

    fn encoded(write: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut Encoder::new(&mut bytes));
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
