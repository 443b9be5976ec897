//! `kube-ipvs diff`.

mod json;

use std::process::ExitCode;

use json::DiffJson;
use watcher::Plan;

use super::{
    output::{self, doubt, print_as},
    question::Question,
};
use crate::{
    daemon::WithoutDaemon,
    serve::control::{Control as _, Difference},
};

/// The exit code if something differs, as of diff.
const DIFFERENT: u8 = 1;

/// Prints the operations that would remove the differences, one a line. Carries none out.
pub(super) fn diff(question: &Question) -> anyhow::Result<ExitCode> {
    let plan = compare(question)?;
    Ok(if plan.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) })
}

fn compare(question: &Question) -> anyhow::Result<Plan> {
    let look =
        |node: &mut WithoutDaemon<'_>| Ok(Difference { plan: node.compare()?, troubles: node.doubts() });
    let Difference { plan, troubles } = question.answer(|daemon| daemon.diff(), look)?;
    doubt(&troubles);
    print_as(question.ask.output.format, &DiffJson::new(&plan, &troubles), || plan.to_string())?;
    Ok(plan)
}

/// The difference for programs.
pub(super) fn json(Difference { plan, troubles }: &Difference) -> anyhow::Result<String> {
    Ok(output::json(&DiffJson::new(plan, troubles))?)
}
