//! Changes that take effect together or not at all, and the order of those to intervals.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
};

use ipvs::Family;
use netlink::Batch;

use crate::{
    Element, Operation, PacketCounter,
    nft::{
        TABLE, chain,
        chain::Chain,
        counter,
        element::{self, Key},
        family_name,
        message::{self, CREATE, Message, NFTA_TABLE_NAME},
        rule,
        rule::Rule,
        set,
        set::Set,
    },
};

/// How many elements are named in the text of a request.
const ELEMENTS_SHOWN: usize = 4;

/// One request to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    AddTable(Family),
    /// With everything in it.
    DeleteTable(Family),
    /// At 0, unless it exists.
    AddCounter(Family, PacketCounter),
    AddSet(Family, &'static Set),
    /// With its elements.
    DeleteSet(Family, &'static Set),
    /// Without its rules.
    AddChain(Family, &'a Chain),
    DeleteChain(Family, Box<str>),
    AddRule(Family, &'static str, &'a Rule),
    /// Removes every rule of the table.
    FlushRules(Family),
    /// Removes every rule of one chain.
    FlushChain(Family, &'static str),
    /// All of one set.
    AddElements(Vec<Element>),
    /// All of one set, and present.
    DeleteElements(Vec<Element>),
}

/// Requests in order, of which the kernel executes all or none. Prints one request per line, in nft's syntax.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Transaction<'a> {
    operations: Vec<Request<'a>>,
}

impl<'a> From<Vec<Request<'a>>> for Transaction<'a> {
    fn from(operations: Vec<Request<'a>>) -> Self {
        Self { operations }
    }
}

impl<'a> Transaction<'a> {
    pub(crate) fn push(&mut self, operation: Request<'a>) {
        self.operations.push(operation);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Adds elements of one set; those that exist stay as they are.
    pub(crate) fn add_elements(&mut self, elements: &[Element]) {
        for some in elements.chunks(element::PER_REQUEST) {
            self.push(Request::AddElements(some.to_vec()));
        }
    }

    /// Removes elements of one set, whether they exist or not. Intervals must exist.
    ///
    /// The kernel refuses to delete what does not exist, and knows `NFT_MSG_DESTROYSETELEM` since 6.3 only.
    /// Adding them first, in the same transaction, makes the deletion safe on any kernel. This does not work
    /// for intervals: a missing one cannot be added beside another that it overlaps.
    pub(crate) fn delete_elements(&mut self, elements: &[Element]) {
        for some in elements.chunks(element::PER_REQUEST) {
            if !some.iter().any(Element::is_interval) {
                self.push(Request::AddElements(some.to_vec()));
            }
            self.push(Request::DeleteElements(some.to_vec()));
        }
    }

    /// The requests between begin and end. Request 0 is the begin, so request `i + 1` is operation `i`. With
    /// a generation the kernel refuses the transaction if nf_tables has changed since.
    pub(crate) fn encode(&self, generation: Option<u32>) -> Batch {
        let mut batch = self.encode_without_end(generation);
        message::end(&mut batch);
        batch
    }

    /// The batch without its end: the kernel tries each request, answers, and undoes them all
    /// (`nfnetlink_rcv_batch` in net/netfilter/nfnetlink.c).
    pub(crate) fn encode_rehearsal(&self) -> Batch {
        self.encode_without_end(None)
    }

    fn encode_without_end(&self, generation: Option<u32>) -> Batch {
        let mut batch = Batch::default();
        message::begin(&mut batch, generation);
        for (position, operation) in self.operations.iter().enumerate() {
            operation.encode(&mut batch, position);
        }
        batch
    }

    /// What request `index` of the encoded batch does.
    pub(crate) fn describe(&self, index: usize) -> String {
        match index.checked_sub(1).and_then(|position| self.operations.get(position)) {
            Some(operation) => operation.to_string(),
            None => "commit the transaction".to_owned(),
        }
    }
}

impl fmt::Display for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.operations.iter().try_for_each(|operation| writeln!(f, "{operation}"))
    }
}

impl Request<'_> {
    fn encode(&self, batch: &mut Batch, position: usize) {
        match self {
            Self::AddTable(family) => message::add_table(batch, *family, TABLE, 0),
            Self::DeleteTable(family) => message::add(batch, Message::DelTable, 0, *family, |encoder| {
                encoder.string(NFTA_TABLE_NAME, TABLE);
            }),
            Self::AddCounter(family, counter) => counter::add(batch, *family, counter.name()),
            Self::AddSet(family, set) => {
                set.add_to(batch, *family, TABLE, u32::try_from(position).unwrap_or_default());
            }
            Self::DeleteSet(family, set) => set::delete(batch, *family, set.name),
            Self::AddChain(family, chain) => chain.add_to(batch, *family, TABLE),
            Self::DeleteChain(family, name) => chain::delete(batch, *family, name),
            Self::AddRule(family, chain, rule) => rule.add_to(batch, *family, TABLE, chain),
            Self::FlushRules(family) => rule::delete(batch, *family, TABLE, None, None),
            Self::FlushChain(family, chain) => rule::delete(batch, *family, TABLE, Some(chain), None),
            Self::AddElements(elements) => {
                encode_elements(batch, Message::NewSetElement, CREATE, elements);
            }
            Self::DeleteElements(elements) => encode_elements(batch, Message::DelSetElement, 0, elements),
        }
    }
}

