//! Whichever call to the kernel fails in a sync that trusts the image, and in whatever way: the retry makes
//! everything as desired, and the image is right again. `tests/unit/faults.rs` has the same for syncs that
//! read everything. So it is where a sync ends early, because others wait.

use std::collections::BTreeSet;

use dummy_interface::Changed;
use ipvs::{Family, Scheduler, VirtualServerId};
use netfilter::Element;
use proptest::{prelude::*, sample::select};
use service::{Change, Event, Options, State};
use testkit::{FakeKernel, fake_kernel::Fault};
use watcher::{Draining, Foreign, Kernel, Ownership};

use super::{Reconciler, Slice, pace::Pace};
use crate::{Timing, Trigger, follow::TunnelsInUse};

#[path = "../../tests/unit/common/objects.rs"]
mod objects;
#[path = "../../tests/unit/story/mod.rs"]
mod story;

use story::{Ending, Inputs, Story, any_story, faults, picture};

/// The syncs for these reasons are disturbed.
const TRIGGERS: [Trigger; 3] = [Trigger::Change, Trigger::KernelEvent, Trigger::Period];

/// A reconciler that serves both families and has no Services yet.
pub(super) fn reconciler(kernel: &FakeKernel, draining: Draining) -> Reconciler {
    let (ipvs, netfilter, dummy_interface) = kernel.subsystems();
    let ours =
        Ownership { families: BTreeSet::from(Family::BOTH), exclude: Vec::new(), foreign: Foreign::Delete };
    Reconciler::new(
        State::new(Options::new("node")),
        Kernel { ipvs, netfilter, dummy_interface },
        ours,
        draining,
        TunnelsInUse::new(Timing::TCP_TIMEOUT),
    )
}

/// A kernel that serves these Services, and the reconciler that serves them.
fn serving(inputs: &Inputs) -> (FakeKernel, Reconciler) {
    let kernel = FakeKernel::new();
    kernel.state().dummy_interface.node_addresses.insert([192, 0, 2, 1].into());
    let mut reconciler = reconciler(&kernel, Draining::new(None));
    tell(&mut reconciler, inputs);
    sync_and_retry(&mut reconciler, Trigger::Start);
    (kernel, reconciler)
}

fn tell(reconciler: &mut Reconciler, inputs: &Inputs) {
    reconciler.apply_change(Change::Services(Event::Replace(inputs.services.clone())));
    reconciler.apply_change(Change::Slices(Event::Replace(inputs.slices.clone())));
}

/// Syncs, and after a failure once more, as the schedule would. That must leave nothing undone.
fn sync_and_retry(reconciler: &mut Reconciler, trigger: Trigger) {
    let failed = |trigger, reconciler: &mut Reconciler| {
        let outcome = reconciler.sync_whole(trigger).outcome;
        outcome.unread.into_iter().chain(outcome.failures.into_iter().map(|(it, why)| format!("{it}: {why}")))
    };
    if failed(trigger, reconciler).next().is_some() {
        assert_eq!(failed(Trigger::Retry, reconciler).collect::<Vec<_>>(), [""; 0]);
    }
}

/// Removes what the kernel reports changes of, as another program would, and reports it.
fn damage_with_notification(kernel: &FakeKernel, reconciler: &mut Reconciler) {
    let mut state = kernel.state();
    if let Some(vip) = state.dummy_interface.bound.pop_first() {
        state.elements.remove(&Element::Vip(vip));
    }
    state.dummy_interface.bound.insert([10, 96, 0, 99].into());
    state.tables.remove(&Family::V6);
    state.elements.retain(|element| element.family() == Family::V4);
    drop(state);
    reconciler.on_link_event(&Changed::everything());
    reconciler.on_table_event();
}

/// Changes IPVS as another program would, which the kernel does not report.
fn damage_without_notification(kernel: &FakeKernel) {
    let mut state = kernel.state();
    _ = state.virtual_servers.pop_first();
    if let Some((server, real_servers)) = state.virtual_servers.values_mut().next() {
        server.scheduler = Scheduler::SH;
        for real in real_servers.values_mut() {
            real.config.weight += 1;
        }
    }
}

/// Plays the change on a kernel that `disturb` changes just before, beside what another program has changed
/// where the sync looks for that. Afterwards the change is taken back: what the daemon believes of the kernel
/// must be right.
fn play(story: &Story, trigger: Trigger, disturb: &dyn Fn(&FakeKernel)) -> Ending {
    let (kernel, mut reconciler) = serving(&story.before);
    story.connect(&kernel);
    match trigger {
        Trigger::KernelEvent => damage_with_notification(&kernel, &mut reconciler),
        Trigger::Period => damage_without_notification(&kernel),
        _ => {}
    }
    kernel.heal();
    disturb(&kernel);
    tell(&mut reconciler, &story.after);
    sync_and_retry(&mut reconciler, trigger);
    let (writes, calls) = (kernel.writes(), kernel.state().calls);
    let after = picture(&kernel.state());

    kernel.heal();
    tell(&mut reconciler, &story.before);
    sync_and_retry(&mut reconciler, Trigger::Change);
    let picture = format!("{after}\n{}", picture(&kernel.state()));
    Ending { picture, writes, calls }
}

