//! `kube-ipvs diff`.

use std::process::ExitCode;

use watcher::{Plan, one_line};

use super::{
    Format,
    output::{print, print_json},
    question::Question,
};
use crate::control::{Request, Response};

/// The exit codes are diff's.
const DIFFERENT: u8 = 1;
const TROUBLE: u8 = 2;

/// Prints what a resync would do, one operation a line, and does nothing of it.
pub(super) fn diff(question: &Question) -> ExitCode {
    match compare(question) {
        Ok(plan) if plan.is_empty() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(DIFFERENT),
        Err(error) => {
            eprintln!("kube-ipvs: {}", one_line(error.as_ref()));
            ExitCode::from(TROUBLE)
        }
    }
}

fn compare(question: &Question) -> anyhow::Result<Plan> {
    let expected = |response| if let Response::Plan(plan) = response { Some(plan) } else { None };
    let plan = question.answer(&Request::Diff, expected, |mut node| node.compare())?;
    match question.ask.output.format {
        Format::Text => print(&plan.to_string())?,
        Format::Json => print_json(&plan)?,
    }
    Ok(plan)
}
