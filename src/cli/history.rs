//! `kube-ipvs history` and `kube-ipvs watch`: what the daemon has changed in the kernel for a Service, when, and why.

use std::{
    fmt::Write as _,
    mem,
    net::IpAddr,
    process::ExitCode,
    thread,
    time::{Duration, SystemTime},
};

use anyhow::bail;
use ipvs::{RealServerAddress, ServiceAddress};
use k8s_openapi::jiff::Timestamp;
use reconciler::{ChangeKind, JournalEntry, JournalPage};
use serde::Serialize;
use service::{NotServed, ObjectName, one_line, printable_line};

use super::{
    AboutService, Ask,
    output::{Readers, Time, one_of_many, print_as, print_to_readers, say},
};
use crate::serve::control::Control as _;

/// The interval at which `watch` asks the daemon.
const PAUSE: Duration = Duration::from_secs(1);

/// Prints the last changes of a Service, the oldest first. An unknown Service without any is a failure.
pub(super) fn history(asked: &AboutService) -> anyhow::Result<ExitCode> {
    let (service, Ask { output, daemon }) = (&asked.name()?, &asked.ask);
    let page = daemon.client().history(Some(service), 0)?;
    if page.entries.is_empty() {
        let explanation = daemon.client().explain(service, None)?;
        if let Some(why @ NotServed::Unknown) = explanation.not_served {
            let reasons = explanation.problems.iter().chain(&explanation.hints);
            let problems = reasons.fold(String::new(), |all, one| format!("{all}; {one}"));
            bail!("no change of {service} is recorded, and {why}{problems}");
        }
    }
    let now = SystemTime::now();
    let answer = History {
        service,
        since: time(page.began),
        complete: !page.incomplete,
        changes: page.entries.iter().map(Row::from).collect(),
    };
    print_as(output.format, &answer, || text(service, &page, now))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the changes of a Service, or of all, as they happen.
pub(super) fn watch(service: Option<&ObjectName>, Ask { output, daemon }: &Ask) -> anyhow::Result<ExitCode> {
    let client = daemon.client();
    let JournalPage { mut began, mut last, .. } = client.history(service, u64::MAX)?;
    let mut is_away = false;
    loop {
        thread::sleep(PAUSE);
        let mut page = match client.history(service, last) {
            Ok(page) => page,
            // It may be about to start again.
            Err(error) => {
                if !mem::replace(&mut is_away, true) {
                    say(format_args!("kube-ipvs: {}; asking again", one_line(&error)));
                }
                continue;
            }
        };
        is_away = false;
        if page.began != began {
            say("kube-ipvs: the daemon has started again");
            page = client.history(service, 0)?;
        }
        if page.incomplete {
            say("kube-ipvs: some changes are missing: there were more than the daemon keeps");
        }
        for entry in &page.entries {
            let text = one_of_many(output.format, &Row::from(entry), || watch_line(entry))?;
            if print_to_readers(&text)? == Readers::Gone {
                return Ok(ExitCode::SUCCESS);
            }
        }
        (began, last) = (page.began, page.last);
    }
}

/// The history of a Service, as `-o json` has it.
#[derive(Serialize)]
struct History<'a> {
    service: &'a ObjectName,
    /// When the daemon began to record.
    since: String,
    /// Whether these are all changes since then.
    complete: bool,
    changes: Vec<Row<'a>>,
}

/// A change, as `-o json` has it. Fields that do not apply are left out.
#[derive(Serialize)]
struct Row<'a> {
    time: String,
    service: &'a ObjectName,
    change: ChangeKind,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<RealServerAddress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    virtual_server: Option<ServiceAddress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    more_virtual_servers: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vip: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'a str>,
    repair: bool,
}

impl<'a> From<&'a JournalEntry> for Row<'a> {
    fn from(JournalEntry { at, service, change, .. }: &'a JournalEntry) -> Self {
        Self {
            time: time(*at),
            service,
            change: change.kind,
            text: change.to_string(),
            endpoint: change.endpoint,
            virtual_server: change.virtual_server,
            more_virtual_servers: change.virtual_server.map(|_| change.more_virtual_servers),
            vip: change.vip,
            cause: change.cause.as_deref(),
            repair: change.repair,
        }
    }
}

