//! Frames on the whole terminal, until a key or a signal ends it.

mod draw;
mod view;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyEventKind},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM},
    flag,
    low_level::emulate_default_handler,
};

use super::{Column, Sampler};
use view::{Next, View};

/// Shows frames until a key or a signal ends it. The terminal is restored in every case.
pub(super) fn show(sampler: &mut Sampler, delay: Duration, sort: Column) -> anyhow::Result<()> {
    let interrupt = Interrupt::catch()?;
    let shown = ratatui::try_init()
        .map_err(Into::into)
        .and_then(|terminal| show_on(terminal, sampler, &mut View::new(sort, delay), &interrupt));
    let restored = ratatui::try_restore();
    shown?;
    restored?;
    interrupt.obey()
}

fn show_on(
    mut terminal: DefaultTerminal,
    sampler: &mut Sampler,
    view: &mut View,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let mut next_sample = Instant::now();
    loop {
        if Instant::now() >= next_sample {
            if let Some(frame) = sampler.frame()? {
                view.see(frame, sampler.names.doubt(Instant::now()));
            }
            next_sample = Instant::now() + view.delay();
        }
        terminal.draw(|area| draw::draw(view, area))?;
        match interrupt.wait(next_sample)? {
            Waited::Interrupted => return Ok(()),
            Waited::Event(Event::Key(key))
                if key.kind == KeyEventKind::Press && view.press(key) == Next::Quit =>
            {
                return Ok(());
            }
            Waited::Event(_) | Waited::Over => {}
        }
    }
}

/// How often signals are checked: crossterm goes on waiting for keys after one.
const SIGNAL_CHECK: Duration = Duration::from_millis(100);

/// Why a wait ended.
enum Waited {
    /// A key, most likely.
    Event(Event),
    /// A signal asks for the end.
    Interrupted,
    /// The time is over.
    Over,
}

/// The signal that was received, or 0.
struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// Catches the signals: from now on they do not end the program by themselves.
    fn catch() -> io::Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            flag::register_usize(number, Arc::clone(&signal), number.unsigned_abs() as usize)?;
        }
        Ok(Self(signal))
    }

    /// Waits for a key or a signal until then.
    fn wait(&self, until: Instant) -> io::Result<Waited> {
        loop {
            if self.signal().is_some() {
                return Ok(Waited::Interrupted);
            }
            let left = until.saturating_duration_since(Instant::now());
            if event::poll(left.min(SIGNAL_CHECK))? {
                return event::read().map(Waited::Event);
            }
            if left.is_zero() {
                return Ok(Waited::Over);
            }
        }
    }

    /// Ends the program by the signal that was received, if any, as if it had not been caught.
    fn obey(&self) -> anyhow::Result<()> {
        Ok(self.signal().map_or(Ok(()), emulate_default_handler)?)
    }

    fn signal(&self) -> Option<i32> {
        i32::try_from(self.0.load(Ordering::Relaxed)).ok().filter(|signal| *signal != 0)
    }
}
