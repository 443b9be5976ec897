//! The result of fuzzing a target, read from libFuzzer's output.

/// The result of one target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    executions: u64,
    seconds: u64,
    /// How many inputs there are that each reach something, and their bytes: `120/34Kb`.
    corpus: String,
    /// What was found: the file with the input, or the last line of output.
    pub(super) fault: Option<String>,
}

impl Outcome {
    /// The table's head.
    pub(super) const HEAD: &str = "\
| target         |  executions | seconds | corpus      | fault\n\
|----------------|------------:|--------:|-------------|------";

    /// Reads the whole output; `clean` is whether the program succeeded.
    pub(super) fn read(said: &str, clean: bool) -> Self {
        let mut outcome = Self::default();
        let mut written = None;
        for line in said.lines() {
            if let Some(number) = line.strip_prefix("stat::number_of_executed_units:") {
                outcome.executions = number.trim().parse().unwrap_or_default();
            } else if let Some((_, seconds)) =
                line.strip_prefix("Done ").and_then(|line| line.split_once(" in "))
            {
                outcome.seconds = first_number(seconds);
            } else if let Some((_, file)) = line.split_once("Test unit written to ") {
                written = Some(file.to_owned());
            } else if let Some(corpus) = line.starts_with('#').then(|| corpus(line)).flatten() {
                corpus.clone_into(&mut outcome.corpus);
            }
        }
        if !clean {
            let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing was said");
            outcome.fault = Some(written.unwrap_or_else(|| last.to_owned()));
        }
        outcome
    }

    /// The table's row for this target.
    pub(super) fn row(&self, target: &str) -> String {
        let Self { executions, seconds, corpus, fault } = self;
        let fault = fault.as_deref().unwrap_or("none");
        format!("| {target:<14} | {executions:>11} | {seconds:>7} | {corpus:<11} | {fault}")
    }
}

/// `second(s)` and the like may follow.
fn first_number(text: &str) -> u64 {
    text.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// The word after `corp:`.
fn corpus(line: &str) -> Option<&str> {
    line.split_once("corp: ")?.1.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
INFO: Seed: 1\n\
#2\tINITED cov: 400 ft: 500 corp: 1/21b exec/s: 0 rss: 40Mb\n\
#12000\tNEW    cov: 410 ft: 600 corp: 20/3Kb lim: 60 exec/s: 900 rss: 50Mb L: 7/60 MS: 1 EraseBytes-\n";

    #[test]
    fn a_clean_run_is_read_from_its_last_lines() {
        let said = format!(
            "{SAID}#99\tDONE   cov: 410 ft: 600 corp: 21/4Kb lim: 60 exec/s: 900 rss: 50Mb\n\
             Done 54321 runs in 61 second(s)\nstat::number_of_executed_units: 54321\n"
        );
        let outcome = Outcome::read(&said, true);
        assert_eq!(outcome.row("ipvs"), "| ipvs           |       54321 |      61 | 21/4Kb      | none");
    }

    #[test]
    fn a_run_that_found_something_names_the_file() {
        let said = format!(
            "{SAID}==7== ERROR: libFuzzer: deadly signal\nstat::number_of_executed_units: 12345\n\
             artifact_prefix='fuzz/artifacts/ipvs/'; Test unit written to fuzz/artifacts/ipvs/crash-1\nBase64: eA==\n"
        );
        let outcome = Outcome::read(&said, false);
        assert_eq!((outcome.executions, outcome.corpus.as_str()), (12_345, "20/3Kb"));
        assert_eq!(outcome.fault.as_deref(), Some("fuzz/artifacts/ipvs/crash-1"));
    }

    #[test]
    fn a_program_that_did_not_run_is_a_fault_too() {
        assert_eq!(
            Outcome::read("error: no such target\n\n", false).fault.as_deref(),
            Some("error: no such target")
        );
    }
}
