//! When the node is looked at.

use std::time::Duration;

use reconciler::Stopped;
use tokio::{select, sync::watch, task::spawn_blocking, time::sleep};

/// How long is waited after a ring: a firewall is mostly loaded in several steps.
const PAUSE: Duration = Duration::from_secs(2);

/// Looks at the node now and then.
#[derive(Debug)]
pub struct Rounds {
    period: Duration,
    rung: watch::Receiver<()>,
}

/// Asks for another look soon. Clones ring the same bell.
#[derive(Clone, Debug)]
pub struct Doorbell(watch::Sender<()>);

impl Doorbell {
    /// Somebody has changed what is looked at. Never blocks; many rings are one look.
    pub fn ring(&self) {
        self.0.send_replace(());
    }
}

impl Rounds {
    /// A look at once, then one after each `period` and soon after each ring.
    pub fn new(period: Duration) -> (Self, Doorbell) {
        let (bell, rung) = watch::channel(());
        (Self { period, rung }, Doorbell(bell))
    }

    /// Looks until it is no use any more: the writer thread has stopped. `look` may block: it is not called on
    /// a thread of the runtime's own.
    pub async fn run(mut self, mut look: impl FnMut() -> Result<(), Stopped> + Send + 'static) {
        loop {
            self.rung.mark_unchanged();
            look = match spawn_blocking(move || look().map(|()| look)).await {
                Ok(Ok(look)) => look,
                Ok(Err(Stopped)) | Err(_) => return,
            };
            select! {
                () = sleep(self.period) => {}
                Ok(()) = self.rung.changed() => sleep(PAUSE).await,
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

    /// Rounds that count their looks.
    fn counted() -> (Doorbell, Arc<AtomicUsize>) {
        let (rounds, bell) = Rounds::new(PERIOD);
        let looks = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&looks);
        tokio::spawn(rounds.run(move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }));
        (bell, looks)
    }

    async fn after(time: Duration, looks: &AtomicUsize) -> usize {
        sleep(time).await;
        looks.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn the_node_is_looked_at_at_once_and_then_every_period() {
        let (_bell, looks) = counted();
        assert_eq!(after(MOMENT, &looks).await, 1);
        assert_eq!(after(PERIOD / 2, &looks).await, 1);
        assert_eq!(after(PERIOD / 2, &looks).await, 2);
        assert_eq!(after(PERIOD * 3, &looks).await, 5);
    }

    #[tokio::test(start_paused = true)]
    async fn many_rings_are_one_look_soon() {
        let (bell, looks) = counted();
        sleep(MOMENT).await;
        for _ in 0..10 {
            bell.ring();
            sleep(PAUSE / 20).await;
        }
        assert_eq!(after(PAUSE / 4, &looks).await, 1, "not before the pause is over");
        assert_eq!(after(PAUSE / 2, &looks).await, 2);
        assert_eq!(after(PERIOD / 2, &looks).await, 2, "none of the rings is left");
    }

    #[tokio::test(start_paused = true)]
    async fn a_bell_that_is_gone_does_not_end_the_rounds() {
        let (bell, looks) = counted();
        drop(bell);
        assert_eq!(after(PERIOD + MOMENT, &looks).await, 2);
    }

    #[tokio::test]
    async fn the_rounds_end_with_the_writer_thread() {
        let (rounds, _bell) = Rounds::new(PERIOD);
        rounds.run(|| Err(Stopped)).await;
    }
}
