use std::time::{Duration, UNIX_EPOCH};

use proptest::{collection::vec, prelude::*};

use super::{change::ChangeKind, *};

fn change(text: usize) -> ServiceChange {
    ServiceChange {
        operation: Some("x".repeat(text).into()),
        cause: Some("no such scheduler (ENOENT)".into()),
        ..ServiceChange::new(ChangeKind::Failed)
    }
}

fn name(namespace: u8, service: u8) -> ObjectName {
    ObjectName::new(format!("tenant-{namespace}"), format!("web-{service}"))
}

/// What a namespace takes.
fn bytes_of(journal: &Journal, namespace: &str) -> usize {
    let of_namespace = journal.entries.values().filter(|entry| entry.service.namespace() == namespace);
    of_namespace.map(size).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_stays_within_its_limits_whatever_happens(
        changes in vec((0..4u8, 0..6u8, 0..400usize), 0..600), most in 2_000..40_000usize,
    ) {
        let mut journal = Journal::new(UNIX_EPOCH, most);
        let mut added: FxHashMap<ObjectName, Vec<u64>> = FxHashMap::default();
        for (number, (namespace, service, text)) in (1..).zip(changes) {
            let service = name(namespace, service);
            added.entry(service.clone()).or_default().push(number);
            journal.add(vec![(service, change(text))], UNIX_EPOCH + Duration::from_secs(number));

            let bytes: usize = journal.entries.values().map(size).sum();
            prop_assert_eq!(bytes, journal.bytes);
            prop_assert!(bytes <= most, "{} of {}", bytes, most);
            let by_size: usize = journal.by_size.iter().map(|(bytes, _)| bytes).sum();
            prop_assert_eq!(bytes, by_size);
        }
        for (service, numbers) in added {
            let page = journal.page(Some(&service), 0);
            let kept: Vec<_> = page.entries.iter().map(|entry| entry.number).collect();
            prop_assert!(kept.len() <= Journal::MOST_OF_SERVICE);
            prop_assert!(numbers.ends_with(&kept), "{:?} of {:?}: the last ones are kept", kept, numbers);
            let misses = kept.len() < numbers.len();
            prop_assert!(page.incomplete || !misses, "{:?} of {:?}", kept, numbers);
            prop_assert!(misses || !page.incomplete || journal.forgotten > 0, "{:?} are all", kept);
        }
    }

    #[test]
    fn a_namespace_within_its_share_loses_nothing_to_the_churn_of_another(
        quiet in vec((0..6u8, 0..50usize), 0..12), churn in vec((0..40u8, 0..400usize), 0..800),
    ) {
        let most = 30_000;
        let mut journal = Journal::new(UNIX_EPOCH, most);
        for (service, text) in &quiet {
            journal.add(vec![(name(0, *service), change(*text))], UNIX_EPOCH);
        }
        prop_assert!(bytes_of(&journal, "tenant-0") < most / 2, "its share");
        for (service, text) in churn {
            journal.add(vec![(name(1, service), change(text))], UNIX_EPOCH);
        }
        let kept = journal.entries.values().filter(|entry| entry.service.namespace() == "tenant-0");
        prop_assert_eq!(kept.count(), quiet.len());
    }
}

#[test]
fn a_page_has_what_came_after_a_number_and_says_whether_some_is_missing() {
    let mut journal = Journal::new(UNIX_EPOCH, Journal::MOST_BYTES);
    for number in 0..30 {
        let service = if number % 10 == 9 { name(0, 1) } else { name(0, 0) };
        journal.add(vec![(service, change(1))], UNIX_EPOCH);
    }
    let numbers = |of: Option<&ObjectName>, after| {
        let JournalPage { entries, last, incomplete, .. } = journal.page(of, after);
        assert_eq!(last, 30);
        (entries.iter().map(|entry| entry.number).collect::<Vec<_>>(), incomplete)
    };
    assert_eq!(numbers(Some(&name(0, 1)), 0), (vec![10, 20, 30], false));
    assert_eq!(numbers(Some(&name(0, 1)), 20), (vec![30], false));
    assert_eq!(numbers(Some(&name(0, 0)), 27), (vec![28, 29], false));
    assert_eq!(numbers(Some(&name(0, 0)), 0).0.len(), Journal::MOST_OF_SERVICE);
    assert!(numbers(Some(&name(0, 0)), 0).1, "the first seven are gone");
    assert_eq!(numbers(None, 27), (vec![28, 29, 30], false));
    assert_eq!(numbers(None, u64::MAX), (vec![], false));
    assert_eq!(numbers(Some(&name(7, 7)), 0), (vec![], false), "every Service still has some");
}

#[test]
fn a_service_whose_entries_are_all_gone_is_not_complete_when_it_comes_back() {
    let mut journal = Journal::new(UNIX_EPOCH, size_of::<JournalEntry>() + 500);
    for service in [0, 1, 0] {
        journal.add(vec![(name(0, service), change(1))], UNIX_EPOCH);
    }
    assert_eq!(journal.entries.len(), 1);
    for service in 0..3 {
        assert!(journal.page(Some(&name(0, service)), 0).incomplete, "what was before is not known");
    }
}
