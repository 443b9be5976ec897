//! What is done when, in seconds since the start.

use std::time::Instant;

/// Prints a line for each step.
pub(crate) struct Progress(Instant);

impl Progress {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn done(&self, step: &str) {
        println!("{:6.1} s  {step}", self.0.elapsed().as_secs_f32());
    }
}
