//! An endpoint of a Service that ejects fails, or is only slow.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use testkit::{daemon::eventually_within, lab::Host};

use super::{Fault, costly, fault};
use crate::{chaos::scene::Scene, stage::objects::POD_PORT};

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "an endpoint goes silent (drops everything)",
        Some("gets no new connections: it does not answer"),
        silent,
    ),
    // A connection that is refused is lost to a client that does not try again.
    costly("an endpoint refuses (RST)", Some("gets no new connections: it refuses connections"), |scene| {
        scene.pick_endpoint();
        let refuse = |pod: &Host| pod.refuses(POD_PORT);
        out_of_service(scene, refuse)
    }),
    fault("an endpoint is slow (2 s)", None, slow),
];

/// How soon a failing endpoint must get no new connections: seconds, and more where the guest has little of a processor.
/// Open connections last longer.
const EJECTED_WITHIN: Duration = Duration::from_secs(25);
/// What a slow endpoint takes for an answer.
const SLOW: Duration = Duration::from_secs(2);
/// How many clients connect after an ejection, and how long each may take: none may have to repeat its SYN.
const CLIENTS: usize = 20;
const AT_ONCE: Duration = Duration::from_millis(900);

/// Clients wait for their answer, and go to other endpoints.
fn silent(scene: &mut Scene<'_>) -> Result<()> {
    scene.pick_endpoint();
    out_of_service(scene, Host::drops_everything)
}

/// Lets an endpoint fail until it is ejected, connects, and lets it answer again.
fn out_of_service(scene: &mut Scene<'_>, fail: impl Fn(&Host) -> Result<()>) -> Result<()> {
    fail(scene.endpoint()?)?;
    let ejected = eventually_within(EJECTED_WITHIN, "the endpoint is ejected", || {
        let weight = scene.weight_of_endpoint()?;
        ensure!(weight == 0, "its weight is {weight}");
        Ok(())
    });
    let served = ejected.and_then(|()| (0..CLIENTS).try_for_each(|_| served_at_once(scene)));
    scene.endpoint()?.filters_nothing()?;
    served
}

fn served_at_once(scene: &Scene<'_>) -> Result<()> {
    let begun = Instant::now();
    scene.connect()?;
    ensure!(begun.elapsed() < AT_ONCE, "a client waited {:?} after the ejection", begun.elapsed());
    Ok(())
}

/// An endpoint that takes its time answers in the end, and keeps its weight.
fn slow(scene: &mut Scene<'_>) -> Result<()> {
    scene.pick_endpoint();
    let (begun, length) = (Instant::now(), scene.seconds(6.0, 12.0));
    let weight = scene.weight_of_endpoint()?;
    scene.endpoint()?.answer_after(SLOW);
    let kept = loop {
        let now = scene.weight_of_endpoint()?;
        if now != weight || begun.elapsed() > length {
            break now;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    scene.endpoint()?.answer_after(Duration::ZERO);
    ensure!(kept == weight, "a slow endpoint has the weight {kept}");
    Ok(())
}