fn survives(story: &Story, trigger: Trigger, fault: Fault) -> usize {
    story.survives(fault, |inputs| serving(inputs).0, |disturb| play(story, trigger, disturb))
}

/// Syncs in the smallest parts until no work is left, and returns the number of parts. Checks the guards of
/// every VIP and virtual server after each part.
fn sync_in_parts(kernel: &FakeKernel, reconciler: &mut Reconciler, trigger: Trigger) -> usize {
    (reconciler.portion, reconciler.pace) = (3, Pace::default());
    let mut trigger = trigger;
    for part in 1..1_000 {
        let synced = reconciler.sync(trigger, &Slice::over());
        assert!(synced.outcome.failures.is_empty() && synced.outcome.unread.is_none(), "{synced:?}");
        let state = kernel.state();
        for vip in &state.dummy_interface.bound {
            assert!(state.elements.contains(&Element::Vip(*vip)), "{vip} is bound and not in its set");
        }
        for id in state.virtual_servers.keys() {
            let VirtualServerId::Address(at) = id else { continue };
            let kinds = [Element::ClusterIp, Element::External, Element::ExternalLocal].map(|of| of(*at));
            assert!(kinds.iter().any(|kind| state.elements.contains(kind)), "{at} has no element");
        }
        match synced.busy {
            None => return part,
            Some(busy) => assert!(busy.left > 0),
        }
        trigger = Trigger::Continue;
    }
    panic!("it never ends");
}

/// Serves the one Services and then the others, and returns what is in the kernel.
fn in_parts(story: &Story) -> (String, usize) {
    let (kernel, mut reconciler) = serving(&story.before);
    story.connect(&kernel);
    tell(&mut reconciler, &story.after);
    let parts = sync_in_parts(&kernel, &mut reconciler, Trigger::Change);
    assert!(reconciler.compare().unwrap().is_empty());
    let picture = picture(&kernel.state());
    (picture, parts)
}

fn at_once(story: &Story) -> String {
    let (kernel, mut reconciler) = serving(&story.before);
    story.connect(&kernel);
    tell(&mut reconciler, &story.after);
    sync_and_retry(&mut reconciler, Trigger::Change);
    picture(&kernel.state())
}

/// Syncs the change after so many virtual servers were compared, and goes on comparing. Another program has changed the
/// kernel before. Returns the state of the kernel.
fn compared_in_two_parts(story: &Story, first: usize) -> String {
    let (kernel, mut reconciler) = serving(&story.before);
    story.connect(&kernel);
    damage_without_notification(&kernel);
    let mut left = first;
    let is_compared = first > 0
        && reconciler.compare_ahead(|_| {
            left -= 1;
            left == 0
        });
    tell(&mut reconciler, &story.after);
    if !is_compared {
        sync_and_retry(&mut reconciler, Trigger::Change);
        assert!(reconciler.compare_ahead(|_| false));
    }
    sync_and_retry(&mut reconciler, Trigger::Period);
    assert!(reconciler.compare().unwrap().is_empty(), "after {first}");
    picture(&kernel.state())
}

#[test]
fn a_change_in_parts_ends_as_one_at_once() {
    let (picture, parts) = in_parts(&Story::fixed());
    assert_eq!(picture, at_once(&Story::fixed()));
    assert!(parts > 3, "only {parts} parts");
}

#[test]
fn retry_heals_any_failed_call_of_a_partial_sync_without_a_live_removal() {
    for (trigger, fault) in TRIGGERS.into_iter().flat_map(|it| faults().map(move |fault| (it, fault))) {
        let calls = survives(&Story::fixed(), trigger, fault);
        assert!(calls > 20, "{trigger:?}, {fault:?}: only {calls} calls were disturbed");
    }
}

proptest! {
    // Each story is played as often as there are calls.
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_change_in_parts_ends_as_one_at_once(story in any_story()) {
        prop_assert_eq!(in_parts(&story).0, at_once(&story));
    }

    #[test]
    fn a_comparison_ends_as_one_without_a_change_in_between(story in any_story()) {
        let at_once = compared_in_two_parts(&story, usize::MAX);
        for first in 0..10 {
            prop_assert_eq!(&compared_in_two_parts(&story, first), &at_once, "after {}", first);
        }
    }

    #[test]
    fn so_it_is_whatever_is_wanted_before_and_after(
        story in any_story(), trigger in select(&TRIGGERS[..]), fault in select(faults().collect::<Vec<_>>())
    ) {
        survives(&story, trigger, fault);
    }
}
