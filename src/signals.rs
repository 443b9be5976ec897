//! The signals that end the daemon, and a cleanup that waits.

use std::{
    io,
    process::exit,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use anyhow::Context;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};
use tokio::{
    select,
    signal::unix::{Signal, SignalKind, signal},
    time::sleep,
};
use tracing::error;

/// SIGTERM and SIGINT. Created once, before anything else, so that no signal is lost.
pub(crate) struct TerminationSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl TerminationSignals {
    /// From now on the first signal does not kill the process. Another one ends it at once, whatever it waits for, with
    /// the exit code that a shell gives to a program killed by it. Must be called within a tokio runtime.
    pub(crate) fn new() -> anyhow::Result<Self> {
        second_one_exits().context("cannot wait for a second signal")?;
        let terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
        Ok(Self { terminate, interrupt })
    }

    /// Waits for a signal.
    pub(crate) async fn received(&mut self) {
        select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Ends the process so long after the first signal, if it is still there: it waits for something that hangs.
    pub(crate) async fn enforce(mut self, deadline: Duration) {
        self.received().await;
        sleep(deadline).await;
        error!("still not ended {} s after the signal: something hangs; exiting", deadline.as_secs());
        exit(1);
    }
}

fn second_one_exits() -> io::Result<()> {
    let one_has_come = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // The actions are taken in this order: the first signal finds that none has come.
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&one_has_come))?;
        flag::register(signal, Arc::clone(&one_has_come))?;
    }
    Ok(())
}
