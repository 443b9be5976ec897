//! Connections that IPVS forgets before conntrack does.
//!
//! IPVS forgets a TCP connection after 15 minutes without a packet, conntrack after a day or five. What comes
//! after that is no SYN, so IPVS lets it pass, to the VIP, which is an address of this node: the node knows no
//! such connection and resets it. A UDP exchange is sent to whichever real server is next.
//!
//! A kernel is like this unless somebody changes it, and most programs never notice: it is worth knowing, and
//! nothing is broken. Flags and fields of the configuration file change it where a program does notice.

use ipvs::Timeouts;

use super::{Advice, Cause, Severity};

/// What conntrack calls the timeouts that [`Timeouts`] has, in the same order.
pub(super) const OF_CONNTRACK: [&str; 3] = [
    "net.netfilter.nf_conntrack_tcp_timeout_established",
    "net.netfilter.nf_conntrack_tcp_timeout_fin_wait",
    "net.netfilter.nf_conntrack_udp_timeout_stream",
];

/// What they are the timeouts of.
const OF: [&str; 3] = ["TCP", "half-closed TCP", "UDP"];

/// What sets them.
const FLAGS: [&str; 3] = ["--ipvs-tcp-timeout", "--ipvs-tcpfin-timeout", "--ipvs-udp-timeout"];

/// Compares the timeouts in seconds; those of conntrack, in the order of [`OF_CONNTRACK`], as far as they
/// are known.
pub(super) fn check(ipvs: Timeouts, conntrack: [Option<u32>; 3]) -> Option<Advice> {
    let seconds = [ipvs.tcp, ipvs.tcp_fin, ipvs.udp];
    let (mut sooner, mut longer) = (Vec::new(), Vec::new());
    for (((of, flag), ipvs), conntrack) in OF.iter().zip(FLAGS).zip(seconds).zip(conntrack) {
        if let Some(conntrack) = conntrack.filter(|conntrack| ipvs < *conntrack) {
            sooner.push(format!("{of} after {ipvs} s (conntrack: {conntrack} s)"));
            longer.push(format!("{flag}={conntrack}s"));
        }
    }
    (!sooner.is_empty()).then(|| Advice {
        severity: Severity::Note,
        cause: Cause::Timeouts,
        subject: "IPVS".to_owned(),
        what: format!(
            "IPVS forgets idle connections sooner than conntrack does, and what is sent then is reset or goes \
             to another pod: {}",
            sooner.join(", ")
        ),
        remedy: format!("keepalives that come sooner, or {}", longer.join(" ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Timeouts = Timeouts::UNCHANGED.tcp(900).tcp_fin(120).udp(300);

    fn advice(ipvs: Timeouts, conntrack: [Option<u32>; 3]) -> Option<(String, String)> {
        check(ipvs, conntrack).map(|advice| (advice.what, advice.remedy))
    }

    #[test]
    fn a_kernel_as_it_comes_forgets_tcp_connections_and_that_is_a_note_and_no_warning() {
        let advice = check(USUAL, [Some(432_000), Some(120), Some(120)]).unwrap();
        assert_eq!(advice.severity, Severity::Note);
        assert!(advice.what.ends_with(": TCP after 900 s (conntrack: 432000 s)"), "{}", advice.what);
        assert_eq!(advice.remedy, "keepalives that come sooner, or --ipvs-tcp-timeout=432000s");
    }

    #[test]
    fn each_timeout_is_compared_with_its_own_of_conntrack() {
        let (what, remedy) = advice(USUAL, [Some(86_400), Some(3_600), Some(301)]).unwrap();
        assert!(
            what.ends_with(
                ": TCP after 900 s (conntrack: 86400 s), half-closed TCP after 120 s (conntrack: 3600 s), \
                 UDP after 300 s (conntrack: 301 s)"
            ),
            "{what}"
        );
        assert_eq!(
            remedy,
            "keepalives that come sooner, or --ipvs-tcp-timeout=86400s --ipvs-tcpfin-timeout=3600s \
             --ipvs-udp-timeout=301s"
        );
    }

    #[test]
    fn timeouts_that_are_as_long_or_longer_and_those_nobody_knows_are_not_mentioned() {
        assert_eq!(advice(USUAL, [Some(900), Some(120), Some(300)]), None);
        assert_eq!(advice(USUAL, [None; 3]), None, "conntrack is not loaded");
    }
}
