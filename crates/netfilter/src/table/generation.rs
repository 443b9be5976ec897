//! Which states of nf_tables differ only by our own transactions.

/// A state of nf_tables: the kernel counts one for each transaction that changes anything, by any program
/// (`nf_tables_commit` in net/netfilter/nf_tables_api.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(pub(super) u32);

/// Successive generations, each but the first made by a transaction of this client.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnGenerations {
    first: u32,
    last: u32,
}

impl OwnGenerations {
    /// Only this one.
    fn from(Generation(number): Generation) -> Self {
        Self { first: number, last: number }
    }

    /// Continues with the generation after a transaction of this client, if no other program has made one. A transaction
    /// that changes nothing does not count.
    pub(super) fn committed(own: Option<Self>, before: Generation, now: Generation) -> Self {
        match own {
            Some(own) if own.last == before.0 && now.0.wrapping_sub(before.0) <= 1 => {
                Self { last: now.0, ..own }
            }
            _ => Self::from(now),
        }
    }

    /// Continues with the generation that was observed.
    pub(super) fn observed(own: Option<Self>, now: Generation) -> Self {
        own.filter(|own| own.last == now.0).unwrap_or_else(|| Self::from(now))
    }

    /// Whether only this client has made changes from one generation to the other.
    pub(super) fn lead(self, Generation(from): Generation, Generation(to): Generation) -> bool {
        to == self.last && from.wrapping_sub(self.first) <= self.last.wrapping_sub(self.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generations after these transactions: of this client, of another program, or without any effect.
    fn after(begin: u32, transactions: &str) -> (OwnGenerations, Generation) {
        let mut now = begin;
        let mut own = OwnGenerations::observed(None, Generation(begin));
        for transaction in transactions.chars() {
            let before = now;
            now = now.wrapping_add(u32::from(transaction != '-'));
            if transaction != 'x' {
                own = OwnGenerations::committed(Some(own), Generation(before), Generation(now));
            }
        }
        (own, Generation(now))
    }

    #[test]
    fn only_an_unbroken_row_of_own_transactions_leads_from_one_generation_to_another() {
        for begin in [1, 4_000_000_000, u32::MAX] {
            for (transactions, is_own) in [
                ("", true),
                ("o", true),
                ("oo-o", true),
                ("-", true),
                ("x-", false),
                ("ox-", false),
                ("x", false),
                ("ox", false),
                ("xo", false),
                ("oxo", false),
            ] {
                let (own, now) = after(begin, transactions);
                assert_eq!(own.lead(Generation(begin), now), is_own, "{begin}: {transactions}");
                let own = OwnGenerations::observed(Some(own), now);
                assert!(own.lead(now, now), "what was observed now");
                assert_eq!(own.lead(Generation(begin), now), is_own, "observing changes nothing");
            }
        }
    }

    #[test]
    fn what_was_observed_before_another_programs_change_is_out_of_date_for_ever() {
        let (own, now) = after(7, "xoo");
        assert!(own.lead(Generation(9), now) && !own.lead(Generation(7), now));
        let own = OwnGenerations::observed(Some(own), now);
        assert!(!own.lead(Generation(7), now));
    }
}
