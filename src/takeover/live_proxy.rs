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

    fn at(at: SocketAddr) -> Option<Self> {
        let answer = ask(at).ok()?;
        let (head, mode) = answer.split_once("\r\n\r\n")?;
        let is_good = head.starts_with("HTTP/1.") && head.split(' ').nth(1) == Some("200");
        let is_word = !mode.is_empty() && mode.chars().all(|c| c.is_ascii_alphabetic());
        (is_good && is_word).then(|| Self { at, mode: mode.to_owned() })
    }
}

impl fmt::Display for LiveProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, mode } = self;
        write!(f, "a proxy in {mode} mode runs on this node: it answers at http://{at}/proxyMode")
    }
}

fn ask(at: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // By HTTP/1.0 the answer is not in chunks, and ends with the connection.
    let question = format!("GET /proxyMode HTTP/1.0\r\nHost: {at}\r\n\r\n");
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
    fn who_has_no_such_page_or_says_anything_else_is_none() {
        assert_eq!(found("HTTP/1.0 404 Not Found\r\n\r\nnot"), None);
        assert_eq!(found("HTTP/1.0 200 OK\r\n\r\n<html></html>"), None);
        assert_eq!(found("SSH-2.0-dropbear\r\n\r\nipvs"), None);
        assert_eq!(found(""), None);
        let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        assert_eq!(LiveProxy::at(nobody), None);
    }
}
