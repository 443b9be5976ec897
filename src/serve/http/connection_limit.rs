//! Limits the connections at one address, and those at many addresses together, by closing older ones.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::task::{AbortHandle, JoinSet};

/// The connections at a time, at each address.
pub(super) const CLIENTS: usize = 256;

/// The connections that may wait for their request, however many others read their answers: a new one must not be
/// closed at once for the next.
const NEWCOMERS: usize = 16;

/// How many connections some addresses may have together. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionLimit(Arc<Mutex<OpenConnections>>);

#[derive(Debug)]
struct OpenConnections {
    most: usize,
    /// At all addresses.
    count: usize,
    /// At each address, the oldest first. The number stands for the address.
    at: BTreeMap<u64, VecDeque<Connection>>,
    next_address: u64,
}

#[derive(Debug)]
struct Connection {
    task: AbortHandle,
    received: RequestReceived,
}

impl ConnectionLimit {
    /// A limit of so many connections together, and of 256 at each address.
    pub(crate) fn new(most: usize) -> Self {
        let open = OpenConnections { most, count: 0, at: BTreeMap::new(), next_address: 0 };
        Self(Arc::new(Mutex::new(open)))
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        // No holder of the lock can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ConnectionLimit {
    /// The limit of a single address.
    fn default() -> Self {
        Self::new(CLIENTS)
    }
}

impl OpenConnections {
    /// Closes an older connection if there are too many. It is one of the address that has the most: an address with
    /// few clients is not kept from answering by those at others.
    fn make_room(&mut self, address: u64) {
        let own = self.at.get(&address).map_or(0, VecDeque::len);
        let full = if own >= CLIENTS {
            Some(address)
        } else if self.count >= self.most {
            self.at.iter().max_by_key(|(_, open)| open.len()).map(|(address, _)| *address)
        } else {
            None
        };
        let Some(open) = full.and_then(|full| self.at.get_mut(&full)) else { return };
        if let Some(other) = next_to_close(open).and_then(|other| open.remove(other)) {
            other.task.abort();
            self.count -= 1;
        }
    }

    /// Forgets the connections that have ended.
    fn tidy(&mut self, address: u64) {
        let Some(open) = self.at.get_mut(&address) else { return };
        let before = open.len();
        open.retain(|connection| !connection.task.is_finished());
        self.count -= before - open.len();
    }
}

/// The oldest without a request; if these are few, the oldest that does not take its answer.
fn next_to_close(open: &VecDeque<Connection>) -> Option<usize> {
    let silent = open.iter().filter(|connection| !connection.received.get()).count();
    let has_asked = silent <= NEWCOMERS;
    // At an address with few connections all may be of the other kind.
    let oldest = open.iter().position(|connection| connection.received.get() == has_asked);
    oldest.or_else(|| (!open.is_empty()).then_some(0))
}

/// The connections at one address. They end with this.
///
/// No client may keep out the kubelet, which would restart the pod: when there are too many connections, an older one
/// is closed for the newest.
#[derive(Debug)]
pub(super) struct Connections {
    tasks: JoinSet<()>,
    limit: ConnectionLimit,
    address: u64,
}

/// Whether the whole request has arrived.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestReceived(Arc<AtomicBool>);

impl RequestReceived {
    /// Records that the request has arrived.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Connections {
    /// No connections yet, within this limit.
    pub(super) fn within(limit: ConnectionLimit) -> Self {
        let mut open = limit.lock();
        let address = open.next_address;
        open.next_address += 1;
        open.at.insert(address, VecDeque::new());
        drop(open);
        Self { tasks: JoinSet::new(), limit, address }
    }

    /// Serves a new connection, closing another if there are too many.
    pub(super) fn admit<V: Future<Output = ()> + Send + 'static>(
        &mut self,
        visit: impl FnOnce(RequestReceived) -> V,
    ) {
        let mut open = self.limit.lock();
        open.make_room(self.address);
        let received = RequestReceived::default();
        let task = self.tasks.spawn(visit(received.clone()));
        open.count += 1;
        open.at.entry(self.address).or_default().push_back(Connection { task, received });
    }

    /// Waits until a connection has ended. `None` if there is none.
    pub(super) async fn next_ended(&mut self) -> Option<()> {
        self.tasks.join_next().await?.ok();
        self.limit.lock().tidy(self.address);
        Some(())
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        let mut open = self.limit.lock();
        let here = open.at.remove(&self.address).map_or(0, |here| here.len());
        open.count -= here;
    }
}

#[cfg(test)]
mod tests {
    use std::future;

    use tokio::task::yield_now;

    use super::*;

    /// How many connections there are at each of these.
    fn counts(all: &[&Connections]) -> Vec<usize> {
        all.iter().map(|here| here.limit.lock().at[&here.address].len()).collect()
    }

    fn admit(connections: &mut Connections, asks: bool) {
        connections.admit(|received| {
            if asks {
                received.set();
            }
            future::pending()
        });
    }

    #[tokio::test]
    async fn addresses_share_a_limit_and_those_with_the_most_connections_give_way() {
        let limit = ConnectionLimit::new(100);
        let [mut flooded, mut too, mut quiet] = [(); 3].map(|()| Connections::within(limit.clone()));
        admit(&mut quiet, true);
        (0..300).for_each(|_| admit(&mut flooded, false));
        assert_eq!(counts(&[&flooded, &too, &quiet]), [99, 0, 1]);
        (0..300).for_each(|_| admit(&mut too, true));
        assert_eq!(limit.lock().count, 100);
        let [first, second, last] = counts(&[&flooded, &too, &quiet])[..] else { panic!("three") };
        assert!(first.abs_diff(second) <= 1 && last == 1, "{first}, {second}, {last}");
        (0..3).for_each(|_| admit(&mut quiet, true));
        assert_eq!(counts(&[&quiet]), [4]);

        // What ends is not counted any more.
        let left = 100 - counts(&[&flooded])[0];
        drop(flooded);
        assert_eq!(limit.lock().count, left);
        too.tasks.abort_all();
        while !too.tasks.is_empty() {
            too.next_ended().await;
            yield_now().await;
        }
        assert_eq!((counts(&[&too, &quiet]), limit.lock().count), (vec![0, 4], 4));
    }

    #[tokio::test]
    async fn an_address_alone_has_no_more_than_256_whatever_the_limit() {
        let mut alone = Connections::within(ConnectionLimit::new(10_000));
        (0..300).for_each(|_| admit(&mut alone, false));
        assert_eq!(counts(&[&alone]), [CLIENTS]);
    }
}
