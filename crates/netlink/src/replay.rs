//! What a kernel has said, to be said again.

use std::{
    collections::VecDeque,
    io::{self, Read},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nix::errno::Errno;

/// The datagrams that a kernel has sent, in order. Clones share what is left of it.
///
/// As bytes each datagram follows its length, four bytes, least significant first. Any bytes are a transcript: a
/// length that goes past the end means all the rest.
#[derive(Clone, Debug, Default)]
pub struct Transcript(Arc<Mutex<VecDeque<Box<[u8]>>>>);

impl Transcript {
    /// Reads one.
    pub fn decode(mut bytes: &[u8]) -> Self {
        let mut datagrams = VecDeque::new();
        while let Some((length, rest)) = bytes.split_first_chunk() {
            let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
            let (datagram, rest) = rest.split_at_checked(length).unwrap_or((rest, &[]));
            datagrams.push_back(datagram.into());
            bytes = rest;
        }
        Self(Arc::new(Mutex::new(datagrams)))
    }

    /// The same as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for datagram in self.datagrams().iter() {
            bytes.extend(u32::try_from(datagram.len()).unwrap_or(u32::MAX).to_le_bytes());
            bytes.extend(datagram);
        }
        bytes
    }

    /// Adds a datagram to the end.
    pub fn push(&self, datagram: &[u8]) {
        self.datagrams().push_back(datagram.into());
    }

    /// The next datagram, cut off where the buffer ends, as the kernel does it. After the last one, and instead of
    /// an empty one, which no kernel sends, the patience of the receiver has ended.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let next = self.datagrams().pop_front();
        match next.as_deref().unwrap_or_default().read(buffer)? {
            0 => Err(Errno::EAGAIN.into()),
            length => Ok(length),
        }
    }

    fn datagrams(&self) -> MutexGuard<'_, VecDeque<Box<[u8]>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, Error, Socket};

    fn acknowledgement(sequence: u32, code: i32) -> Vec<u8> {
        let header =
            [&36u32.to_ne_bytes()[..], &2u16.to_ne_bytes(), &[0; 2], &sequence.to_ne_bytes(), &[0; 4]];
        [&header.concat()[..], &code.to_ne_bytes(), &[0; 16]].concat()
    }

    #[test]
    fn a_socket_hears_what_a_kernel_has_said_and_then_nothing() {
        let transcript = Transcript::default();
        transcript.push(&acknowledgement(1, 0));
        transcript.push(&acknowledgement(2, -1));
        let mut socket = Socket::replay(&transcript);
        let mut execute = || {
            let mut batch = Batch::default();
            batch.add(1, 0, |_| {});
            socket.execute(&mut batch)
        };
        execute().unwrap();
        assert_eq!(execute().unwrap_err().errno(), Some(Errno::EPERM));
        assert!(matches!(execute(), Err(Error::TimedOut { .. })));
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let transcript = Transcript::default();
        transcript.push(&acknowledgement(1, 0));
        transcript.push(&[7]);
        assert_eq!(Transcript::decode(&transcript.encode()).encode(), transcript.encode());
    }

    #[test]
    fn any_bytes_are_a_transcript() {
        let transcript = Transcript::decode(&[1, 0, 0, 0, 7, 9, 0, 0, 0, 8, 8]);
        let mut buffer = [0; 8];
        assert_eq!(transcript.receive(&mut buffer).unwrap(), 1);
        assert_eq!(transcript.receive(&mut buffer).unwrap(), 2);
        assert!(transcript.receive(&mut buffer).is_err());
    }
}
