//! Frames on the whole terminal.

mod columns;
mod draw;
mod interrupt;
mod view;

use std::time::{Duration, Instant};

use ratatui::{
    DefaultTerminal,
    crossterm::event::{Event, KeyEventKind},
};

use super::{Column, Look};
use interrupt::{Interrupt, Waited};
use view::{Next, View};

/// Shows frames until a key or a signal ends it. The terminal is as before then, whatever happens.
pub(super) fn show(look: &mut Look, delay: Duration, sort: Column) -> anyhow::Result<()> {
    let interrupt = Interrupt::catch()?;
    let shown = ratatui::try_init()
        .map_err(Into::into)
        .and_then(|terminal| show_on(terminal, look, &mut View::new(sort, delay), &interrupt));
    let restored = ratatui::try_restore();
    shown?;
    restored?;
    interrupt.obey()
}

fn show_on(
    mut terminal: DefaultTerminal,
    look: &mut Look,
    view: &mut View,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let mut next_look = Instant::now();
    loop {
        if Instant::now() >= next_look {
            if let Some(frame) = look.take()? {
                view.see(frame, look.names.doubt(Instant::now()));
            }
            next_look = Instant::now() + view.delay();
        }
        terminal.draw(|area| draw::draw(view, area))?;
        match interrupt.wait(next_look)? {
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
