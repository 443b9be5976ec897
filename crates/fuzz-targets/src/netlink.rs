//! The framing: datagrams into messages, messages into attributes, attributes into values.

use netlink::{Batch, Error, Protocol, Reply, Socket, Transcript, attributes};

/// How deep attributes are looked for in attributes.
const DEPTH: u32 = 8;
/// The length of a message's header.
const HEADER: usize = 16;

/// Reads a dump, and the answers to a pipeline, a transaction and a request after it.
///
/// Attributes that were read are written and read again, and are the same.
pub fn fuzz(input: &[u8]) {
    let transcript = Transcript::decode(input);
    let Ok(mut socket) = transcript.replay(|| Socket::open(Protocol::Generic)) else { return };
    let mut batch = Batch::default();
    for kind in 0..4 {
        batch.add(kind, 0, |_| {});
    }
    drop(socket.dump(&mut batch, look));
    if let Ok(failures) = socket.pipeline(&mut batch) {
        assert!(failures.iter().all(|failure| failure.index < batch.len()), "of a request that was not sent");
    }
    if let Err(Error::RolledBack(failure)) = socket.transact(&mut batch) {
        assert!(failure.index < batch.len(), "of a request that was not sent");
    }
    drop(socket.get(&mut batch, look));
    drop(socket.generic_family("IPVS"));
}

fn look(reply: &Reply<'_>) -> Result<Option<()>, Error> {
    walk(reply.payload, DEPTH);
    walk(reply.generic()?.1, DEPTH);
    Ok(None)
}

fn walk(bytes: &[u8], depth: u32) {
    let mut length = 0;
    for attribute in attributes(bytes).map_while(Result::ok) {
        length += 4 + attribute.payload.len();
        assert!(length <= bytes.len(), "attributes that are longer than what they are in");

        let mut written = Batch::default();
        written.add(0, 0, |encoder| encoder.bytes(attribute.kind, attribute.payload));
        let mut read = attributes(written.as_bytes().get(HEADER..).unwrap_or_default()).map_while(Result::ok);
        let same = read.next().map(|read| (read.kind, read.payload));
        assert_eq!(same, Some((attribute.kind, attribute.payload)));

        assert_eq!(attribute.u32().is_ok(), attribute.payload.len() >= 4);
        assert!(!attribute.string().is_ok_and(|text| text.contains('\0')), "text past its end");
        if depth > 0 {
            walk(attribute.payload, depth - 1);
        }
    }
}
