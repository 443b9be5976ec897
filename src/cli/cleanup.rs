//! `kube-ipvs cleanup`.

mod hand_over;

use std::{
    fmt::Write,
    io::{BufRead, IsTerminal, stderr, stdin},
    path::Path,
    process::ExitCode,
};

use anyhow::bail;
use service::printable_line;

use super::{
    Flags, Format,
    output::{self, print_as, say, say_lines},
    question::Daemon,
};
use crate::{
    config::Excluded,
    node::requirements,
    takeover::{
        cleanup::{CleanupReport, CleanupScope, clean},
        instance_lock::{InstanceLock, InstanceLockError},
        live_proxy::LiveProxy,
    },
};

/// What to remove.
#[derive(clap::Args, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(super) struct Cleanup {
    /// KubeProxyConfiguration file whose ipvs.excludeCIDRs are respected: the daemon's, or kube-proxy's in any mode
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    /// Never touch virtual servers in these ranges, nor in those of the file
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    ipvs_exclude_cidrs: Vec<String>,
    /// Leave virtual servers, kube-ipvs0 and kube-proxy's rules to a kube-proxy that runs again in ipvs mode
    #[arg(long, conflicts_with = "kube_proxy_nftables")]
    keep_ipvs: bool,
    #[command(flatten)]
    hand_over: hand_over::HandOver,
    /// Run even if a proxy is running: what it serves is gone until it syncs again
    #[arg(long)]
    force: bool,
    /// Remove the tables of kube-proxy's nftables mode too
    #[arg(long)]
    kube_proxy_nftables: bool,
    /// Print what would be removed, and write nothing; with --hand-over also what it would wait for, and warnings
    #[arg(long)]
    dry_run: bool,
    /// Do not ask on a terminal, as in scripts
    #[arg(short = 'y', long, conflicts_with = "dry_run")]
    yes: bool,
    #[command(flatten)]
    output: output::Args,
    #[command(flatten)]
    daemon: Daemon,
}

/// Removes what proxies left on this node, unless a daemon or kube-proxy runs here.
pub(super) fn cleanup(asked: Cleanup) -> anyhow::Result<ExitCode> {
    let Cleanup { dry_run, yes, output, daemon, .. } = asked;
    if asked.hand_over.is_asked {
        let (limit, socket) = (asked.hand_over.wait, &*daemon.control_socket);
        return if dry_run {
            hand_over::dry_run(limit, socket, output.format)
        } else {
            hand_over::run(limit, !yes && is_terminal(), socket, output.format)
        };
    }
    let Cleanup { config, ipvs_exclude_cidrs, keep_ipvs, force, kube_proxy_nftables, .. } = asked;
    let excluded = Excluded::read(config.as_deref(), &ipvs_exclude_cidrs)?;
    clean_up(
        &excluded,
        CleanupScope { keep_ipvs, kube_proxy_nftables, dry_run },
        Consent { force, asks: !yes && is_terminal() },
        &daemon.control_socket,
        output.format,
    )
}

/// The cleanup of kube-proxy's flag `--cleanup`.
pub(super) fn by_flag(flags: &Flags) -> anyhow::Result<ExitCode> {
    let excluded = Excluded::from_flags(flags)?;
    let consent = Consent { force: false, asks: is_terminal() };
    clean_up(&excluded, CleanupScope::default(), consent, &flags.control_socket, Format::Text)
}

/// The operator's consent: the flags `--force` and `--yes`.
#[derive(Clone, Copy, Debug)]
struct Consent {
    /// Whether to run although a proxy runs.
    force: bool,
    /// Whether a person is asked before Services are no longer served.
    asks: bool,
}

fn clean_up(
    excluded: &Excluded,
    scope: CleanupScope,
    consent: Consent,
    control_socket: &Path,
    format: Format,
) -> anyhow::Result<ExitCode> {
    for warning in &excluded.warnings {
        say(format_args!("kube-ipvs: warning: {warning}"));
    }
    requirements::net_admin()?;
    if scope.dry_run {
        return print(format, &clean(excluded, scope));
    }
    let alone = InstanceLock::acquire(control_socket).map_err(InstanceLockError::named)?;
    if !consent.force
        && let Some(proxy) = LiveProxy::find()
    {
        beside(&proxy, scope)?;
    }
    if !scope.keep_ipvs && consent.asks {
        confirm(excluded, scope)?;
    }
    let cleaned = clean(excluded, scope);
    drop(alone);
    print(format, &cleaned)
}

fn is_terminal() -> bool {
    stdin().is_terminal() && stderr().is_terminal()
}

/// Asks a person before Services are no longer served: what a proxy would restore is gone until one runs.
fn confirm(excluded: &Excluded, scope: CleanupScope) -> anyhow::Result<()> {
    let found = clean(excluded, CleanupScope { dry_run: true, ..scope });
    if found.removed.is_empty() {
        return Ok(());
    }
    say_lines(&text(&found));
    say("Services are not served on this node until a proxy runs again. Remove all of this? [y/N]");
    if !answers_yes()? {
        bail!("nothing was removed");
    }
    Ok(())
}

/// Reads a line of a terminal.
fn answers_yes() -> std::io::Result<bool> {
    let mut answer = String::new();
    stdin().lock().read_line(&mut answer)?;
    Ok(is_yes(&answer))
}

