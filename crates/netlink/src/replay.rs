//! Recorded answers of a kernel, to be replayed.

use std::{
    cell::RefCell,
    collections::VecDeque,
    io::{self, Read},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nix::errno::Errno;

/// The datagrams that a kernel sent, in order, and the errors between them. Clones share the rest that is not received.
///
/// As bytes each datagram follows its length, four bytes, least significant first. Any bytes are a transcript: a
/// length that goes past the end means all the rest.
#[derive(Clone, Debug, Default)]
pub struct Transcript(Arc<Mutex<Datagrams>>);

/// The results of a receiver's calls, one after the other.
type Datagrams = VecDeque<Result<Box<[u8]>, Errno>>;

/// What records the kernel, or replaces it, in the sockets that a thread opens.
#[derive(Clone, Debug)]
pub(crate) enum Tape {
    Record(Transcript),
    Replay(Transcript),
}

thread_local! {
    static TAPE: RefCell<Option<Tape>> = const { RefCell::new(None) };
}

impl Tape {
    pub(crate) fn of_this_thread() -> Option<Self> {
        TAPE.with_borrow(Clone::clone)
    }

    /// Calls `work` with this tape; afterwards, also when it panics, what was there before is there again.
    fn run<T>(self, work: impl FnOnce() -> T) -> T {
        struct Before(Option<Tape>);
        impl Drop for Before {
            fn drop(&mut self) {
                TAPE.set(self.0.take());
            }
        }
        let _before = Before(TAPE.replace(Some(self)));
        work()
    }
}

impl Transcript {
    /// Calls `work`. What the kernel sends to the sockets that it opens in this thread is added to the transcript.
    pub fn record<T>(&self, work: impl FnOnce() -> T) -> T {
        Tape::Record(self.clone()).run(work)
    }

    /// Calls `work`. The sockets that it opens in this thread have no kernel: the rest of the transcript answers each
    /// request. Several of them can take part in one conversation. After its end the kernel is silent
    /// ([`Error::TimedOut`](crate::Error::TimedOut), at once).
    pub fn replay<T>(&self, work: impl FnOnce() -> T) -> T {
        Tape::Replay(self.clone()).run(work)
    }

    /// Reads a transcript from bytes.
    pub fn decode(mut bytes: &[u8]) -> Self {
        let mut datagrams = VecDeque::new();
        while let Some((length, rest)) = bytes.split_first_chunk() {
            let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
            let (datagram, rest) = rest.split_at_checked(length).unwrap_or((rest, &[]));
            datagrams.push_back(Ok(datagram.into()));
            bytes = rest;
        }
        Self(Arc::new(Mutex::new(datagrams)))
    }

    /// The datagrams as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for datagram in self.datagrams().iter().flatten() {
            bytes.extend(u32::try_from(datagram.len()).unwrap_or(u32::MAX).to_le_bytes());
            bytes.extend(datagram);
        }
        bytes
    }

    /// Adds a datagram to the end.
    pub fn push(&self, datagram: &[u8]) {
        self.datagrams().push_back(Ok(datagram.into()));
    }

    /// Makes the attempt to receive fail that follows the last datagram.
    pub fn fail(&self, errno: Errno) {
        self.datagrams().push_back(Err(errno));
    }

    /// The next datagram, cut off where the buffer ends, as the kernel does it. After the last one, and in place of an
    /// empty one, which no kernel sends, the receiver's time is over.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let next = self.datagrams().pop_front().transpose()?;
        match next.as_deref().unwrap_or_default().read(buffer)? {
            0 => Err(Errno::EAGAIN.into()),
            length => Ok(length),
        }
    }

    fn datagrams(&self) -> MutexGuard<'_, Datagrams> {
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

    const MULTI: u16 = 2;
    const DUMP_INTR: u16 = 0x10;
    const DONE: u16 = 3;

    /// A message of this kind with one byte in it, padded.
    fn entry(kind: u16, flags: u16, sequence: u32, content: u8) -> Vec<u8> {
        let header = [&20u32.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes()];
        [&header.concat()[..], &sequence.to_ne_bytes(), &[0; 4], &[content, 0, 0, 0]].concat()
    }

    fn request() -> Batch {
        let mut batch = Batch::default();
        batch.add(100, 0, |_| {});
        batch
    }

    fn dumped(transcript: &Transcript) -> Result<Vec<u8>, Error> {
        let first = |reply: &crate::Reply<'_>| Ok(reply.payload.first().copied());
        Socket::replay(transcript.clone()).dump(&mut request(), first)
    }

    #[test]
    fn an_interrupted_call_is_made_again() {
        let transcript = Transcript::default();
        for _ in 0..3 {
            transcript.fail(Errno::EINTR);
        }
        transcript.push(&acknowledgement(1, 0));
        Socket::replay(transcript.clone()).execute(&mut request()).unwrap();
    }

    #[test]
    fn where_answers_were_lost_the_state_is_unknown() {
        let transcript = Transcript::default();
        transcript.fail(Errno::ENOBUFS);
        let lost = Socket::replay(transcript.clone()).execute(&mut request());
        assert!(matches!(lost, Err(Error::StateUnknown)), "{lost:?}");
    }

    #[test]
    fn an_answer_that_comes_late_is_not_taken_for_the_next_one() {
        let transcript = Transcript::default();
        let mut socket = Socket::replay(transcript.clone());
        assert!(matches!(socket.execute(&mut request()), Err(Error::TimedOut { .. })));
        transcript.push(&acknowledgement(1, -(Errno::EPERM as i32)));
        transcript.push(&acknowledgement(2, 0));
        socket.execute(&mut request()).unwrap();
        // The same while something is read: the rest of an earlier listing is none of this one.
        transcript.push(&entry(20, MULTI, 2, 7));
        transcript.push(&entry(DONE, MULTI, 2, 0));
        transcript.push(&entry(20, MULTI, 3, 8));
        transcript.push(&entry(DONE, MULTI, 3, 0));
        let first = |reply: &crate::Reply<'_>| Ok(reply.payload.first().copied());
        assert_eq!(socket.dump(&mut request(), first).unwrap(), [8]);
    }

    #[test]
    fn an_answer_to_another_socket_is_passed_over() {
        let transcript = Transcript::default();
        transcript.push(&acknowledgement(u32::MAX, -(Errno::EPERM as i32)));
        transcript.push(&acknowledgement(77, -(Errno::EPERM as i32)));
        transcript.push(&acknowledgement(1, 0));
        Socket::replay(transcript.clone()).execute(&mut request()).unwrap();
    }

    #[test]
    fn a_listing_that_was_disturbed_is_begun_anew_and_given_up_after_the_fifth() {
        let disturbed = |transcript: &Transcript, sequence| {
            transcript.push(&entry(20, MULTI | DUMP_INTR, sequence, 7));
            transcript.push(&entry(DONE, MULTI, sequence, 0));
        };
        let transcript = Transcript::default();
        (1..=4).for_each(|sequence| disturbed(&transcript, sequence));
        transcript.push(&entry(20, MULTI, 5, 8));
        transcript.push(&entry(DONE, MULTI, 5, 0));
        assert_eq!(dumped(&transcript).unwrap(), [8], "nothing is left of the disturbed ones");
        (1..=5).for_each(|sequence| disturbed(&transcript, sequence));
        assert!(matches!(dumped(&transcript), Err(Error::DumpInterrupted { attempts: 5 })));
    }

    #[test]
    fn listing_with_an_unreadable_entry_is_received_to_its_end() {
        let transcript = Transcript::default();
        for content in [7, 0, 8] {
            transcript.push(&entry(20, MULTI, 1, content));
        }
        transcript.push(&entry(DONE, MULTI, 1, 0));
        let decode = |reply: &crate::Reply<'_>| match reply.payload.first() {
            Some(7) => Ok(Some(())),
            strange => Err(Error::Malformed { what: format!("{strange:?}") }),
        };
        let error = Socket::replay(transcript.clone()).dump(&mut request(), decode).unwrap_err();
        assert_eq!(error.to_string(), "malformed netlink message: Some(0)", "the first of them");
        assert!(
            transcript.encode().is_empty(),
            "something is left, and the kernel would refuse the next one"
        );
    }

    #[test]
    fn a_socket_receives_what_a_kernel_has_sent_and_then_nothing() {
        let transcript = Transcript::default();
        transcript.push(&acknowledgement(1, 0));
        transcript.push(&acknowledgement(2, -1));
        let mut socket = Socket::replay(transcript.clone());
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
    fn only_sockets_opened_within_a_replay_replay() {
        let transcript = Transcript::default();
        transcript.push(&acknowledgement(1, 0));
        let mut socket = transcript.replay(|| Socket::open(crate::Protocol::Route)).unwrap();
        assert!(Tape::of_this_thread().is_none());
        socket.execute(&mut request()).unwrap();
        assert!(matches!(socket.execute(&mut request()), Err(Error::TimedOut { .. })));
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
