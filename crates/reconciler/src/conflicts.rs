//! Which Services have lost an address and port to another one.

use std::collections::BTreeSet;

use ipvs::ServiceAddress;
use service::{Lost, ObjectName, State};

use crate::{Notice, Reason};

/// Remembers who was told that an address is somebody else's, so that it is told once.
#[derive(Default)]
pub(crate) struct Conflicts {
    told: BTreeSet<(ObjectName, Loss)>,
    /// Of the conflicts that were told.
    revision: u64,
}

/// What a Service is told that it does not get.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Loss {
    /// An address and port, and who has it.
    One(ServiceAddress, ObjectName),
    /// So many more.
    More(usize),
}

impl Conflicts {
    /// A notice for each address that a Service cannot have; again only when somebody else has it. Of many, a few are
    /// named and the others counted.
    pub(crate) fn news(&mut self, state: &State) -> Vec<Notice> {
        if self.revision == state.conflicts_revision() {
            return Vec::new();
        }
        self.revision = state.conflicts_revision();
        let now: BTreeSet<_> = state
            .lost()
            .flat_map(|(service, lost)| losses(lost).map(move |loss| (service.clone(), loss)))
            .collect();
        let news = now.difference(&self.told).map(notice).collect();
        self.told = now;
        news
    }
}

fn losses(Lost { named, more }: Lost<'_>) -> impl Iterator<Item = Loss> {
    let named = named.into_iter().map(|(address, holder)| Loss::One(address, holder.clone()));
    named.chain((more > 0).then_some(Loss::More(more)))
}

fn notice((service, loss): &(ObjectName, Loss)) -> Notice {
    let text = match loss {
        Loss::One(address, holder) => {
            format!(
                "{address} belongs to {holder}, whose claim comes first; it is not served for this Service"
            )
        }
        Loss::More(more) => {
            format!(
                "addresses and ports that belong to others, whose claims come first, and that are not named: {more}"
            )
        }
    };
    Notice { service: service.clone(), reason: Reason::AddressTaken, text }
}
