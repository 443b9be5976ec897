//! Signals that end the program while it has the terminal, which is put back first.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use ratatui::crossterm::event::{self, Event};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM},
    flag,
    low_level::emulate_default_handler,
};

/// How often it is looked whether a signal has come: crossterm goes on waiting for keys when one has.
const LOOK: Duration = Duration::from_millis(100);

/// Why the waiting has ended.
pub(super) enum Waited {
    /// A key, most likely.
    Event(Event),
    /// A signal asks for the end.
    Interrupted,
    /// Nothing; it is time.
    Over,
}

/// The signal that has come, or 0.
pub(super) struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// From now on they do not end the program by themselves.
    pub(super) fn catch() -> io::Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            flag::register_usize(number, Arc::clone(&signal), number.unsigned_abs() as usize)?;
        }
        Ok(Self(signal))
    }

    /// Waits for a key or a signal until then.
    pub(super) fn wait(&self, until: Instant) -> io::Result<Waited> {
        loop {
            if self.signal().is_some() {
                return Ok(Waited::Interrupted);
            }
            let left = until.saturating_duration_since(Instant::now());
            if event::poll(left.min(LOOK))? {
                return event::read().map(Waited::Event);
            }
            if left.is_zero() {
                return Ok(Waited::Over);
            }
        }
    }

    /// Ends the program by the signal, if one has come, as it would have ended without being caught.
    pub(super) fn obey(&self) -> anyhow::Result<()> {
        Ok(self.signal().map_or(Ok(()), emulate_default_handler)?)
    }

    fn signal(&self) -> Option<i32> {
        i32::try_from(self.0.load(Ordering::Relaxed)).ok().filter(|signal| *signal != 0)
    }
}
