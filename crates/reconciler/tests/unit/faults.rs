//! Whatever call to the kernel fails, and in whatever way: the next sync makes everything as desired.
//! Nothing that serves before and after is taken away on the way, not even for a moment.

use crate::common::{AT_ONCE, LONG, Running};
use crate::story::{Ending, Inputs, Story, after, any_story, faults, picture};
use netlink::Errno;
use proptest::{prelude::*, sample::select};
use reconciler::Timing;
use service::{Change, Event};
use testkit::{FakeKernel, fake_kernel::Fault};

/// A reconciler that syncs when it is asked to, and not between the two lists: of Services without their
/// slices less is wanted.
fn when_asked(kernel: &FakeKernel) -> Running {
    Running::timed(kernel, Timing { min_sync_period: LONG, ..AT_ONCE })
}

/// A kernel that serves these Services, and the reconciler that serves them.
fn serving(inputs: &Inputs) -> (FakeKernel, Running) {
    let kernel = FakeKernel::new();
    kernel.state().dummy_interface.node_addresses.insert("192.0.2.1".parse().unwrap());
    let running = when_asked(&kernel);
    running.lists(inputs.services.clone(), inputs.slices.clone());
    (kernel, running)
}

/// Plays the change on a kernel that `disturb` changes just before; with `restarts`, a new daemon gets the
/// change. The sync after the one that was disturbed must leave nothing undone.
fn play(story: &Story, restarts: bool, disturb: &dyn Fn(&FakeKernel)) -> Ending {
    let (kernel, running) = serving(&story.before);
    story.connect(&kernel);
    kernel.heal();
    disturb(&kernel);
    let running = if restarts {
        drop(running);
        when_asked(&kernel)
    } else {
        running
    };
    running.tell(Change::Services(Event::Replace(story.after.services.clone())));
    running.tell(Change::Slices(Event::Replace(story.after.slices.clone())));
    let mut report = running.handle.resync().unwrap();
    if report.failed > 0 {
        report = running.handle.resync().unwrap();
    }
    let writes = kernel.writes();
    assert_eq!(report.failed, 0, "{report:?}\n{writes}");
    let state = kernel.state();
    Ending { picture: picture(&state), writes, calls: state.calls }
}

fn serve(inputs: &Inputs) -> FakeKernel {
    serving(inputs).0
}

fn survives(story: &Story, restarts: bool, fault: Fault) -> usize {
    story.survives(fault, serve, |disturb| play(story, restarts, disturb))
}

#[test]
fn any_failed_call_is_healed_by_the_next_sync_without_a_live_removal() {
    let live = [
        "delete real server TCP 10.96.0.10:80 -> 10.244.0.2:8080",
        "delete virtual server UDP 10.96.0.53:80",
    ];
    let story = Story::fixed();
    let forbidden = story.forbidden(serve);
    assert!(live.iter().all(|live| forbidden.contains(*live)));
    for (fault, restarts) in faults().flat_map(|fault| [(fault, false), (fault, true)]) {
        let calls = survives(&story, restarts, fault);
        assert!(calls > 20, "{fault:?}: only {calls} calls were disturbed");
    }
}

proptest! {
    // Each story is played as often as there are calls.
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn so_it_is_whatever_is_wanted_before_and_after(
        story in any_story(), restarts in any::<bool>(), fault in select(faults().collect::<Vec<_>>())
    ) {
        survives(&story, restarts, fault);
    }
}

#[test]
fn a_kernel_that_was_cleared_behind_our_back_is_restored_by_a_forced_sync() {
    let kernel = FakeKernel::new();
    let running = Running::on(&kernel);
    let Inputs { services, slices } = after();
    running.lists(services, slices);
    let expected = picture(&kernel.state());
    {
        let mut state = kernel.state();
        state.virtual_servers.clear();
        state.dummy_interface.bound.clear();
        state.dummy_interface.device = false;
        state.tables.clear();
        state.elements.clear();
    }
    let report = running.handle.resync().unwrap();
    assert_eq!((report.failed, picture(&kernel.state())), (0, expected));
}

#[test]
fn a_full_read_that_fails_is_made_good_by_the_retry() {
    let kernel = FakeKernel::new();
    let running = Running::on(&kernel);
    let Inputs { services, slices } = after();
    running.lists(services, slices);
    let expected = picture(&kernel.state());
    kernel.state().virtual_servers.clear();
    // The text is read first, and can be done without. Then come the virtual servers.
    kernel.fail_call(1, Errno::ENOMEM);
    let report = running.handle.resync().unwrap();
    assert_eq!((report.failed, report.full), (1, false), "{report:?}");
    running.settled();
    assert_eq!(picture(&kernel.state()), expected);
}
