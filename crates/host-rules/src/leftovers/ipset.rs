//! ipsets by netlink: their names, and deleting them (include/uapi/linux/netfilter/ipset/ip_set.h).

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use netlink::{Batch, Encoder, Errno, Error, Reply, Socket, find, if_exists};

use netfilter::nft::message;

/// `NFNL_SUBSYS_IPSET`.
const SUBSYSTEM: u16 = 6;
const IPSET_CMD_DESTROY: u16 = 3;
const IPSET_CMD_LIST: u16 = 7;

const IPSET_ATTR_PROTOCOL: u16 = 1;
const IPSET_ATTR_SETNAME: u16 = 2;
const IPSET_ATTR_FLAGS: u16 = 6;

/// Every kernel accepts this version; those before 4.20 accept no later one.
const PROTOCOL: u8 = 6;
/// Names alone, without what is in the sets.
const IPSET_FLAG_LIST_SETNAME: u32 = 1 << 1;

/// How long a set may still be in use after the last rule with it is gone: the kernel destroys rules later,
/// on its own queue (`nf_tables_commit_release` in net/netfilter/nf_tables_api.c), without a notification.
const PATIENCE: Duration = Duration::from_secs(3);
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// Where the kernel shows its modules' parameters, and those of ip_set, which has one even if it is built in.
const MODULES: &str = "/sys/module";
const IP_SET: &str = "/sys/module/ip_set";

/// The names of all sets, of any owner.
pub(super) fn names(socket: &mut Socket) -> Result<Vec<Box<str>>, Error> {
    // The query would load the module, only to find no sets.
    if Path::new(MODULES).exists() && !Path::new(IP_SET).exists() {
        return Ok(Vec::new());
    }
    // Without the module there are no sets, and the message is refused (`nfnetlink_rcv_msg`).
    Ok(if_exists(socket.dump(&mut list(), decode), &[Errno::EINVAL])?.unwrap_or_default())
}

/// Deletes sets, and returns those that are still in use.
pub(super) fn destroy(socket: &mut Socket, names: &[Box<str>]) -> Result<Vec<Box<str>>, Error> {
    let began = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut left = names.to_vec();
    loop {
        left = destroy_once(socket, &left)?;
        if left.is_empty() || began.elapsed() > PATIENCE {
            return Ok(left);
        }
        thread::sleep(pause);
        pause *= 2;
    }
}

fn destroy_once(socket: &mut Socket, names: &[Box<str>]) -> Result<Vec<Box<str>>, Error> {
    let mut batch = Batch::default();
    for name in names {
        add(&mut batch, IPSET_CMD_DESTROY, |encoder| encoder.string(IPSET_ATTR_SETNAME, name));
    }
    let mut in_use = Vec::new();
    for failure in socket.pipeline(&mut batch)? {
        match failure.error.errno {
            Errno::ENOENT => {}
            // ipset's own errors begin at 4096. Of them only IPSET_ERR_BUSY is an answer to a request that is
            // well formed.
            Errno::EBUSY | Errno::UnknownErrno => in_use.extend(names.get(failure.index).cloned()),
            _ => return Err(failure.error.into()),
        }
    }
    Ok(in_use)
}

fn list() -> Batch {
    let mut batch = Batch::default();
    add(&mut batch, IPSET_CMD_LIST, |encoder| encoder.u32_be(IPSET_ATTR_FLAGS, IPSET_FLAG_LIST_SETNAME));
    batch
}

fn add(batch: &mut Batch, command: u16, body: impl FnOnce(&mut Encoder<'_>)) {
    batch.add(SUBSYSTEM << 8 | command, 0, |encoder| {
        // struct nfgenmsg of no family.
        encoder.raw(&[0; 4]);
        encoder.u8(IPSET_ATTR_PROTOCOL, PROTOCOL);
        body(encoder);
    });
}

/// Reads one name. One that is not UTF-8 is not kube-proxy's.
fn decode(reply: &Reply<'_>) -> Result<Option<Box<str>>, Error> {
    let name = find(message::attributes_of(reply)?, IPSET_ATTR_SETNAME);
    Ok(name.and_then(|name| name.string().ok()).map(Into::into))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[&[u8]]) -> Vec<u8> {
        let body = [&[0; 4], &body.concat()[..]].concat();
        let length = u32::try_from(16 + body.len()).unwrap();
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &1u16.to_ne_bytes(), &[0; 8], &body].concat()
    }

    fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + payload.len()).unwrap();
        let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), payload].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn only_names_are_asked_for() {
        let expected = message(0x0607, &[&attribute(1, &[6]), &attribute(6, &[0, 0, 0, 2])]);
        assert_eq!(list().as_bytes(), expected);
    }

    #[test]
    fn a_set_is_deleted_by_name() {
        let mut batch = Batch::default();
        add(&mut batch, IPSET_CMD_DESTROY, |encoder| encoder.string(IPSET_ATTR_SETNAME, "KUBE-LOOP-BACK"));
        let expected = message(0x0603, &[&attribute(1, &[6]), &attribute(2, b"KUBE-LOOP-BACK\0")]);
        assert_eq!(batch.as_bytes(), expected);
    }

    #[test]
    fn a_name_is_read_from_a_list_and_one_that_is_not_utf_8_is_ignored() {
        let decoded = |name: &[u8]| {
            let bytes = message(0x0607, &[&attribute(1, &[6]), &attribute(2, name)]);
            decode(&Reply { payload: &bytes[16..], ..Reply::default() }).unwrap()
        };
        assert_eq!(decoded(b"KUBE-LOOP-BACK\0").as_deref(), Some("KUBE-LOOP-BACK"));
        assert_eq!(decoded(b"\xff\xfe\0"), None);
    }
}
