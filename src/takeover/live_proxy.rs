//! Finds a proxy that runs on this node, ours or another: kube-proxy serves its mode beside its metrics.

use std::{
    fmt,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    time::Duration,
};

/// Where kube-proxy shows its metrics by default, in either family (`metricsBindAddress`).
const METRICS: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10_249),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 10_249),
];

/// The timeout of connecting, writing and reading.
const PATIENCE: Duration = Duration::from_secs(2);

/// The limit of an answer, in bytes.
const LONGEST_ANSWER: u64 = 4096;

/// A proxy that answered.
#[derive(Debug, PartialEq, Eq)]
pub struct LiveProxy {
    at: SocketAddr,
    mode: String,
}

impl LiveProxy {
    /// The proxy of this network namespace, if it answers at the default address.
    pub fn find() -> Option<Self> {
        METRICS.into_iter().find_map(Self::at)
    }

    /// The mode of the proxy: `iptables`, `ipvs`, `nftables`.
    pub fn mode(&self) -> &str {
        &self.mode
    }

    /// One that answers at the usual address.
    #[cfg(test)]
    pub(crate) fn in_mode(mode: &str) -> Self {
        let [at, _] = METRICS;
        Self { at, mode: mode.to_owned() }
    }

    fn at(at: SocketAddr) -> Option<Self> {
        let answer = ask(at, "/proxyMode").ok()?;
        let (head, mode) = answer.split_once("\r\n\r\n")?;
        let is_good = head.starts_with("HTTP/1.") && head.split(' ').nth(1) == Some("200");
        let is_word = !mode.is_empty() && mode.chars().all(|c| c.is_ascii_alphabetic());
        (is_good && is_word).then(|| Self { at, mode: mode.to_owned() })
    }
}

/// What a proxy says at the port of its metrics.
const MODES: [&str; 3] = ["ipvs", "iptables", "nftables"];
/// Fields of its health checks, of the node and of one Service (kube-proxy's pkg/proxy/healthcheck).
const FIELDS: [&str; 2] = ["\"lastUpdated\"", "\"localEndpoints\""];

/// Whether a proxy, ours or another, listens at this address, for any of its purposes.
pub(crate) fn listens(at: SocketAddr) -> bool {
    let is_a_proxys = |answer: String| {
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        MODES.contains(&body) || FIELDS.iter().any(|field| body.contains(field))
    };
    ["/healthz", "/proxyMode"].into_iter().filter_map(|page| ask(at, page).ok()).any(is_a_proxys)
}

impl fmt::Display for LiveProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, mode } = self;
        write!(f, "a proxy in {mode} mode runs on this node: it answers at http://{at}/proxyMode")
    }
}

fn ask(at: SocketAddr, page: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // By HTTP/1.0 the answer is not in chunks, and ends with the connection.
    let question = format!("GET {page} HTTP/1.0\r\nHost: {at}\r\n\r\n");
    stream.write_all(question.as_bytes())?;
    let mut answer = String::new();
    stream.take(LONGEST_ANSWER).read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    /// What is found where this is answered.
    fn found(answer: &'static str) -> Option<String> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut asked = [0; 512];
            let length = client.read(&mut asked).unwrap();
            assert!(asked[..length].starts_with(b"GET /proxyMode HTTP/1.0\r\n"));
            client.write_all(answer.as_bytes()).unwrap();
        });
        let found = LiveProxy::at(at);
        server.join().unwrap();
        found.map(|proxy| proxy.to_string().replace(&at.to_string(), "ADDRESS"))
    }

    #[test]
    fn who_tells_its_mode_is_a_proxy() {
        let description =
            "a proxy in nftables mode runs on this node: it answers at http://ADDRESS/proxyMode";
        let answer = "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nnftables";
        assert_eq!(found(answer).as_deref(), Some(description));
    }

    #[test]
    fn port_of_a_proxy_is_known_by_its_health_checks_and_its_mode_whatever_their_result() {
        let listens_who_answers = |answer: &'static str| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let at = listener.local_addr().unwrap();
            thread::spawn(move || {
                while let Ok((mut client, _)) = listener.accept() {
                    let _ = client.read(&mut [0; 512]);
                    let _ = client.write_all(answer.as_bytes());
                }
            });
            listens(at)
        };
        let unhealthy = "HTTP/1.0 503 Service Unavailable\r\n\r\n{\"lastUpdated\": \"\",\"healthy\": false}";
        assert!(listens_who_answers(unhealthy));
        assert!(listens_who_answers(
            "HTTP/1.0 200 OK\r\n\r\n{\n\t\"service\": {},\n\t\"localEndpoints\": 1\n}"
        ));
        assert!(listens_who_answers("HTTP/1.0 200 OK\r\n\r\niptables"));
        assert!(!listens_who_answers("HTTP/1.0 200 OK\r\n\r\niptables is our favourite"));
        assert!(!listens_who_answers("HTTP/1.0 200 OK\r\n\r\nok"));
    }

    #[test]
    fn who_has_no_such_page_or_says_anything_else_is_none() {
        assert_eq!(found("HTTP/1.0 404 Not Found\r\n\r\nnot"), None);
        assert_eq!(found("HTTP/1.0 200 OK\r\n\r\n<html></html>"), None);
        assert_eq!(found("SSH-2.0-dropbear\r\n\r\nipvs"), None);
        assert_eq!(found(""), None);
        let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        assert_eq!(LiveProxy::at(closed), None);
    }
}
