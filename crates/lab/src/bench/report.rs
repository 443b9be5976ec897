//! What is written down: target/bench/report.json, and the tables in docs/evidence/performance/tables.txt.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use guest::{Kernel, workspace};
use serde::Serialize;

use super::{figures::Measured, tables};

/// The tables stand between these lines.
const BEGIN: &str = "<!-- tables of cargo xtask bench: begin -->\n";
const END: &str = "<!-- tables of cargo xtask bench: end -->\n";

/// A whole run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) measured: Vec<Measured>,
}

/// Where it was made.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    pub(super) processor: String,
    pub(super) processors: usize,
    pub(super) guest: &'static str,
    /// The load average of a minute, of the host: before, and after each measurement.
    pub(super) loads: Vec<f64>,
}

impl Machine {
    pub(super) fn now(kernel: &Kernel) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
        let processor =
            model.map_or("unknown", |model| model.trim_start_matches([' ', '\t', ':'])).to_owned();
        let processors = std::thread::available_parallelism().map_or(1, Into::into);
        let guest = match kernel {
            Kernel::Host => "none: the machine's own kernel",
            Kernel::Qemu(_) => "QEMU",
            Kernel::Uml(_) => "User Mode Linux, one processor",
        };
        let mut machine = Self { processor, processors, guest, loads: Vec::new() };
        machine.note_load();
        machine
    }

    pub(super) fn note_load(&mut self) {
        let loadavg = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        self.loads.extend(loadavg.split(' ').next().and_then(|load| load.parse::<f64>().ok()));
    }

    /// The least and the greatest load.
    pub(super) fn load_range(&self) -> (f64, f64) {
        let least = self.loads.iter().copied().fold(f64::INFINITY, f64::min);
        (least, self.loads.iter().copied().fold(0.0, f64::max))
    }
}

impl Report {
    /// Whether every measurement of kube-ipvs and of the baseline worked. That kube-proxy takes too long is a
    /// result.
    pub(super) fn is_ours_whole(&self) -> bool {
        self.measured
            .iter()
            .all(|measured| measured.outcome.is_ok() || measured.case.subject.is_of_kube_proxy())
    }

    /// Writes target/bench/report.json, and the tables into a document, if one is named.
    pub(super) fn write(&self, document: Option<&str>) -> Result<()> {
        let directory = workspace::root().join("target/bench");
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        let path = directory.join("report.json");
        fs::write(&path, serde_json::to_string_pretty(self)? + "\n")
            .with_context(|| path.display().to_string())?;
        if let Some(document) = document {
            self.put_tables_into(&workspace::root().join(document))?;
        }
        Ok(())
    }

    fn put_tables_into(&self, path: &Path) -> Result<()> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let text = replaced(&text, &tables::all(self)).with_context(|| path.display().to_string())?;
        fs::write(path, text).with_context(|| path.display().to_string())
    }
}

/// The text with other tables.
fn replaced(text: &str, tables: &str) -> Result<String> {
    let (before, rest) = text.split_once(BEGIN).context("no place for tables begins here")?;
    let (_, after) = rest.split_once(END).context("the place for tables does not end")?;
    Ok(format!("{before}{BEGIN}\n{tables}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_tables_take_the_place_of_the_old_and_what_people_wrote_stays() {
        let text = format!("before\n{BEGIN}old\n{END}after\n");
        let once = replaced(&text, "new").unwrap();
        assert_eq!(once, format!("before\n{BEGIN}\nnew\n{END}after\n"));
        assert_eq!(replaced(&once, "new").unwrap(), once);
        assert!(replaced("no such lines", "new").is_err());
    }
}