/// As RFC 3339 has it, in UTC and milliseconds.
fn time(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| "unknown".to_owned(), |at| format!("{at:.3}"))
}

fn text(service: &ObjectName, page: &JournalPage, now: SystemTime) -> String {
    let age = |at: SystemTime| Time(now.duration_since(at).unwrap_or_default()).to_string();
    let since = format!("{} ({} ago)", time(page.began), age(page.began));
    let mut text = match (page.entries.is_empty(), page.incomplete) {
        (true, false) => format!("{service}: no change since the daemon started at {since}\n"),
        (true, true) => format!("{service}: no changes are recorded; older ones have been discarded\n"),
        (false, true) => format!("{service}: its last changes; earlier ones are not kept\n"),
        (false, false) => format!("{service}: all changes since the daemon started at {since}\n"),
    };
    for JournalEntry { at, change, .. } in &page.entries {
        let age = format!("{} ago", age(*at));
        let _ = writeln!(text, "{}  {age:>16}  {}", time(*at), printable_line(&change.to_string()));
    }
    text
}

fn watch_line(JournalEntry { at, service, change, .. }: &JournalEntry) -> String {
    format!("{}  {service}  {}\n", time(*at), printable_line(&change.to_string()))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use ipvs::Protocol;
    use reconciler::ServiceChange;

    use super::{super::documented_tests::assert_documented, *};

    fn entry() -> JournalEntry {
        let at = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 10].into(), port: 80 };
        JournalEntry {
            number: 7,
            at: UNIX_EPOCH + Duration::from_millis(1_795_921_995_250),
            service: ObjectName::new("default", "web"),
            change: ServiceChange {
                endpoint: Some(RealServerAddress { ip: [10, 244, 1, 2].into(), port: 8080 }),
                virtual_server: Some(at),
                more_virtual_servers: 3,
                cause: Some("conditions.ready is false".into()),
                ..ServiceChange::new(ChangeKind::EndpointDraining)
            },
        }
    }

    fn page(entries: Vec<JournalEntry>, incomplete: bool) -> JournalPage {
        JournalPage { entries, last: 7, began: UNIX_EPOCH + Duration::from_secs(1_795_918_395), incomplete }
    }

    fn printed(page: &JournalPage) -> String {
        text(&ObjectName::new("default", "web"), page, UNIX_EPOCH + Duration::from_millis(1_795_922_007_750))
    }

    #[test]
    fn a_change_is_a_line_with_its_time_its_age_and_its_cause() {
        assert_eq!(
            printed(&page(vec![entry()], false)),
            "default/web: all changes since the daemon started at 2026-11-29T02:13:15.000Z (1 h 0 min ago)\n\
             2026-11-29T03:13:15.250Z          12 s ago  endpoint 10.244.1.2:8080 draining at TCP 10.96.0.10:80 and 3 \
             more: conditions.ready is false\n"
        );
        assert_eq!(
            watch_line(&entry()),
            "2026-11-29T03:13:15.250Z  default/web  endpoint 10.244.1.2:8080 draining at TCP 10.96.0.10:80 and 3 more: \
             conditions.ready is false\n"
        );
    }

    #[test]
    fn a_history_says_whether_it_is_complete() {
        assert!(
            printed(&page(vec![entry()], true)).starts_with("default/web: its last changes; earlier ones")
        );
        assert!(
            printed(&page(Vec::new(), false))
                .starts_with("default/web: no change since the daemon started at ")
        );
        assert!(printed(&page(Vec::new(), true)).ends_with("older ones have been discarded\n"));
    }

    #[test]
    fn the_json_of_history_and_watch_is_documented() {
        let (page, service) = (page(vec![entry()], false), ObjectName::new("default", "web"));
        let changes = page.entries.iter().map(Row::from).collect();
        let history = History { service: &service, since: time(page.began), complete: true, changes };
        assert_documented("history", &history);
        assert_documented("watch", &Row::from(&entry()));
    }
}
