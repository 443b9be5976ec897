//! The results of an hour of churn.

use std::fmt;

use serde::Serialize;

use super::{
    churn::LATEST,
    ejecting::Ejections,
    samples::{Sample, Trend, Trends},
    witness::Turn,
};
use crate::{stage::traffic::Counts, statistics::Percentiles};

/// All of it; the text is a summary.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) seed: u64,
    pub(super) kernel: String,
    pub(super) seconds: f64,
    /// Services that changed, and how many changes there were.
    pub(super) services: usize,
    pub(super) changes: usize,
    pub(super) trends: Option<Trends>,
    pub(super) connections: Vec<Account>,
    pub(super) ejections: Ejections,
    /// Of the Service without endpoints at times.
    pub(super) turns: Vec<Turn>,
    /// Lines of the kernel's state at the end, and the differences from a fresh start with the same content.
    pub(super) state: usize,
    pub(super) differences: Vec<String>,
    pub(super) samples: Vec<Sample>,
}

/// The results for connections of one kind.
#[derive(Debug, Serialize)]
pub(super) struct Account {
    pub(super) what: &'static str,
    pub(super) counts: Counts,
    /// Why the first ones were lost.
    pub(super) causes: Vec<String>,
}

impl Report {
    /// What is wrong; empty if all is well.
    pub(super) fn complaints(&self) -> Vec<String> {
        let mut complaints = self
            .trends
            .as_ref()
            .map_or_else(|| vec!["there were too few samples for a slope".to_owned()], Trends::complaints);
        for Account { what, counts, causes } in &self.connections {
            if counts.lost() > 0 {
                complaints.push(format!("{what}: {} lost: {}", counts.lost(), causes.join("; ")));
            }
            if !counts.is_complete() {
                complaints.push(format!("{what}: not accounted for: {counts:?}"));
            }
            if counts.answered == 0 {
                complaints.push(format!("{what}: none was answered"));
            }
        }
        complaints.extend(self.ejections.complaints());
        let late = |turn: &&Turn| turn.until_programmed().is_none_or(|late| late > LATEST.as_secs_f64());
        let late: Vec<_> = self.turns.iter().filter(late).collect();
        if !late.is_empty() {
            complaints
                .push(format!("IPVS had endpoints or their end later than {LATEST:?}, or never: {late:?}"));
        }
        if !self.differences.is_empty() {
            complaints.push(format!("a fresh start produces a different state: {:#?}", self.differences));
        }
        complaints
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, kernel, seconds, services, changes, state, .. } = self;
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let rate = *changes as f64 / seconds;
        writeln!(f, "seed {seed}, Linux {kernel}, {seconds:.0} s")?;
        writeln!(f, "{services} Services, {changes} changes, {rate:.1} a second")?;
        if let Some(Trends { memory, descriptors, threads, .. }) = &self.trends {
            let kinds = [("memory, KiB", memory), ("descriptors", descriptors), ("threads", threads)];
            for (what, Trend { least, most, slope, .. }) in kinds {
                writeln!(f, "{what}: {least} to {most}, {slope:+.1} an hour")?;
            }
        }
        for Account { what, counts, .. } in &self.connections {
            let (Counts { opened, answered, refused, .. }, lost) = (counts, counts.lost());
            writeln!(
                f,
                "{what}: {opened} opened = {answered} answered + {refused} refused for want of an endpoint + {lost} lost"
            )?;
        }
        let turned = |how_long: fn(Turn) -> Option<f64>| {
            let all = self.turns.iter().copied().filter_map(how_long).collect();
            let Percentiles { p50, longest, .. } = Percentiles::from_times(all).unwrap_or_default();
            format!("{p50:.2} s (median), {longest:.2} s (most)")
        };
        writeln!(f, "its endpoints went or came {} times:", self.turns.len())?;
        writeln!(f, "  the API server's watch delivered it in {}", turned(Turn::until_delivered))?;
        writeln!(f, "  IPVS had it after another {}", turned(Turn::until_programmed))?;
        write!(f, "{}", self.ejections)?;
        writeln!(
            f,
            "{state} lines of kernel state, {} other than after a fresh start",
            self.differences.len()
        )?;
        match self.complaints().as_slice() {
            [] => writeln!(f, "soak: ok"),
            complaints => complaints.iter().try_for_each(|complaint| writeln!(f, "FAILED: {complaint}")),
        }
    }
}
