use std::time::Duration;

use ipvs::{Protocol, RealServer, ServiceAddress};
use proptest::prelude::*;
use ratatui::{
    Terminal,
    backend::TestBackend,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
};
use service::ObjectName;

use super::{
    super::{
        super::tests::made_up::{frame, server, traffic, vip},
        view::Next,
    },
    *,
};

/// A view of the made-up traffic.
fn view() -> View {
    let mut view = View::new(Column::Bytes, Duration::from_secs(2));
    view.see(traffic(), None);
    view
}

fn press(view: &mut View, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            'v' => KeyCode::Down,
            'V' => KeyCode::End,
            letter => KeyCode::Char(letter),
        };
        assert_eq!(view.press(KeyEvent::new(code, KeyModifiers::NONE)), Next::Show);
    }
}

/// What is on a terminal of this height, without the blanks at the ends of lines.
fn drawn(view: &mut View, height: u16) -> String {
    drawn_on(view, 93, height)
}

fn drawn_on(view: &mut View, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(view, frame)).unwrap();
    let quoted = terminal.backend().to_string();
    let lines: Vec<_> = quoted.lines().map(|line| line.trim_matches('"').trim_end()).collect();
    lines.join("\n") + "\n"
}

/// The names of the rows that are on it.
fn names(view: &mut View, height: u16) -> Vec<String> {
    let text = drawn(view, height);
    let rows: Vec<_> = text.lines().skip(2).collect();
    let name = |row: &&str| row.get(..20).map(|name| name.trim_end().to_owned());
    rows.iter().take(rows.len() - 1).filter_map(name).filter(|name| !name.is_empty()).collect()
}

#[test]
fn services_are_a_table_with_a_title_above_and_the_keys_below() {
    let expected = "\
kube-ipvs top: 2.0 s, Services 2, real servers 4, active connections 4000403
SERVICE               ACTIVE    SYN   INACT  CONN/S PKT/S IN     OUT   B/S IN     OUT  ANSWER
FWM 7                4000000      -       1  200.0k     2.0M    2.0M   200.0M    2.0G       -
default/web              400     30       3      15      150     150    15.0k  150.0k       -
default/dns                3      0       1       0      1.5     1.5      150    1500       -

q quit  h help  / filter  r real servers  sort n a s i c p b
";
    assert_eq!(drawn(&mut view(), 7), expected);
}

#[test]
fn on_eighty_columns_addresses_are_whole_and_what_is_cut_shows_it() {
    let ipv6 = |last: u16, port| {
        let ip = [0xfd00, 0x10, 0x244, 0x1234, 0x5678, 0x9abc, 0xdef0, last].into();
        (ServiceAddress { protocol: Protocol::Udp, ip, port }, RealServer::masquerade(ip, port))
    };
    let (dns, pod) = (ipv6(0xa, 53), ipv6(0x1234, 65_535));
    let seen = |packets| {
        let (virtual_server, mut real_servers) = server(dns.0, packets, &[(1, 7)]);
        real_servers[0].config = pod.1;
        vec![(virtual_server, real_servers), server(vip(10, 80), packets, &[(2, 9)])]
    };
    let mut view = View::new(Column::Bytes, Duration::from_secs(2));
    view.see(frame(seen(0), seen(300)), None);
    let services = "\
kube-ipvs top: 2.0 s, Services 1, real servers 2, active connections 16
SERVICE                                          ACTIVE   B/S IN     OUT  ANSWER
UDP [fd00:10:244:1234:5678:9abc:def0:a]:53            7    15.0k  150.0k       -
default/web                                           9    15.0k  150.0k       -

q quit  h help  / filter  r real servers  sort n a s i c p b
";
    let with_real_servers = "\
kube-ipvs top: 2.0 s, Services 1, real servers 2, active connections 16
SERVICE                                                   B/S IN     OUT  ANSWER
UDP [fd00:10:244:1234:5678:9abc:def0:a]:53                 15.0k  150.0k       -
  -> UDP [fd00:10:244:1234:5678:9abc:def0:1234]:65535          0       0       -
default/web                                                15.0k  150.0k       -
  -> 10.244.0.2:8080                                           0       0       -

q quit  h help  / filter  r real servers  sort n a s i c p b
";
    let on_sixty = "\
kube-ipvs top: 2.0 s, Services…vers 2, active connections 16
SERVICE                                       B/S IN     OUT
UDP [fd00:10:244:1234:5678:9abc:def0:a]:53     15.0k  150.0k
  -> UDP [fd00:10:244…9abc:def0:1234]:65535        0       0
default/web                                    15.0k  150.0k
  -> 10.244.0.2:8080                               0       0

q quit  h help  / filter  r real servers  sort n a s i c p b
";
    assert_eq!(drawn_on(&mut view, 80, 6), services);
    press(&mut view, "r");
    assert_eq!(drawn_on(&mut view, 80, 8), with_real_servers);
    assert_eq!(drawn_on(&mut view, 60, 8), on_sixty);
}

#[test]
fn before_the_second_look_there_is_nothing_to_show_but_that_it_is_looked() {
    let mut view = View::new(Column::Bytes, Duration::from_secs(2));
    assert!(drawn(&mut view, 5).starts_with("kube-ipvs top: measuring for 2.0 s\n"));
}

