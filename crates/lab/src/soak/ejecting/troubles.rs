//! What happens to pods.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use testkit::daemon::eventually_within;

use super::{AFTERMATH, BACK_WITHIN, Ejecting, HEALTHY, RARE, SILENT, STEADY, slice};
use crate::stage::objects::{Condition, Kind, Write};

/// What a slow pod takes for an answer.
const SLOW: Duration = Duration::from_secs(2);
/// For how long a pod's program is stopped, or its network is gone. Starting the program that ends it takes the rest of a
/// second.
const STOPPED: Duration = Duration::from_secs(1);
const CUT_OFF: Duration = Duration::from_millis(700);
/// From this length on a pod without network is silent: clients have repeated their SYN.
const REALLY_SILENT: Duration = Duration::from_secs(1);
/// How soon a silent endpoint must be ejected where clients ask it again and again.
const EJECTED_WITHIN: Duration = Duration::from_secs(20);
/// Threads that take the processor.
const BURNERS: usize = 2;

/// What a healthy pod has to bear, and how that begins and ends.
type Harmless = (&'static str, fn(&mut Troubles<'_, '_>, u8) -> Result<()>);

/// All of them; the last one is the node's.
const HARMLESS: [Harmless; 5] = [
    ("slow (2 s)", |troubles, pod| troubles.slow(pod)),
    ("program stopped for 1 s", |troubles, pod| troubles.stop(pod)),
    ("network gone for 0.7 s", |troubles, pod| troubles.cut_off(pod)),
    ("rolled", |troubles, pod| troubles.roll(pod)),
    ("processor busy", |troubles, _| {
        troubles.burn();
        Ok(())
    }),
];

/// Troubles of pods, one after the other.
pub(in crate::soak) struct Troubles<'a, 'lab> {
    ejecting: &'a Ejecting<'lab>,
    random: fastrand::Rng,
}

impl<'a, 'lab> Troubles<'a, 'lab> {
    pub(in crate::soak) fn new(ejecting: &'a Ejecting<'lab>, seed: u64) -> Self {
        Self { ejecting, random: fastrand::Rng::with_seed(seed) }
    }

    /// Those that healthy pods must bear, until `calm` is set.
    pub(in crate::soak) fn harmless(mut self, calm: &AtomicBool) -> Result<()> {
        while !calm.load(Relaxed) {
            let pod = self.random.u8(HEALTHY);
            let Some((what, begin)) = self.random.choice(HARMLESS) else { continue };
            let begun = Instant::now();
            begin(&mut self, pod)?;
            let lasted = begun.elapsed().as_secs_f64();
            let mut seen = self.ejecting.seen();
            seen.last
                .insert(pod, format!("{what}, for {lasted:.1} s until {:.1} s", self.ejecting.elapsed()));
            let (times, longest) = seen.account.troubles.entry(what).or_default();
            (*times, *longest) = (*times + 1, longest.max(lasted));
            drop(seen);
            thread::sleep(self.seconds(1.0, 4.0));
        }
        Ok(())
    }

    fn seconds(&mut self, least: f64, most: f64) -> Duration {
        Duration::from_secs_f64(least + self.random.f64() * (most - least))
    }

    fn stop(&mut self, pod: u8) -> Result<()> {
        self.ejecting.pod(pod)?.stop_servers_for(STOPPED);
        Ok(())
    }

    fn slow(&mut self, pod: u8) -> Result<()> {
        self.ejecting.pod(pod)?.answer_after(SLOW);
        thread::sleep(self.seconds(4.0, 12.0));
        self.ejecting.pod(pod)?.answer_after(Duration::ZERO);
        Ok(())
    }

    fn cut_off(&mut self, pod: u8) -> Result<()> {
        let begun = Instant::now();
        self.ejecting.pod(pod)?.drops_everything()?;
        thread::sleep(CUT_OFF);
        self.ejecting.pod(pod)?.filters_nothing()?;
        // On a busy machine it takes long to start the program that ends it.
        if begun.elapsed() > REALLY_SILENT {
            self.ejecting.seen().excused.insert(pod, Instant::now() + AFTERMATH);
        }
        Ok(())
    }

    /// It terminates, goes, and another one comes in its place.
    fn roll(&mut self, pod: u8) -> Result<()> {
        for condition in [Some(Condition::Terminating), None, Some(Condition::Ready)] {
            for service in [STEADY, RARE] {
                let slice =
                    slice(service, |number| if number == pod { condition } else { Some(Condition::Ready) });
                self.ejecting.stage.write([vec![Write::Replace(Kind::Slice, slice)]].into_iter())?;
            }
            thread::sleep(self.seconds(1.0, 3.0));
        }
        Ok(())
    }

    fn burn(&mut self) {
        let end = Instant::now() + self.seconds(3.0, 8.0);
        thread::scope(|scope| {
            for _ in 0..BURNERS {
                scope.spawn(|| while Instant::now() < end {});
            }
        });
    }

    /// Pods that fall silent, until `calm` is set.
    pub(in crate::soak) fn silences(mut self, calm: &AtomicBool) -> Result<()> {
        while !calm.load(Relaxed) {
            let pod = self.random.u8(SILENT);
            let longest = EJECTED_WITHIN + BACK_WITHIN + AFTERMATH;
            self.ejecting.seen().excused.insert(pod, Instant::now() + longest);
            let begun = Instant::now();
            self.ejecting.pod(pod)?.drops_everything()?;
            let is_out = |wanted: bool| -> Result<()> {
                let is_out = self.ejecting.is_out(STEADY, pod);
                anyhow::ensure!(is_out == wanted, "ejected or on trial: {is_out}");
                Ok(())
            };
            let ejected = eventually_within(EJECTED_WITHIN, "it is ejected", || is_out(true)).ok();
            let ejected = ejected.map(|()| begun.elapsed().as_secs_f64());
            // Not so long that open connections break.
            thread::sleep(Duration::from_secs_f64(2.0 + 8.0 * self.random.f64()));
            self.ejecting.pod(pod)?.filters_nothing()?;
            let ended = Instant::now();
            let back = eventually_within(BACK_WITHIN, "it is back", || is_out(false)).ok();
            let back = back.map(|()| ended.elapsed().as_secs_f64());
            let mut seen = self.ejecting.seen();
            seen.account.ejected_after.push(ejected);
            seen.account.back_after.push(back);
            seen.excused.insert(pod, Instant::now() + AFTERMATH);
            drop(seen);
            thread::sleep(Duration::from_secs(self.random.u64(3..15)));
        }
        Ok(())
    }
}
