//! Frames on the whole terminal.

mod draw;
mod view;

use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEventKind};

use super::{Look, column::Column};
use view::{Next, View};

/// Shows so many frames, or until it is told to quit. The terminal is as before then, whatever happens.
pub(super) fn show(look: &mut Look, delay: Duration, looks: usize, sort: Column) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let shown = (|| -> anyhow::Result<()> {
        let mut view = View::new(sort, delay);
        let (mut next_look, mut left) = (Instant::now(), looks);
        loop {
            if Instant::now() >= next_look {
                if let Some(frame) = look.take()? {
                    left = left.saturating_sub(1);
                    view.see(frame, look.names.missing());
                }
                next_look = Instant::now() + delay;
            }
            terminal.draw(|area| draw::draw(&mut view, area))?;
            if left == 0 {
                return Ok(());
            }
            if event::poll(next_look.saturating_duration_since(Instant::now()))?
                && let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
                && view.press(key) == Next::Quit
            {
                return Ok(());
            }
        }
    })();
    ratatui::try_restore()?;
    shown
}