#[test]
fn letters_sort_and_r_shows_the_real_servers() {
    let mut view = view();
    press(&mut view, "i");
    assert_eq!(names(&mut view, 7), ["default/web", "FWM 7", "default/dns"]);
    press(&mut view, "nr");
    assert_eq!(
        names(&mut view, 10),
        [
            "FWM 7",
            "  -> 10.244.0.9:8080",
            "default/dns",
            "  -> 10.244.0.5:8080",
            "default/web",
            "  -> 10.244.0.1:8080",
            "  -> 10.244.0.2:8080"
        ]
    );
}

#[test]
fn a_filter_is_typed_and_taken_away() {
    let mut view = view();
    press(&mut view, "/default/wq");
    assert!(drawn(&mut view, 6).ends_with("/default/wq_\n"), "q is a letter here");
    view.press(KeyEvent::new(KeyCode::Backspace, KeyModifiers::NONE));
    press(&mut view, "\n");
    assert_eq!(names(&mut view, 6), ["default/web"]);
    assert!(drawn(&mut view, 6).ends_with("only with \"default/w\"; Esc shows all\n"));
    press(&mut view, "\x1b");
    assert_eq!(names(&mut view, 6).len(), 3);
}

#[test]
fn what_does_not_fit_is_scrolled_to_and_no_further_than_its_end() {
    let mut view = view();
    press(&mut view, "r");
    assert_eq!(names(&mut view, 6), ["FWM 7", "  -> 10.244.0.9:8080", "default/web"]);
    press(&mut view, "v");
    assert_eq!(names(&mut view, 6)[0], "  -> 10.244.0.9:8080");
    press(&mut view, "Vv");
    assert_eq!(names(&mut view, 6), ["  -> 10.244.0.2:8080", "default/dns", "  -> 10.244.0.5:8080"]);
}

#[test]
fn a_terminal_of_any_size_is_drawn_on() {
    let mut view = view();
    for (width, height) in [(1, 1), (2, 2), (20, 3), (300, 100)] {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(&mut view, frame)).unwrap();
    }
}

#[test]
fn help_explains_every_key_and_q_and_control_c_quit() {
    let mut view = view();
    press(&mut view, "?");
    let help = drawn(&mut view, 24);
    for words in ["q, Ctrl-C", "n  ", "a, s, i", "c, p, b", "f  ", "r  ", "/  ", "h, ?", "ANSWER is"] {
        assert!(help.contains(words), "{words} in:\n{help}");
    }
    press(&mut view, "\x1b");
    assert!(drawn(&mut view, 24).contains("default/web"));
    assert_eq!(view.press(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE)), Next::Quit);
    assert_eq!(view.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Next::Quit);
}

#[test]
fn of_names_that_may_be_out_of_date_the_last_line_says_so() {
    let mut view = view();
    view.see(traffic(), Some("names as of 62 s ago: no daemon answers".to_owned()));
    assert!(drawn(&mut view, 6).ends_with("\nnames as of 62 s ago: no daemon answers\n"));
}

#[test]
fn long_names_take_the_place_of_the_least_important_columns() {
    let shown = |longest, sort| Columns::fitting(80, longest, sort).shown;
    assert_eq!(shown(7, Column::Bytes), GOING);
    assert_eq!(shown(15, Column::Bytes), GOING[1..]);
    assert_eq!(shown(32, Column::Bytes), GOING[2..]);
    assert_eq!(shown(47, Column::Inactive), [Column::Inactive, Column::Answer, Column::Bytes]);
    assert_eq!(shown(52, Column::Bytes), [Column::Answer, Column::Bytes]);
    assert_eq!(shown(200, Column::Bytes), [Column::Answer, Column::Bytes], "it is cut all the same");
}

#[test]
fn one_long_name_of_a_service_costs_no_row_its_syn_and_new_connections() {
    let mut traffic = traffic();
    traffic.services[1].service = Some(ObjectName::new("default", "a".repeat(63)));
    let mut view = View::new(Column::Bytes, Duration::from_secs(2));
    view.see(traffic, None);
    let text = drawn_on(&mut view, 80, 7);
    let head = text.lines().nth(1).unwrap();
    assert!(head.contains(" SYN ") && head.contains(" CONN/S ") && text.contains("a…a"), "{text}");
}

#[test]
fn the_longest_address_is_whole_on_eighty_characters() {
    let address = "  -> [fd00:1234:5678:9abc:def0:1234:5678:9abc]:65535";
    assert_eq!(address.len(), LONGEST_ADDRESS);
    assert!(Columns::fitting(80, address.len(), Column::Bytes).name >= LONGEST_ADDRESS);
}

#[test]
fn what_is_cut_keeps_both_ends() {
    assert_eq!(shortened("  -> [fd00::a]:80", 17), "  -> [fd00::a]:80");
    assert_eq!(shortened("  -> [fd00:1234::a]:80", 17), "  -> [fd…4::a]:80");
    assert_eq!(["", "…", "a…", "a…e"], [0, 1, 2, 3].map(|width| shortened("abcde", width))[..]);
}

proptest! {
    #[test]
    fn nothing_is_longer_than_it_may_be_nor_cut_without_a_sign(text in "\\PC*", width in 0_usize..90) {
        let short = shortened(&text, width);
        prop_assert!(short.chars().count() <= width);
        prop_assert!(width == 0 || short == printable_line(&text) || short.contains('…'));
    }

    #[test]
    fn columns_take_no_more_than_there_is(width in 0_usize..300, longest in 0_usize..300) {
        let columns = Columns::fitting(width, longest, Column::Name);
        let numbers: usize = columns.select(WIDTHS).map(|(_, width)| 1 + usize::from(width)).sum();
        prop_assert!(columns.name + numbers == width || (columns.name == 0 && numbers > width));
    }
}
