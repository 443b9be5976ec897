//! The tables of the old iptables (`iptables-legacy`), which are not part of nf_tables.
//!
//! The kernel only accepts a whole table, by `setsockopt` with a special structure, so this is left to the
//! host's own programs. It is the only place where kube-ipvs runs a program.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    process::{Command, Stdio},
};

use ipvs::Family;

use super::{
    Error,
    chains::{Plan, Rule, Table},
    names::{self, FORWARD},
};
use crate::host_firewall::tables_in_use;

/// The programs for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Programs {
    save: String,
    restore: String,
}

/// The tables that kube-proxy may have written to, of those that are in use. Loads nothing.
pub(super) fn tables(family: Family) -> Result<Vec<&'static str>, Error> {
    let in_use = tables_in_use(family).map_err(Error::LegacyTables)?;
    Ok(names::TABLES.into_iter().filter(|table| in_use.lines().any(|line| line == *table)).collect())
}

/// The command that does this by hand, where the programs are installed.
pub(super) fn by_hand(families: &[Family]) -> String {
    let pattern = names::pattern();
    let command = |family: &Family| {
        let stem = stem(*family);
        format!("{stem}-legacy-save | grep -vE '{pattern}' | {stem}-legacy-restore")
    };
    families.iter().map(command).collect::<Vec<_>>().join("; ")
}

impl Programs {
    /// Looks for the programs in PATH. `None` if those for the old tables are missing.
    pub(super) fn find(family: Family) -> Option<Self> {
        let stem = stem(family);
        // The second name may be either kind; before 1.8 it did not say which, and the old kind was the only
        // one.
        [format!("{stem}-legacy"), stem.to_owned()]
            .into_iter()
            .map(|name| Self { save: format!("{name}-save"), restore: format!("{name}-restore") })
            .find(|programs| says_legacy(&programs.save) && says_legacy(&programs.restore))
    }

    /// What a table has of kube-proxy's, and what of that has to stay.
    ///
    /// With `spares_forwarding`, KUBE-FORWARD is left alone if FORWARD drops unknown traffic.
    pub(super) fn plan(&self, table: &str, spares_forwarding: bool) -> Result<Plan<String>, Error> {
        run(&self.save, &["-t", table], "").map(|saved| plan(table, &saved, spares_forwarding))
    }

    /// Deletes everything in the plan, or nothing.
    pub(super) fn remove(&self, table: &str, plan: &Plan<String>) -> Result<(), Error> {
        // Waits for the lock of other iptables programs, but not for ever.
        run(&self.restore, &["-w", "5", "--noflush"], &script(table, plan)).map(drop)
    }
}

/// The plan for the output of `iptables-save -t TABLE`.
fn plan(table: &str, saved: &str, spares_forwarding: bool) -> Plan<String> {
    let spared =
        (spares_forwarding && saved.lines().any(|line| line.starts_with(":FORWARD DROP"))).then_some(FORWARD);
    parse(saved).plan(table, &BTreeMap::new(), spared)
}

/// The input of `iptables-restore --noflush` that removes what is kube-proxy's of what
/// `iptables-save -t TABLE` has printed; `None` if there is nothing of it.
pub fn removal(table: &str, saved: &str) -> Option<String> {
    let plan = plan(table, saved, false);
    (!plan.is_empty()).then(|| script(table, &plan))
}

fn stem(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

/// Whether the program exists and says that it is of the old kind: `iptables-save v1.8.9 (legacy)`.
fn says_legacy(program: &str) -> bool {
    run(program, &["--version"], "").is_ok_and(|version| version.contains("(legacy)"))
}

fn run(program: &str, arguments: &[&str], input: &str) -> Result<String, Error> {
    let cannot = |source: io::Error| Error::Run { program: program.to_owned(), source };
    let mut command = Command::new(program);
    let started = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = started.spawn().map_err(cannot)?;
    if let Some(mut stdin) = running.stdin.take() {
        // A program that ends before it has read everything prints the reason itself.
        drop(stdin.write_all(input.as_bytes()));
    }
    let output = running.wait_with_output().map_err(cannot)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(Error::Program { program: program.to_owned(), status: output.status.to_string(), said })
}

/// Reads what `iptables-save -t TABLE` prints. A rule is deleted by its own text.
fn parse(saved: &str) -> Table<String> {
    let mut table = Table::default();
    for line in saved.lines() {
        if let Some(chain) = line.strip_prefix(':') {
            let mut words = chain.split(' ');
            let name: Box<str> = words.next().unwrap_or_default().into();
            // Only built-in chains have a policy.
            if words.next() == Some("-") {
                table.chains.push(name);
            } else {
                table.built_in.push(name);
            }
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let words = words(rule);
            let chain = words.first().copied().unwrap_or_default().into();
            let targets = words.windows(2).filter_map(|pair| match pair {
                ["-j" | "-g", target] => Some((*target).into()),
                _ => None,
            });
            table.rules.push(Rule { chain, id: rule.to_owned(), targets: targets.collect() });
        }
    }
    table
}

/// The words of a rule. One in double quotes, such as a comment, is one word; within it a backslash takes the
/// next character as it is (`xtables_save_string` in iptables' libxtables).
fn words(rule: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let (mut start, mut quoted, mut escaped) = (0, false, false);
    for (position, character) in rule.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ' ' if !quoted => {
                words.extend(rule.get(start..position));
                start = position + 1;
            }
            _ => {}
        }
    }
    words.extend(rule.get(start..));
    words
}

