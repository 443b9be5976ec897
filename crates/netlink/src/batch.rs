//! Many requests in one buffer.

use netlink_packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkSerializable};

use crate::Encoder;

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
        let start = self.open(kind, flags);
        body(&mut Encoder::new(&mut self.bytes));
        self.close(start);
    }

    /// Appends a generic netlink request: `struct genlmsghdr`, then `body`'s attributes.
    pub fn generic(&mut self, family: u16, command: u8, version: u8, body: impl FnOnce(&mut Encoder<'_>)) {
        self.add(family, 0, |encoder| {
            encoder.raw(&[command, version, 0, 0]);
            body(encoder);
        });
    }

    /// Appends a message made by one of the netlink-packet crates; `NLM_F_REQUEST` is added to its
    /// flags.
    pub fn packet<P: NetlinkSerializable>(&mut self, mut message: NetlinkMessage<P>) {
        message.header.flags |= NLM_F_REQUEST;
        message.finalize();
        let start = self.bytes.len();
        self.bytes.resize(start + message.buffer_len(), 0);
        if let Some(space) = self.bytes.get_mut(start..) {
            message.serialize(space);
        }
        self.starts.push(start);
        self.close(start);
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

    /// The byte range of requests `from..to`.
    pub(crate) fn slice(&self, from: usize, to: usize) -> &[u8] {
        let start = self.starts.get(from).copied().unwrap_or(self.bytes.len());
        let end = self.starts.get(to).copied().unwrap_or(self.bytes.len());
        self.bytes.get(start..end).unwrap_or_default()
    }

    fn open(&mut self, kind: u16, flags: u16) -> usize {
        let start = self.bytes.len();
        self.starts.push(start);
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 8]);
        start
    }

    fn close(&mut self, start: usize) {
        let padded = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(padded, 0);
        let length = u32::try_from(self.bytes.len() - start).unwrap_or(u32::MAX);
        if let Some(field) = self.bytes.get_mut(start..start + 4) {
            field.copy_from_slice(&length.to_ne_bytes());
        }
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
        assert_eq!(batch.slice(1, 3).len(), 32);
        assert_eq!(batch.slice(3, 3), &[] as &[u8]);
    }
}
