//! Sightings as text: a line for each hook that a packet comes to, and one for each change on the way.

use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
};

use super::sighting::{Hook, Kind, Packet, Sighting};

/// The bit that marks what is to be masqueraded.
const MARK: u32 = 0x4000;

/// Draws the way of the first packet of each kind; `name` gives addresses their names.
pub(crate) fn draw(sightings: &[Sighting], name: &dyn Fn(IpAddr) -> String) -> String {
    let mut text = String::new();
    for (kind, title) in [
        (Kind::Syn, "request"),
        (Kind::SynAck, "reply"),
        (Kind::Rst, "refusal"),
        (Kind::Unreachable, "refusal"),
    ] {
        let way: Vec<&Sighting> = sightings.iter().filter(|it| it.packet.kind == kind).collect();
        if !way.is_empty() {
            writeln!(text, "{title}").unwrap();
            draw_way(&mut text, &once(&way), name);
        }
    }
    text
}

/// Up to where it starts anew: a request that is not answered is sent again.
fn once<'a>(way: &[&'a Sighting]) -> Vec<&'a Sighting> {
    let again = way.iter().skip(1).position(|sighting| *sighting == way[0]);
    way[..again.map_or(way.len(), |at| at + 1)].to_vec()
}

fn draw_way(text: &mut String, way: &[&Sighting], name: &dyn Fn(IpAddr) -> String) {
    let mut line = |place: String, what: &str| writeln!(text, "{}", format!("{place:<30}{what}").trim_end());
    let describe =
        |sighting: &Sighting| format!("{:<26}{}", addresses(&sighting.packet, name), notes(sighting));
    for (index, sighting) in way.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| way[before]);
        let arrives = before.is_none_or(|it| it.hook != sighting.hook || it.priority >= sighting.priority);
        if arrives {
            line(format!("  {}", sighting.hook), &describe(sighting)).unwrap();
        } else if let Some(before) = before.filter(|it| !looks_like(it, sighting)) {
            let place = format!("{:>18} {}", before.priority, who(before, sighting));
            line(place, &describe(sighting)).unwrap();
        }
    }
}

fn looks_like(one: &Sighting, other: &Sighting) -> bool {
    one.packet == other.packet && notes(one) == notes(other)
}

/// Who stands where a packet was changed.
fn who(before: &Sighting, after: &Sighting) -> &'static str {
    match (before.hook, before.priority) {
        (_, -200) => "conntrack",
        (Hook::Prerouting | Hook::Output, -100) if after.mark != before.mark => "kube-ipvs",
        (Hook::Postrouting, 100) if before.state == "new" => "kube-ipvs",
        (Hook::Prerouting | Hook::Output, -100) | (Hook::Input | Hook::Postrouting, 100) => "nat",
        (Hook::Input, 98 | 99) | (Hook::Output, -99 | -98) | (Hook::Forward, 99 | 100) => "IPVS",
        place => panic!("{place:?}: {before:?} became {after:?}"),
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
    // Before conntrack there is no state.
    if sighting.priority > -200 {
        notes.push(sighting.state.clone());
    }
    match sighting.mark {
        0 => {}
        MARK => notes.push("marked".to_owned()),
        other => notes.push(format!("mark {other:#x}")),
    }
    notes.join(", ")
}
