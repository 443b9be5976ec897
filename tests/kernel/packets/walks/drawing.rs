//! Sightings as text: a line for each hook that a packet comes to, and one for each change on the way.

use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
};

use super::{
    sighting::{Hook, Kind, Packet, Sighting},
    tracer::LAST,
};

/// The bit that marks what is to be masqueraded.
const MARK: u32 = 0x4000;

/// Draws the ways of a request, its reply, or its refusal; `name` gives addresses their names.
pub(crate) fn draw(sightings: &[Sighting], name: &dyn Fn(IpAddr) -> String) -> String {
    let requests = || sightings.iter().filter(|it| it.packet.kind == Kind::Syn);
    // What an earlier connection still has to say goes elsewhere.
    let answers = |kinds: &'static [Kind]| {
        let is_answer = |it: &&Sighting| requests().any(|by| by.packet.source == it.packet.destination);
        sightings.iter().filter(move |it| kinds.contains(&it.packet.kind)).filter(is_answer)
    };
    let ways = [
        ("request", once(requests())),
        ("reply", once(answers(&[Kind::SynAck]))),
        ("refusal", once(answers(&[Kind::Rst, Kind::Unreachable]))),
    ];
    let mut text = String::new();
    for (title, way) in ways.iter().filter(|(_, way)| !way.is_empty()) {
        writeln!(text, "{title}").unwrap();
        for Line { place, looks } in lines(way, name) {
            writeln!(text, "{}", format!("{place:<29}{looks}").trim_end()).unwrap();
        }
    }
    text
}

/// Up to where the way starts anew: what is not answered is sent again.
fn once<'a>(sightings: impl Iterator<Item = &'a Sighting>) -> Vec<&'a Sighting> {
    let mut way: Vec<&Sighting> = sightings.collect();
    if let Some(again) = way.iter().skip(1).position(|sighting| *sighting == way[0]) {
        way.truncate(again + 1);
    }
    way
}

struct Line {
    place: String,
    looks: String,
}

/// A line for each hook, and one for what each priority made of the packet. How it looks is said where it
/// is new.
fn lines(way: &[&Sighting], name: &dyn Fn(IpAddr) -> String) -> Vec<Line> {
    let looks = |it: &Sighting| format!("{:<22}{}", addresses(&it.packet, name), notes(it));
    let hook = |it: &Sighting| format!("  {}", it.hook);
    let change = |from: &Sighting, who| format!("{:>17} {who}", from.priority);
    let mut lines = vec![Line { place: hook(way[0]), looks: looks(way[0]) }];
    for pair in way.windows(2) {
        let (before, after) = (pair[0], pair[1]);
        let arrives = before.hook != after.hook || before.priority >= after.priority;
        let changed = looks(before) != looks(after);
        // Who takes a packet out of a hook sends it on.
        if changed || (arrives && before.priority != LAST) {
            lines.push(Line { place: change(before, who(before, after)), looks: looks(after) });
        }
        if arrives {
            lines.push(Line { place: hook(after), looks: String::new() });
        }
    }
    let last = way[way.len() - 1];
    if last.priority != LAST {
        lines.push(Line { place: change(last, "kube-ipvs"), looks: "ends here".to_owned() });
    }
    lines
}

/// Who stands where a packet was changed.
fn who(before: &Sighting, after: &Sighting) -> &'static str {
    let new = before.state == "new";
    match (before.hook, before.priority) {
        (_, -200) => "conntrack",
        // What nat chains have decided for the first packet, conntrack does to the others.
        (Hook::Prerouting | Hook::Output, -100) | (Hook::Input | Hook::Postrouting, 100) if !new => {
            "conntrack"
        }
        (Hook::Prerouting | Hook::Output, -100) if after.mark != before.mark => "kube-ipvs",
        (Hook::Prerouting | Hook::Output, -100) => "hostPort",
        (Hook::Postrouting, 100) => "kube-ipvs",
        (Hook::Input, 98 | 99) | (Hook::Output, -99 | -98) | (Hook::Forward, 100) => "IPVS",
        _ => panic!("who made this of it? {before:?}, then {after:?}"),
    }
}

/// Ports of clients are left out.
fn addresses(packet: &Packet, name: &dyn Fn(IpAddr) -> String) -> String {
    let Packet { kind, source, destination } = packet;
    let with_port = |at: &SocketAddr| format!("{}:{}", name(at.ip()), at.port());
    match kind {
        Kind::Syn => format!("{} → {}", name(source.ip()), with_port(destination)),
        Kind::SynAck | Kind::Rst => format!("{} → {}", with_port(source), name(destination.ip())),
        Kind::Unreachable => format!("{} → {} (ICMP)", name(source.ip()), name(destination.ip())),
    }
}

fn notes(sighting: &Sighting) -> String {
    let mut notes = Vec::new();
    // What conntrack has not seen yet has no state, which counts as invalid.
    if sighting.state != "invalid" || sighting.priority > -200 {
        notes.push(sighting.state.clone());
    }
    match sighting.mark {
        0 => {}
        MARK => notes.push("marked".to_owned()),
        other => notes.push(format!("mark {other:#x}")),
    }
    notes.join(", ")
}