fn encode_elements(batch: &mut Batch, message: Message, flags: u16, elements: &[Element]) {
    if let Some(first) = elements.first() {
        let keys = elements.iter().map(Key::from);
        element::change(batch, message, flags, first.family(), TABLE, first.set(), keys);
    }
}

impl fmt::Display for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = |family: &Family| format!("{} {TABLE}", family_name(*family));
        match self {
            Self::AddTable(family) => write!(f, "add table {}", table(family)),
            Self::DeleteTable(family) => write!(f, "delete table {}", table(family)),
            Self::AddCounter(family, counter) => {
                write!(f, "add counter {} {}", table(family), counter.name())
            }
            Self::AddSet(family, set) => {
                write!(f, "add {} {} {} {{ ", set.kind(), table(family), set.name)?;
                set.write(*family, "; ", f)?;
                f.write_str("; }")
            }
            Self::DeleteSet(family, set) => {
                write!(f, "delete {} {} {}", set.kind(), table(family), set.name)
            }
            Self::AddChain(family, chain) => {
                write!(f, "add chain {} {}", table(family), chain.name)?;
                chain.hook.map_or(Ok(()), |hook| write!(f, " {{ {hook} }}"))
            }
            Self::DeleteChain(family, name) => write!(f, "delete chain {} {name}", table(family)),
            Self::AddRule(family, chain, rule) => {
                write!(f, "add rule {} {chain} ", table(family))?;
                rule.write(*family, f)
            }
            Self::FlushRules(family) => write!(f, "flush table {}", table(family)),
            Self::FlushChain(family, chain) => write!(f, "flush chain {} {chain}", table(family)),
            Self::AddElements(elements) => write_elements(f, "add", elements),
            Self::DeleteElements(elements) => write_elements(f, "delete", elements),
        }
    }
}

fn write_elements(f: &mut fmt::Formatter<'_>, verb: &str, elements: &[Element]) -> fmt::Result {
    let Some(first) = elements.first() else { return Ok(()) };
    write!(f, "{verb} element {} {TABLE} {} {{ ", family_name(first.family()), first.set())?;
    for (position, element) in elements.iter().take(ELEMENTS_SHOWN).enumerate() {
        f.write_str(if position == 0 { "" } else { ", " })?;
        write!(f, "{}", Key::from(element))?;
    }
    match elements.len().saturating_sub(ELEMENTS_SHOWN) {
        0 => f.write_str(" }"),
        more => write!(f, ", … {more} more }}"),
    }
}

/// The interval of a family that is added (true) or deleted (false).
fn interval(operation: &Operation, family: Family) -> Option<(bool, &Element)> {
    operation.element().filter(|(_, element)| element.is_interval() && element.family() == family)
}

/// Whether some interval of a family is deleted.
pub(crate) fn deletes_intervals(operations: &[Operation], family: Family) -> bool {
    operations.iter().any(|operation| interval(operation, family).is_some_and(|(is_added, _)| !is_added))
}

/// The changes, with those of a family's intervals at the end: first existing intervals are deleted, and
/// then, when nothing is left to overlap, missing ones are added.
///
/// The kernel does not check such changes completely, as seen on 5.10, 6.18 and 7.2 (`nft_pipapo_insert` and
/// `nft_pipapo_deactivate` in net/netfilter/nft_set_pipapo.c). Deleting an interval deletes whichever one
/// contains its *start*, even another one. Adding one is refused if one of its ends lies in another (5.10 does
/// nothing and reports no error), but not if it fully covers another. So the existing intervals are read before
/// some are deleted, and only existing ones are deleted.
pub(crate) fn settle_intervals(
    operations: &[Operation],
    family: Family,
    there: &HashSet<Element>,
) -> Vec<Operation> {
    let mut settled = Vec::with_capacity(operations.len());
    let mut wanted = BTreeMap::new();
    for operation in operations {
        match interval(operation, family) {
            Some((is_wanted, element)) => _ = wanted.insert(*element, is_wanted),
            None => settled.push(*operation),
        }
    }
    wanted.retain(|element, wanted| *wanted != there.contains(element));
    let (come, go): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|(_, wanted)| *wanted);
    settled.extend(go.into_iter().map(|(element, _)| Operation::DeleteElement(element)));
    settled.extend(come.into_iter().map(|(element, _)| Operation::AddElement(element)));
    settled
}

#[cfg(test)]
mod tests;
