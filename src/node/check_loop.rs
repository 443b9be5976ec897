//! When the checks run.

use std::time::Duration;

use reconciler::Stopped;
use tokio::{select, sync::watch, task::spawn_blocking, time::sleep};

/// The pause after a request: a firewall is mostly loaded in several steps.
const PAUSE: Duration = Duration::from_secs(2);

/// Runs checks periodically, and soon after each [`Recheck`].
#[derive(Debug)]
pub(crate) struct CheckLoop {
    period: Duration,
    requested: watch::Receiver<()>,
}

/// Requests another check soon. Clones request the same.
#[derive(Clone, Debug)]
pub(crate) struct Recheck(watch::Sender<()>);

impl Recheck {
    /// Requests a check, because something changed what it reads. Never blocks; many requests cause one
    /// check.
    pub(crate) fn request(&self) {
        self.0.send_replace(());
    }
}

impl CheckLoop {
    /// Checks at once, then after each `period` and soon after each request.
    pub(crate) fn new(period: Duration) -> (Self, Recheck) {
        let (recheck, requested) = watch::channel(());
        (Self { period, requested }, Recheck(recheck))
    }

    /// Runs `check` until the writer thread has stopped. `check` may block: it runs on a thread for blocking
    /// work.
    pub(crate) async fn run(mut self, mut check: impl FnMut() -> Result<(), Stopped> + Send + 'static) {
        loop {
            self.requested.mark_unchanged();
            check = match spawn_blocking(move || check().map(|()| check)).await {
                Ok(Ok(check)) => check,
                Ok(Err(Stopped)) | Err(_) => return,
            };
            select! {
                () = sleep(self.period) => {}
                Ok(()) = self.requested.changed() => sleep(PAUSE).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    const PERIOD: Duration = Duration::from_secs(30);
    const MOMENT: Duration = Duration::from_millis(1);

    /// A loop that counts its checks.
    fn counted() -> (Recheck, Arc<AtomicUsize>) {
        let (check_loop, recheck) = CheckLoop::new(PERIOD);
        let checks = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&checks);
        tokio::spawn(check_loop.run(move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }));
        (recheck, checks)
    }

    async fn after(time: Duration, checks: &AtomicUsize) -> usize {
        sleep(time).await;
        checks.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn the_node_is_checked_at_once_and_then_every_period() {
        let (_recheck, checks) = counted();
        assert_eq!(after(MOMENT, &checks).await, 1);
        assert_eq!(after(PERIOD / 2, &checks).await, 1);
        assert_eq!(after(PERIOD / 2, &checks).await, 2);
        assert_eq!(after(PERIOD * 3, &checks).await, 5);
    }

    #[tokio::test(start_paused = true)]
    async fn many_requests_are_one_check_soon() {
        let (recheck, checks) = counted();
        sleep(MOMENT).await;
        for _ in 0..10 {
            recheck.request();
            sleep(PAUSE / 20).await;
        }
        assert_eq!(after(PAUSE / 4, &checks).await, 1, "not before the pause is over");
        assert_eq!(after(PAUSE / 2, &checks).await, 2);
        assert_eq!(after(PERIOD / 2, &checks).await, 2, "no request is left");
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_recheck_does_not_end_the_loop() {
        let (recheck, checks) = counted();
        drop(recheck);
        assert_eq!(after(PERIOD + MOMENT, &checks).await, 2);
    }

    #[tokio::test]
    async fn the_loop_ends_with_the_writer_thread() {
        let (check_loop, _recheck) = CheckLoop::new(PERIOD);
        check_loop.run(|| Err(Stopped)).await;
    }
}