fn is_yes(answer: &str) -> bool {
    ["y", "yes"].contains(&answer.trim().to_lowercase().as_str())
}

fn print(format: Format, cleaned: &CleanupReport) -> anyhow::Result<ExitCode> {
    print_as(format, cleaned, || text(cleaned))?;
    Ok(if cleaned.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Refuses to remove what a running proxy or `--hand-over` needs.
fn beside(proxy: &LiveProxy, scope: CleanupScope) -> anyhow::Result<()> {
    match (scope.keep_ipvs, proxy.mode()) {
        (true, "ipvs") => Ok(()),
        (true, _) => bail!(
            "{proxy}, and needs no IPVS. `kube-ipvs cleanup --hand-over` leaves new connections to it, and removes \
             everything of ours when the open ones have ended"
        ),
        (false, _) => bail!(
            "{proxy}, and would stop serving. `kube-ipvs cleanup --keep-ipvs` leaves virtual servers, \
             kube-ipvs0 and its rules to it, `kube-ipvs cleanup --hand-over` new connections; `kube-ipvs cleanup \
             --force` removes them anyway"
        ),
    }
}

fn text(cleaned: &CleanupReport) -> String {
    let CleanupReport { dry_run, removed, stayed, unknown, cut, waits, warnings } = cleaned;
    let mut text = String::new();
    let (is_cut, done, not_done) = if *dry_run {
        ("would cut", "would remove", "cannot remove")
    } else {
        ("cut", "removed", "not removed")
    };
    for (word, lines) in [
        ("would wait", waits),
        (is_cut, cut),
        (done, removed),
        (not_done, stayed),
        ("not checked", unknown),
        ("warning", warnings),
    ] {
        for line in lines {
            let _ = writeln!(text, "{word}: {}", printable_line(line));
        }
    }
    if text.is_empty() { "nothing to remove\n".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::{super::documented_tests::assert_documented, *};

    #[test]
    fn its_json_is_documented() {
        let lines = |line: &str| vec![line.to_owned()];
        let cleaned = CleanupReport {
            dry_run: false,
            removed: lines("kube-ipvs0"),
            stayed: lines("ipset KUBE-CLUSTER-IP: it is in use"),
            unknown: lines("iptables-legacy, IPv4: no programs"),
            cut: lines("3 active and 1 inactive connections to TCP 10.96.0.1:443"),
            waits: Vec::new(),
            warnings: Vec::new(),
        };
        assert_documented("cleanup", &cleaned);
    }

    #[test]
    fn only_a_yes_is_taken_for_one() {
        for answer in ["y\n", "Y\n", "yes\n", " YES \r\n"] {
            assert!(is_yes(answer), "{answer:?}");
        }
        for answer in ["", "\n", "n\n", "yea\n", "yy\n"] {
            assert!(!is_yes(answer), "{answer:?}");
        }
    }

    #[test]
    fn what_another_proxy_needs_stays_whatever_its_mode() {
        let keep = CleanupScope { keep_ipvs: true, ..CleanupScope::default() };
        let refused = |mode, scope| beside(&LiveProxy::in_mode(mode), scope).unwrap_err().to_string();
        beside(&LiveProxy::in_mode("ipvs"), keep).unwrap();
        assert!(refused("nftables", keep).contains("`kube-ipvs cleanup --hand-over`"));
        for mode in ["ipvs", "iptables", "nftables"] {
            assert!(refused(mode, CleanupScope::default()).contains("would stop serving"));
        }
    }

    #[test]
    fn cleanup_prints_one_line_for_each_removal_or_that_there_was_nothing() {
        let lines = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect();
        let mut cleaned = CleanupReport {
            dry_run: false,
            removed: lines(&["kube-ipvs0", "2 virtual servers"]),
            stayed: lines(&["ipset KUBE-CLUSTER-IP: it is in use"]),
            unknown: lines(&["iptables-legacy, IPv4: no programs"]),
            cut: lines(&["3 active and 1 inactive connections to TCP 10.96.0.1:443"]),
            waits: vec![],
            warnings: vec![],
        };
        assert_eq!(
            text(&cleaned),
            "cut: 3 active and 1 inactive connections to TCP 10.96.0.1:443\n\
             removed: kube-ipvs0\nremoved: 2 virtual servers\n\
             not removed: ipset KUBE-CLUSTER-IP: it is in use\n\
             not checked: iptables-legacy, IPv4: no programs\n"
        );
        assert!(!cleaned.is_complete());
        cleaned.dry_run = true;
        cleaned.waits = lines(&["no kube-proxy answers"]);
        cleaned.warnings = lines(&["there is no IPv4 default route"]);
        assert_eq!(
            text(&cleaned),
            "would wait: no kube-proxy answers\n\
             would cut: 3 active and 1 inactive connections to TCP 10.96.0.1:443\n\
             would remove: kube-ipvs0\nwould remove: 2 virtual servers\n\
             cannot remove: ipset KUBE-CLUSTER-IP: it is in use\n\
             not checked: iptables-legacy, IPv4: no programs\n\
             warning: there is no IPv4 default route\n"
        );
        assert_eq!(text(&CleanupReport::default()), "nothing to remove\n");
    }
}
