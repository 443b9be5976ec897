//! Exchanges with the kernel about any table.

use ipvs::Family;
use netlink::{Batch, Errno, Error, Reply, Socket};

use super::{
    attribute::NFTA_TABLE_NAME,
    message::{self, Message},
};

const NFTA_GEN_ID: u16 = 1;

/// The number of the last transaction in this network namespace, by anybody.
pub fn generation(socket: &mut Socket) -> Result<u32, Error> {
    let mut request = message::request(Message::GetGeneration, Family::V4, |_| {});
    let found = socket.get(&mut request, |reply| {
        let id = message::body(reply)?.find(|a| a.as_ref().map_or(true, |a| a.kind == NFTA_GEN_ID));
        id.ok_or_else(|| Error::Malformed { what: "a generation without a number".into() })??.u32_be()
    })?;
    found
        .into_iter()
        .next()
        .ok_or_else(|| Error::Malformed { what: "no answer to the question for the generation".into() })
}

/// Lists what several tables have. The dump is repeated if anybody changes any of them meanwhile.
pub fn dump<T>(
    socket: &mut Socket,
    mut request: Batch,
    decode: impl FnMut(&Reply<'_>) -> Result<Option<T>, Error>,
) -> Result<Vec<T>, Error> {
    Ok(socket.dump(&mut request, decode)?.into_iter().flatten().collect())
}

/// Whether a table of that name exists.
pub fn has_table(socket: &mut Socket, family: Family, name: &str) -> Result<bool, Error> {
    let mut request =
        message::request(Message::GetTable, family, |encoder| encoder.string(NFTA_TABLE_NAME, name));
    match socket.get(&mut request, |_| Ok(())) {
        Ok(_) => Ok(true),
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Deletes a table with everything in it; returns whether it existed.
pub fn delete_table(socket: &mut Socket, family: Family, name: &str) -> Result<bool, Error> {
    let mut batch = Batch::default();
    message::begin(&mut batch, None);
    message::add(&mut batch, Message::DelTable, 0, family, |encoder| encoder.string(NFTA_TABLE_NAME, name));
    message::end(&mut batch);
    match socket.transact(&mut batch) {
        Ok(()) => Ok(true),
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}
