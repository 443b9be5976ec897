//! `kubectl ipvs diff`.

use serde::Deserialize;

use super::{
    fleet::Answered,
    node_table::{Finding, first_lines, table},
};

/// How many operations of a node are shown. A table that was cleared is ten thousands.
const MOST_OPERATIONS: usize = 10;

/// What is read of `kube-ipvs diff -o json`.
#[derive(Debug, Deserialize)]
pub(super) struct Difference {
    operations: Vec<Operation>,
    troubles: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Operation {
    text: String,
}

/// The table of nodes, each with the operations that would remove its differences.
pub(super) fn text(answers: &[Answered<Difference>]) -> String {
    table("DIFFERENCE", answers, |answered| match &answered.answer {
        Err(why) => Finding::no_answer(why),
        Ok(answer) => {
            let Difference { operations, troubles } = &answer.read;
            let summary = match operations.len() {
                0 => "nothing differs".to_owned(),
                1 => "1 operation".to_owned(),
                many => format!("{many} operations"),
            };
            let mut details =
                first_lines(operations.iter().map(|operation| operation.text.clone()), MOST_OPERATIONS);
            details.extend(
                troubles.iter().map(|trouble| format!("what is wanted may be out of date: {trouble}")),
            );
            Finding { in_order: answer.in_order, summary, details }
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{
        super::tests::canned::{Canned, answers},
        *,
    };

    fn operations(texts: &[&str]) -> Value {
        let operations: Vec<_> =
            texts.iter().map(|text| json!({ "operation": "add-virtual-server", "text": text })).collect();
        json!({ "operations": operations, "troubles": [] })
    }

    #[test]
    fn each_node_has_its_operations_and_those_without_are_counted() {
        let lost = ["add virtual server TCP 10.96.0.10:80 rr", "bind 10.96.0.10"];
        let many: Vec<_> = (1..=12).map(|last| format!("bind 10.96.0.{last}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        let doubt = json!({ "operations": [], "troubles": ["API server: nodes not watched for 3 s"] });
        let answers = answers::<Difference>(&[
            ("a", Canned::answer(0, &operations(&[]))),
            ("b", Canned::answer(1, &operations(&lost))),
            ("c", Canned::answer(0, &operations(&[]))),
            ("d", Canned::answer(1, &operations(&many))),
            ("e", Canned::TimesOut),
            ("f", Canned::answer(0, &doubt)),
            ("g", Canned::answer(1, &operations(&lost))),
        ]);
        let expected = "\
NODE     DIFFERENCE
d        12 operations
         bind 10.96.0.1
         bind 10.96.0.2
         bind 10.96.0.3
         bind 10.96.0.4
         bind 10.96.0.5
         bind 10.96.0.6
         bind 10.96.0.7
         bind 10.96.0.8
         bind 10.96.0.9
         bind 10.96.0.10
         and 2 more
b, g     2 operations
         add virtual server TCP 10.96.0.10:80 rr
         bind 10.96.0.10
e        no answer: it takes longer than 30 s
f        nothing differs
         what is wanted may be out of date: API server: nodes not watched for 3 s
2 nodes  nothing differs
";
        assert_eq!(text(&answers), expected);
        assert!(!answers.iter().all(Answered::is_in_order));
    }
}