/// The input of `iptables-restore --noflush`, which replaces a table as a whole or not at all. Declaring an
/// existing chain removes its rules.
fn script(table: &str, plan: &Plan<String>) -> String {
    let flush = plan.chains.iter().map(|chain| format!(":{chain} - [0:0]\n"));
    let jumps = plan.jumps.iter().map(|(_, rule)| format!("-D {rule}\n"));
    let delete = plan.chains.iter().map(|chain| format!("-X {chain}\n"));
    let lines: String = flush.chain(jumps).chain(delete).collect();
    format!("*{table}\n{lines}COMMIT\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = r#"# Generated by iptables-save v1.8.9 on Sat Nov 21 23:08:55 2026
*nat
:PREROUTING ACCEPT [0:0]
:POSTROUTING ACCEPT [7:420]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SERVICES - [0:0]
:MINE - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A PREROUTING -m comment --comment "no \" -j KUBE-SERVICES" -j MINE
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ
-A MINE -g KUBE-MARK-MASQ
COMMIT
"#;

    #[test]
    fn what_iptables_save_prints_is_read_with_the_targets_of_its_rules() {
        let table = parse(SAVED);
        assert_eq!(table.built_in, ["PREROUTING".into(), "POSTROUTING".into()]);
        assert_eq!(table.chains.len(), 4);
        let led_to: Vec<_> = table.rules.iter().map(|rule| rule.targets.join(",")).collect();
        assert_eq!(
            led_to,
            ["KUBE-SERVICES", "MINE", "KUBE-POSTROUTING", "MARK", "KUBE-MARK-MASQ", "KUBE-MARK-MASQ"]
        );
    }

    #[test]
    fn the_jumps_are_deleted_by_their_text_and_the_chains_emptied_and_deleted() {
        let plan = parse(SAVED).plan("nat", &BTreeMap::new(), None);
        assert_eq!(plan.kept.len(), 1, "somebody leads to KUBE-MARK-MASQ: {:?}", plan.kept);
        assert_eq!(
            script("nat", &plan),
            r#"*nat
:KUBE-POSTROUTING - [0:0]
:KUBE-SERVICES - [0:0]
-D PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-D POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-X KUBE-POSTROUTING
-X KUBE-SERVICES
COMMIT
"#
        );
    }

    #[test]
    fn by_hand_nothing_of_others_goes_whatever_their_rules_and_comments_say() {
        let saved = r#"*nat
:PREROUTING ACCEPT [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SERVICES-OF-MINE - [0:0]
:CNI-HOSTPORT-SETMARK - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A PREROUTING -j KUBE-SERVICES
-A PREROUTING -m comment --comment "not -j KUBE-SERVICES any more" -j CNI-HOSTPORT-SETMARK
-A PREROUTING -m comment --comment "not -j KUBE-SERVICES"
-A PREROUTING -j KUBE-SERVICES-OF-MINE
-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-SERVICES -d 10.96.0.10/32 -j KUBE-SVC-NPX46M4PTMTKRN6Y
-A KUBE-SVC-NPX46M4PTMTKRN6Y -j KUBE-MARK-MASQ
COMMIT
"#;
        let kept = run("grep", &["-vE", &names::pattern()], saved).unwrap();
        assert_eq!(
            kept,
            r#"*nat
:PREROUTING ACCEPT [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SERVICES-OF-MINE - [0:0]
:CNI-HOSTPORT-SETMARK - [0:0]
-A PREROUTING -m comment --comment "not -j KUBE-SERVICES any more" -j CNI-HOSTPORT-SETMARK
-A PREROUTING -m comment --comment "not -j KUBE-SERVICES"
-A PREROUTING -j KUBE-SERVICES-OF-MINE
-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
COMMIT
"#
        );
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        assert!(!says_legacy("no-such-iptables-save"));
        let error = run("no-such-iptables-save", &[], "").unwrap_err();
        assert_eq!(error.to_string(), "cannot run no-such-iptables-save");
    }
}
