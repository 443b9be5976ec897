//! The ports that the daemon will listen at, and which programs use them. Read from the kernel's lists:
//! binding one would take it from another program.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use super::BeforeStart;
use crate::{finding::Finding, takeover::live_proxy};

/// An address that the daemon will listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WantedPort {
    /// What is served there.
    what: String,
    address: SocketAddr,
    /// Whether the daemon ends if it cannot listen there.
    hard_fail: bool,
}

/// The files in which the kernel lists listeners.
const LISTENERS: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];

const SUBJECT: &str = "ports";

/// The configured ports and those of Services' health checks, where the configuration is known.
pub(super) fn check(node: &mut BeforeStart<'_>) -> Vec<Finding> {
    let Some(settings) = node.settings else { return Vec::new() };
    let hard_fail = settings.bind_address_hard_fail;
    let configured =
        [("health checks", settings.healthz_bind_address), ("metrics", settings.metrics_bind_address)];
    let configured = configured.into_iter().filter_map(|(what, address)| {
        Some(WantedPort { what: what.to_owned(), address: address?, hard_fail })
    });
    let of_services = node.state.into_iter().flat_map(|state| state.reports().health_checks());
    let of_services = of_services.map(|(service, health_check)| WantedPort {
        what: format!("health checks of {service}"),
        address: SocketAddr::from(([0; 4], health_check.port.get())),
        hard_fail: false,
    });
    let wanted: Vec<_> = configured.chain(of_services).collect();
    let texts = LISTENERS.iter().filter_map(|path| fs::read_to_string(path).ok());
    let listening: Vec<_> = texts.flat_map(|text| listeners(&text).collect::<Vec<_>>()).collect();
    usable(&wanted, &listening, live_proxy::listens)
}

/// One finding for each address in use, and one for the rest. `is_proxy` tells whether a listener is a proxy
/// of Services: that one gives the port back.
fn usable(
    wanted: &[WantedPort],
    listening: &[SocketAddr],
    is_proxy: impl Fn(SocketAddr) -> bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut free = 0;
    for port in wanted {
        match listening.iter().find(|listener| conflict(**listener, port.address)) {
            None => free += 1,
            Some(listener) => findings.push(taken(port, *listener, is_proxy(*listener))),
        }
    }
    if free > 0 {
        findings.push(Finding::ok(SUBJECT, format!("{free} of {} needed ports are free", wanted.len())));
    }
    findings
}

fn taken(
    WantedPort { what, address, hard_fail }: &WantedPort,
    listener: SocketAddr,
    is_proxy: bool,
) -> Finding {
    let port = format!("port {}", address.port());
    if is_proxy {
        return Finding::note(
            port,
            format!("{what}: a proxy listens at {listener}, and frees it when it stops"),
        );
    }
    let text = format!("{what}: a program that is not a proxy listens at {listener}");
    let finding = if *hard_fail {
        Finding::problem(&port, format!("{text}: the daemon exits, as bindAddressHardFail asks"))
    } else {
        Finding::warning(&port, format!("{text}; the daemon serves Services without it and tries again"))
    };
    finding.remedy(format!("ss -ltnp 'sport = :{}' shows the program", address.port()))
}

/// Whether one listener keeps another one from listening. One at :: may take IPv4 too, which /proc does not
/// show.
fn conflict(listener: SocketAddr, wanted: SocketAddr) -> bool {
    let is_any = |address: SocketAddr| address.ip().is_unspecified();
    listener.port() == wanted.port() && (listener.ip() == wanted.ip() || is_any(listener) || is_any(wanted))
}

/// The addresses of listeners, from the text of /proc/net/tcp or /proc/net/tcp6. Lines that cannot be read
/// are left out.
fn listeners(text: &str) -> impl Iterator<Item = SocketAddr> {
    /// `TCP_LISTEN`
    const LISTEN: &str = "0A";
    text.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next()?;
        (fields.nth(1)? == LISTEN).then(|| address(local))?
    })
}

/// `0100007F:2809` is 127.0.0.1:10249: words of four bytes in the byte order of the machine (`get_tcp4_sock`
/// in net/ipv4/tcp_ipv4.c).
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| -> Option<[u8; 4]> {
        let digits = ip.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;

    fn wanted(what: &str, address: &str, hard_fail: bool) -> WantedPort {
        WantedPort { what: what.to_owned(), address: address.parse().unwrap(), hard_fail }
    }

    fn found(listening: &[&str], is_proxy: bool, hard_fail: bool) -> Vec<(Severity, String)> {
        let wanted = [
            wanted("health checks", "0.0.0.0:10256", hard_fail),
            wanted("metrics", "127.0.0.1:10249", hard_fail),
        ];
        let listening: Vec<SocketAddr> = listening.iter().map(|address| address.parse().unwrap()).collect();
        let findings = usable(&wanted, &listening, |_| is_proxy);
        findings.into_iter().map(|it| (it.severity, format!("{}: {}", it.subject, it.what))).collect()
    }

    #[test]
    fn port_of_a_proxy_is_a_note_and_of_anybody_else_a_warning_or_a_problem() {
        let free = (Severity::Ok, "ports: 2 of 2 needed ports are free".to_owned());
        assert_eq!(found(&["0.0.0.0:22"], false, false), [free]);
        let of_a_proxy = found(&["[::]:10256", "127.0.0.1:10249"], true, false);
        assert_eq!(
            of_a_proxy,
            [
                (
                    Severity::Note,
                    "port 10256: health checks: a proxy listens at [::]:10256, and frees it when it stops"
                ),
                (
                    Severity::Note,
                    "port 10249: metrics: a proxy listens at 127.0.0.1:10249, and frees it when it stops"
                ),
            ]
            .map(|(severity, text)| (severity, text.to_owned()))
        );
        let of_another = found(&["127.0.0.1:10256"], false, false);
        assert_eq!((of_another[0].0, of_another[1].0), (Severity::Warning, Severity::Ok), "{of_another:?}");
        assert_eq!(found(&["127.0.0.1:10256"], false, true)[0].0, Severity::Problem);
    }

    #[test]
    fn same_port_at_another_address_is_free_unless_one_of_the_two_is_every_address() {
        let at = |address: &str| address.parse::<SocketAddr>().unwrap();
        assert!(!conflict(at("127.0.0.1:10249"), at("192.0.2.7:10249")));
        assert!(!conflict(at("127.0.0.1:10249"), at("127.0.0.1:10250")));
        assert!(conflict(at("0.0.0.0:10249"), at("192.0.2.7:10249")));
        assert!(conflict(at("[::]:10249"), at("192.0.2.7:10249")));
        assert!(conflict(at("192.0.2.7:10249"), at("0.0.0.0:10249")));
    }

    #[test]
    fn listeners_are_read_from_the_kernel_s_list_and_connections_are_not() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        let line = |local: &str, state: &str| {
            format!(
                "   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 1\n"
            )
        };
        let hex = |bytes: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(bytes));
        let loopback = format!("{}:2809", hex([127, 0, 0, 1]));
        let loopback6 = format!("{0}{0}{0}{1}:2810", hex([0; 4]), hex([0, 0, 0, 1]));
        let text = [
            text.to_owned(),
            line(&loopback, "0A"),
            line(&loopback, "01"),
            line(&loopback6, "0A"),
            line("nonsense", "0A"),
            "\n".to_owned(),
        ]
        .concat();
        let found: Vec<_> = listeners(&text).map(|address| address.to_string()).collect();
        assert_eq!(found, ["127.0.0.1:10249", "[::1]:10256"]);
    }
}
