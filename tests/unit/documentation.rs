//! The documents are right where a machine can check: links have targets, commands are accepted, and each of them
//! is tried.

use std::{collections::BTreeSet, process};

use kube_ipvs::cli;

use crate::support::documents::{
    self, Block, Command, Document, ELSEWHERE, Place, Scene, expectation::difference,
};

/// The commands of all documents for operators.
fn commands() -> Vec<Command> {
    documents::for_operators().iter().flat_map(Command::all).collect()
}

/// What is wrong with a link of a document.
fn broken(document: &Document, link: &str) -> Option<String> {
    if link.contains("://") {
        return None;
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let directory = documents::root().join(&document.name);
    let directory = directory.parent().unwrap();
    let file = if path.is_empty() { documents::root().join(&document.name) } else { directory.join(path) };
    if !file.exists() {
        return Some(format!("{}: {link}: there is no such file", document.name));
    }
    let anchor = anchor?;
    let slugs = documents::slugs(&std::fs::read_to_string(&file).unwrap());
    (!slugs.iter().any(|slug| slug == anchor))
        .then(|| format!("{}: {link}: no heading there becomes this anchor", document.name))
}

#[test]
fn every_link_between_documents_has_a_target() {
    let documents = documents::all();
    let broken: Vec<_> = documents
        .iter()
        .flat_map(|document| documents::links(&document.text).into_iter().map(move |link| (document, link)))
        .filter_map(|(document, link)| broken(document, link))
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn a_link_that_leads_nowhere_is_found_out() {
    let document = Document {
        name: "docs/README.md".to_owned(),
        text:
            "# One\n\n## Two: a `word`?\n\n## Two: a word\n\n```text\n# no heading [no link](nowhere)\n```\n\
               [a](faq.md) [b](../README.md) [c](nowhere.md) [d](../README.md#nowhere)\n"
                .to_owned(),
    };
    assert_eq!(documents::slugs(&document.text), ["one", "two-a-word", "two-a-word-1"]);
    let found: Vec<_> =
        documents::links(&document.text).into_iter().filter_map(|link| broken(&document, link)).collect();
    assert_eq!(found.len(), 2, "{found:?}");
}

#[test]
fn the_table_of_contents_has_every_page() {
    let contents = documents::read("docs/README.md");
    let links: BTreeSet<&str> = documents::links(&contents.text).into_iter().collect();
    for document in documents::for_operators() {
        let page = document.name.strip_prefix("docs/").unwrap_or("../README.md");
        assert!(page == "README.md" || links.contains(page), "docs/README.md has no link to {page}");
    }
}

#[test]
fn every_block_of_commands_is_of_a_language_that_is_tried() {
    for document in documents::for_operators() {
        for block in Block::all(&document.text) {
            let known = ["console", "sh", "text", "json", "yaml", "ini"].contains(&block.language);
            assert!(
                known,
                "{}:{}: {:?} is not one of our languages",
                document.name, block.line, block.language
            );
        }
    }
}

/// A document has no command that nothing tries.
#[test]
fn what_is_not_run_on_the_node_has_a_reason_and_no_reason_is_idle() {
    let commands = commands();
    assert!(commands.iter().filter(|command| Place::for_command(command) == Place::Node).count() > 20);
    for (program, why) in ELSEWHERE {
        assert!(commands.iter().any(|command| command.program() == program), "{program}: {why}: unused");
    }
    for command in commands.iter().filter(|command| Place::for_command(command) != Place::Node) {
        assert!(command.printed.is_empty(), "{}: nothing compares what it prints", command.at);
    }
}

#[test]
fn every_command_is_one_that_a_shell_can_read() {
    for command in commands() {
        let before = command.scenes.iter().filter_map(|scene| match scene {
            Scene::First(script) => Some(script),
            Scene::Daemon(_) | Scene::NoDaemon => None,
        });
        for script in before.chain([&command.text]) {
            let shell = process::Command::new("sh").args(["-nc", script]).output().unwrap();
            assert!(shell.status.success(), "{}: {script:?}: {shell:?}", command.at);
        }
    }
}

/// In tables and sentences too, where nothing runs it.
#[test]
fn every_command_of_ours_that_is_named_anywhere_is_taken_by_the_program() {
    let mut named = 0;
    for document in documents::all() {
        let shown = Command::all(&document).into_iter().map(|command| command.text);
        for text in documents::spans(&document.text).into_iter().chain(shown) {
            let words = text.split(['|', '#', ';', '&']).next().unwrap_or_default();
            let words: Vec<&str> = words.split_whitespace().collect();
            if words.len() < 2 || text.contains('…') {
                continue;
            }
            let taken = match words[..] {
                ["kube-ipvs", ..] => cli::parse(words.iter().map(Into::into)).map(drop),
                ["kubectl", "ipvs", _, ..] => {
                    kubectl_ipvs::command().try_get_matches_from(&words[1..]).map(drop)
                }
                _ => continue,
            };
            named += 1;
            if let Err(error) = taken {
                // The command by its name alone, without what it asks about.
                let is_name = error.kind() == clap::error::ErrorKind::MissingRequiredArgument;
                assert!(is_name || !error.use_stderr(), "{}: `{text}`: {error}", document.name);
            }
        }
    }
    assert!(named > 20, "{named} commands of ours");
}

#[test]
fn what_a_document_leaves_out_may_be_anything_and_the_rest_may_not() {
    let expected = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    for (document, printed, same) in [
        ("a\nb", "a\nb\n", true),
        ("a\nb", "b\n\n  a\n", true),
        ("a  1", "a 1", true),
        ("a", "a\nb", false),
        ("a\nb", "a", false),
        ("a\na", "a", false),
        ("a\n…", "a\nb\nc", true),
        ("…\nd", "a\nb\nc", false),
        ("took … ms", "took 12 ms", true),
        ("took … ms", "took 12 s", false),
        ("… and …", "one and two", true),
        ("… and …", "one or two", false),
        ("one … two", "one two", false),
        ("…x\nax", "ax\nbx", true),
        ("", "a", false),
    ] {
        let difference = difference(&expected(document), printed);
        assert_eq!(difference.is_none(), same, "{document:?}, {printed:?}: {difference:?}");
    }
}

#[test]
fn a_block_has_its_commands_with_what_they_print_and_the_scene_before_the_first() {
    let text = "<!-- daemon: none -->\n<!-- first: touch\n  web -->\n```console\n$ one \\\n  more\nthis\nthat\nclient$ two 'a\nb'\n```\n\
                <!-- a word to people -->\n```sh\nthree\n```\n```text\nfour\n```\n";
    let document = Document { name: "d.md".to_owned(), text: text.to_owned() };
    let shown: Vec<_> = Command::all(&document)
        .into_iter()
        .map(|it| (it.at, it.scenes, it.host, it.text, it.printed.join(",")))
        .collect();
    let expected = [
        (
            "d.md:5",
            vec![Scene::NoDaemon, Scene::First("touch\n  web".to_owned())],
            "",
            "one \\\n  more",
            "this,that",
        ),
        ("d.md:9", Vec::new(), "client", "two 'a\nb'", ""),
        ("d.md:14", Vec::new(), "", "three", ""),
    ];
    assert_eq!(shown, expected.map(|(a, b, c, d, e)| (a.into(), b, c.into(), d.into(), e.into())));
}
