//! Commands and their output.

use super::{Document, markdown::Block};

/// What is done before the commands of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scene {
    /// Shell commands on the node.
    First(String),
    /// The examples are as in the repository again, and the daemon is started anew with these flags.
    Daemon(Vec<String>),
    /// The daemon ends.
    NoDaemon,
}

/// A command that a document shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// The document and the line.
    pub(crate) at: String,
    /// What is to be done before it.
    pub(crate) scenes: Vec<Scene>,
    /// Where it is typed, as its prompt says; none is the node.
    pub(crate) host: String,
    /// What is typed; more than one line where a quotation or a backslash says so.
    pub(crate) text: String,
    /// The lines that it prints, as the document has them.
    pub(crate) printed: Vec<String>,
}

impl Command {
    /// The commands of a document, in their order.
    pub(crate) fn all(document: &Document) -> Vec<Self> {
        Block::all(&document.text).iter().flat_map(|block| of_block(&document.name, block)).collect()
    }

    /// The program that is called.
    pub(crate) fn program(&self) -> &str {
        self.text.split_whitespace().next().unwrap_or_default()
    }
}

fn of_block(document: &str, block: &Block<'_>) -> Vec<Command> {
    let mut commands: Vec<Command> = Vec::new();
    for (number, line) in block.lines.iter().enumerate() {
        let typed = match block.language {
            "console" => typed_after_a_prompt(line),
            "sh" => Some(("", *line)).filter(|_| !line.is_empty()),
            _ => return Vec::new(),
        };
        match (commands.last_mut(), typed) {
            (Some(last), _) if is_open(&last.text) => last.text.extend(["\n", line]),
            (_, Some((host, text))) => commands.push(Command {
                at: format!("{document}:{}", block.line + number),
                scenes: if number == 0 { scenes(&block.comments) } else { Vec::new() },
                host: host.to_owned(),
                text: text.to_owned(),
                printed: Vec::new(),
            }),
            (Some(last), None) => last.printed.push((*line).to_owned()),
            (None, None) => panic!("{document}:{}: a command begins with its prompt", block.line),
        }
    }
    commands
}

/// The prompt's host and what follows it.
fn typed_after_a_prompt(line: &str) -> Option<(&str, &str)> {
    let (host, typed) = line.split_once("$ ")?;
    (host.is_empty() || host == "client" || host.starts_with("pod-")).then_some((host, typed))
}

/// Whether the next line belongs to it too.
fn is_open(text: &str) -> bool {
    text.ends_with('\\') || text.matches('\'').count() % 2 == 1
}

fn scenes(comments: &[&str]) -> Vec<Scene> {
    comments.iter().filter_map(|comment| scene(comment)).collect()
}

/// What a comment asks for; other comments are for people.
fn scene(comment: &str) -> Option<Scene> {
    let (word, rest) = comment.split_once(':')?;
    match word {
        "daemon" if rest.trim() == "none" => Some(Scene::NoDaemon),
        "first" => Some(Scene::First(rest.trim().to_owned())),
        "daemon" => Some(Scene::Daemon(rest.split_whitespace().map(str::to_owned).collect())),
        _ => None,
    }
}
