//! A script: changes to a cluster, and where the two proxies may differ after each.
//!
//! People who know kube-proxy and no Rust can check and write one, which they could not do with calls in Rust.

use std::{fs, net::IpAddr, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::{manifest, tables::Difference};

/// A file of `scripts/`.
#[derive(Debug)]
pub(crate) struct Script {
    /// The file's name, without the extension.
    pub(crate) name: String,
    /// The first minor version of kube-proxy that knows what the script is about, if not all do.
    pub(crate) since: Option<(u32, u32)>,
    /// What both proxies are started with, beside what they always are.
    pub(crate) flags: Vec<String>,
    /// Whether there is an IPv6 address in it.
    pub(crate) ipv6: bool,
    /// What happens, one after the other.
    pub(crate) steps: Vec<Step>,
}

/// A change, after which the tables are compared.
#[derive(Debug)]
pub(crate) struct Step {
    /// What happens, in a sentence.
    pub(crate) sentence: String,
    /// What is done, in this order.
    pub(crate) actions: Vec<Action>,
    /// Whether no table changes. Otherwise at least one has to.
    pub(crate) changes_nothing: bool,
    /// How the tables differ afterwards.
    pub(crate) difference: Difference,
    /// Why they do, if they do.
    pub(crate) reason: Option<String>,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Creates or replaces an object in the script's namespace.
    Apply(Value),
    /// Deletes an object from it.
    Delete(Kind, String),
    /// Writes the Node object.
    Node(Node),
    /// Runs a shell command on both nodes.
    Run(String),
    /// Waits until both proxies have done what was asked for so far.
    Wait,
    /// Kills both proxies.
    Stop,
    /// Starts them again.
    Start,
}

/// What scripts say of the Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Its zone label.
    pub(crate) zone: Option<String>,
    /// Its internal addresses, if they are not those it has.
    pub(crate) addresses: Option<Vec<IpAddr>>,
}

impl Default for Node {
    fn default() -> Self {
        Self { zone: Some("z1".to_owned()), addresses: None }
    }
}

impl Node {
    /// `zone=NAME` or `zone=` for none, `addresses=IP,IP`; what is left out is as at the start.
    fn parse(fields: &str) -> Result<Self> {
        let mut node = Self::default();
        for (field, value) in manifest::pairs(fields)? {
            match field {
                "zone" => node.zone = Some(value.to_owned()).filter(|zone| !zone.is_empty()),
                "addresses" => {
                    let addresses = value.split(',').map(str::parse).collect::<Result<_, _>>();
                    node.addresses = Some(addresses.context("addresses are IP addresses")?);
                }
                _ => bail!("the Node has no field {field}"),
            }
        }
        Ok(node)
    }
}

/// The kinds of object that scripts write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Service,
    EndpointSlice,
}

impl Script {
    /// Every script of a directory, those with the same flags next to each other.
    pub(crate) fn all(directory: &Path) -> Result<Vec<Self>> {
        let mut scripts = Vec::new();
        for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
            let path = entry?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let text = fs::read_to_string(&path)?;
            scripts.push(Self::parse(&name, &text).with_context(|| format!("in {}", path.display()))?);
        }
        scripts.sort_by(|one, other| (&one.flags, &one.name).cmp(&(&other.flags, &other.name)));
        Ok(scripts)
    }

    /// Reads a script: sentences at the margin, below each what is done, indented.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self> {
        let ipv6 = text.contains("::");
        let mut script =
            Self { name: name.to_owned(), since: None, flags: Vec::new(), ipv6, steps: Vec::new() };
        let mut lines = Lines::from_text(text);
        while let Some(line) = lines.next() {
            if let Some(flags) = line.text.strip_prefix("flags: ").filter(|_| line.indentation == 0) {
                ensure!(script.steps.is_empty(), "line {}: flags come before the first step", line.number);
                script.flags.extend(flags.split_whitespace().map(str::to_owned));
                continue;
            }
            if let Some(version) = line.text.strip_prefix("since: ").filter(|_| line.indentation == 0) {
                let (major, minor) = version.split_once('.').context("since: MAJOR.MINOR")?;
                script.since = Some((major.parse()?, minor.parse()?));
                continue;
            }
            ensure!(line.indentation == 0, "line {}: a step begins with a sentence", line.number);
            let mut step = Step::new(line.text);
            while let Some(line) = lines.next_below(0) {
                let below = lines.all_below(line.indentation);
                step.take(line.text, &below).with_context(|| format!("line {}", line.number))?;
            }
            script.steps.push(step);
        }
        ensure!(!script.steps.is_empty(), "a script has at least one step");
        Ok(script)
    }
}

impl Step {
    fn new(sentence: &str) -> Self {
        Self {
            sentence: sentence.to_owned(),
            actions: Vec::new(),
            changes_nothing: false,
            difference: Difference::default(),
            reason: None,
        }
    }

    /// Takes a line with the lines that are indented below it.
    fn take(&mut self, line: &str, below: &[&str]) -> Result<()> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (name, fields) = rest.split_once(' ').unwrap_or((rest, ""));
        if !matches!(word, "slice" | "differ") {
            ensure!(below.is_empty(), "nothing can be below {word}");
        }
        match word {
            "service" => self.actions.push(Action::Apply(manifest::service(name, fields)?)),
            "slice" => {
                self.actions.push(Action::Apply(manifest::slice(name, fields, below.iter().copied())?));
            }
            "delete" => self.actions.push(Action::Delete(Kind::parse(name)?, fields.to_owned())),
            "node" => self.actions.push(Action::Node(Node::parse(rest)?)),
            "run" => self.actions.push(Action::Run(rest.to_owned())),
            "wait" => self.actions.push(Action::Wait),
            "stop" => self.actions.push(Action::Stop),
            "start" => self.actions.push(Action::Start),
            "nothing" if rest == "changes" => self.changes_nothing = true,
            "differ" => {
                let reason = rest.strip_prefix("because ").context("differ because WHY")?;
                self.reason = Some(reason.to_owned());
                self.difference = Difference::parse(below)?;
            }
            _ => bail!("{line:?} is nothing that can be done"),
        }
        Ok(())
    }
}

impl Kind {
    fn parse(word: &str) -> Result<Self> {
        match word {
            "service" => Ok(Self::Service),
            "slice" => Ok(Self::EndpointSlice),
            _ => bail!("{word} is neither service nor slice"),
        }
    }
}

/// The lines of a script that say something.
struct Lines<'a>(std::iter::Peekable<std::vec::IntoIter<Line<'a>>>);

#[derive(Clone, Copy)]
struct Line<'a> {
    number: usize,
    indentation: usize,
    text: &'a str,
}

impl<'a> Lines<'a> {
    fn from_text(text: &'a str) -> Self {
        let lines = text.lines().enumerate().map(|(index, line)| {
            let text = line.trim();
            Line { number: index + 1, indentation: line.len() - line.trim_start().len(), text }
        });
        let said: Vec<_> =
            lines.filter(|line| !line.text.is_empty() && !line.text.starts_with('#')).collect();
        Self(said.into_iter().peekable())
    }

    fn next(&mut self) -> Option<Line<'a>> {
        self.0.next()
    }

    /// The next line, if it is indented more than that.
    fn next_below(&mut self, indentation: usize) -> Option<Line<'a>> {
        self.0.next_if(|line| line.indentation > indentation)
    }

    /// All the lines that are.
    fn all_below(&mut self, indentation: usize) -> Vec<&'a str> {
        std::iter::from_fn(|| self.next_below(indentation)).map(|line| line.text).collect()
    }
}
