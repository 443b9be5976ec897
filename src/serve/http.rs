//! Serves pages by HTTP: small answers without TLS, as kube-proxy does it.
//!
//! Anyone who reaches the node can ask, so a client can neither stay long nor send much: the request's body is not
//! read, its head must come soon, and the number of connections is limited. An idle client gives way to a new one.

mod connection_limit;
pub(crate) mod endpoint;

use std::{
    convert::Infallible,
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ::http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{
    body::{Buf as _, Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::errno::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    select,
    time::{sleep, timeout},
};
use tracing::debug;

pub(crate) use connection_limit::ConnectionLimit;
use connection_limit::{Connections, RequestReceived};
pub(crate) use endpoint::RETRY;

/// The time limit for a request's head.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time limit of a connection, which serves one request.
const LONGEST_CONNECTION: Duration = Duration::from_secs(15);
/// The most bytes of a request's head.
const LONGEST_HEAD: usize = 16 * 1024;

/// A response.
pub type Page = Response<String>;

/// Answers requests.
pub trait Pages: Send + Sync + 'static {
    /// The end of the page for this path: what takes time or is large. All clients share it, however long they take
    /// to read it.
    fn appendix(&self, _path: &str) -> impl Future<Output = Bytes> + Send {
        async { Bytes::new() }
    }

    /// The response to a request for this path. Must not block.
    fn page(&self, method: &Method, path: &str) -> Page;
}

/// A page whose content type browsers must not guess.
pub fn page(status: StatusCode, content_type: &'static str, body: String) -> Page {
    let mut page = Response::new(body);
    *page.status_mut() = status;
    let headers = page.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    page
}

/// The response of Go's `http.NotFound`.
pub fn not_found() -> Page {
    page(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "404 page not found\n".to_owned())
}

/// Listens at an address. 0.0.0.0 means every address of both families, as in Go: a load balancer may ask by IPv6.
/// Must be called within a tokio runtime.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => {
            let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, address.port()));
            match open(both, false) {
                // A kernel without IPv6.
                Err(error) if error.raw_os_error() == Some(Errno::EAFNOSUPPORT as i32) => {
                    open(address, false)
                }
                result => result,
            }
        }
        _ => open(address, false),
    }
}

/// Listens at an address. 0.0.0.0 and :: mean every address of that family only.
pub fn listen_in_family(address: SocketAddr) -> io::Result<TcpListener> {
    open(address, true)
}

fn open(address: SocketAddr, alone: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    // Connections in TIME_WAIT must not keep the port.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(alone)?;
    }
    socket.bind(&address.into())?;
    socket.listen(128)?;
    TcpListener::from_std(socket.into())
}

/// Serves pages until the future is dropped, which also ends the connections.
pub(crate) async fn serve(
    listener: TcpListener,
    pages: Arc<impl Pages>,
    limit: ConnectionLimit,
) -> Infallible {
    let mut connections = Connections::within(limit);
    loop {
        select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => connections.admit(|received| serve_connection(stream, Arc::clone(&pages), received)),
                Err(error) => {
                    // Out of file descriptors, most likely.
                    debug!(%error, "cannot accept");
                    sleep(Duration::from_secs(1)).await;
                }
            },
            Some(()) = connections.next_ended() => {}
        }
    }
}

/// Serves one connection. Sets `received` when the request is here.
async fn serve_connection(stream: TcpStream, pages: Arc<impl Pages>, received: RequestReceived) {
    let answer = service_fn(move |request: Request<Incoming>| {
        received.set();
        let pages = Arc::clone(&pages);
        async move {
            let path = request.uri().path();
            let appendix = pages.appendix(path).await;
            let page = pages.page(request.method(), path);
            Ok::<_, Infallible>(page.map(|text| Full::new(Bytes::from(text).chain(appendix))))
        }
    });
    let connection = async {
        // hyper takes 8 KiB to read into: a client that says nothing shall not have them.
        timeout(PATIENCE, stream.readable()).await.ok()?.ok()?;
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .keep_alive(false)
            .max_buf_size(LONGEST_HEAD)
            .serve_connection(TokioIo::new(stream), answer);
        connection.await.ok()
    };
    // A client's error does not matter.
    drop(timeout(LONGEST_CONNECTION, connection).await);
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use socket2::SockRef;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        time::Instant,
    };

    use super::{connection_limit::CLIENTS, *};

    struct Echo;

    impl Pages for Echo {
        fn page(&self, method: &Method, path: &str) -> Page {
            page(StatusCode::OK, "text/plain", format!("{method} {path}"))
        }

        async fn appendix(&self, path: &str) -> Bytes {
            if path == "/long" { Bytes::from_static(b", and more") } else { Bytes::new() }
        }
    }

    /// Asks, and returns the whole answer.
    async fn ask(at: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn a_page_is_shown_with_its_headers() {
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let at = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(listener, Arc::new(Echo), ConnectionLimit::default()));
        let answer = ask(at, "POST /a?b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("content-type: text/plain\r\n"), "{answer}");
        assert!(answer.contains("x-content-type-options: nosniff\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nPOST /a"), "{answer}");
        server.abort();
    }

    #[tokio::test]
    async fn what_follows_a_page_is_part_of_it() {
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let at = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(listener, Arc::new(Echo), ConnectionLimit::default()));
        let answer = ask(at, "GET /long HTTP/1.0\r\n\r\n").await;
        assert!(answer.contains("content-length: 19\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nGET /long, and more"), "{answer}");
        server.abort();
    }

    #[tokio::test]
    async fn what_is_not_a_request_ends_its_connection_alone() {
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let at = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(listener, Arc::new(Echo), ConnectionLimit::default()));
        let answer = ask(at, "\u{1}\u{2}\r\n\r\n").await;
        assert!(!answer.contains("200 OK"), "{answer}");
        let answer = ask(at, "GET / HTTP/1.0\r\n\r\n").await;
        assert!(answer.ends_with("GET /"), "{answer}");
        server.abort();
    }

    /// More than there is room for, that say nothing or not enough.
    async fn silent_clients(at: SocketAddr) -> Vec<TcpStream> {
        let mut silent = Vec::new();
        for _ in 0..=CLIENTS {
            let mut client = TcpStream::connect(at).await.unwrap();
            client.write_all(b"GET / HTTP/1.0\r\n").await.unwrap();
            silent.push(client);
        }
        silent
    }

    #[tokio::test]
    async fn clients_that_do_not_ask_give_way_to_those_who_come_the_oldest_first() {
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let at = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(listener, Arc::new(Echo), ConnectionLimit::default()));
        let begin = Instant::now();
        let mut silent = silent_clients(at).await;
        assert!(ask(at, "GET / HTTP/1.0\r\n\r\n").await.ends_with("GET /"));
        for client in &mut silent[..2] {
            let mut said = Vec::new();
            client.read_to_end(&mut said).await.unwrap_or_default();
            assert!(said.is_empty(), "{said:?}");
        }
        let last = silent.last_mut().unwrap();
        last.write_all(b"\r\n").await.unwrap();
        let mut answer = String::new();
        last.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("GET /"), "{answer}");
        assert!(begin.elapsed() < PATIENCE, "they have left by themselves");
        server.abort();
    }

    /// What does not fit into the buffers of a connection.
    struct Large;

    impl Pages for Large {
        fn page(&self, _: &Method, _: &str) -> Page {
            page(StatusCode::OK, "text/plain", "x".repeat(Self::SIZE))
        }
    }

    impl Large {
        const SIZE: usize = 1 << 19;

        /// Where the kernel does not take much of it off the server's hands.
        fn listen() -> TcpListener {
            let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
            SockRef::from(&listener).set_send_buffer_size(1 << 14).unwrap();
            listener
        }
    }

    #[tokio::test]
    async fn a_client_that_takes_its_answer_does_not_give_way_to_those_who_say_nothing() {
        let listener = Large::listen();
        let at = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(listener, Arc::new(Large), ConnectionLimit::default()));
        let mut client = TcpStream::connect(at).await.unwrap();
        client.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = vec![0; 1];
        client.read_exact(&mut answer).await.unwrap();
        let silent = silent_clients(at).await;
        client.read_to_end(&mut answer).await.unwrap();
        assert!(answer.len() > Large::SIZE, "{} bytes", answer.len());
        drop(silent);
        server.abort();
    }

    #[tokio::test]
    async fn clients_that_take_no_answer_are_limited_and_keep_no_other_out() {
        let listener = Large::listen();
        let at = listener.local_addr().unwrap();
        let pages = Arc::new(Large);
        let server = tokio::spawn(serve(listener, Arc::clone(&pages), ConnectionLimit::default()));
        let begin = Instant::now();
        let mut deaf = Vec::new();
        for _ in 0..CLIENTS + 50 {
            let mut client = TcpStream::connect(at).await.unwrap();
            client.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
            deaf.push(client);
            sleep(Duration::from_millis(2)).await;
            // Each visitor has the pages, and so have the server and the test.
            let connections = Arc::strong_count(&pages) - 2;
            assert!(connections <= CLIENTS, "{connections}");
        }
        assert!(Arc::strong_count(&pages) >= CLIENTS, "they have had their answers");
        let mut newcomer = TcpStream::connect(at).await.unwrap();
        assert!(ask(at, "GET / HTTP/1.0\r\n\r\n").await.len() > Large::SIZE);
        newcomer.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        newcomer.read_to_end(&mut answer).await.unwrap();
        assert!(answer.len() > Large::SIZE, "{} bytes", answer.len());
        assert!(begin.elapsed() < LONGEST_CONNECTION, "they have left by themselves");
        server.abort();
    }

    #[tokio::test]
    async fn at_all_ipv4_addresses_means_at_all_addresses() {
        let listener = listen((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(serve(listener, Arc::new(Echo), ConnectionLimit::default()));
        let get = "GET / HTTP/1.0\r\n\r\n";
        assert!(ask((Ipv4Addr::LOCALHOST, port).into(), get).await.ends_with("GET /"));
        if std::path::Path::new("/proc/net/if_inet6").exists() {
            assert!(ask((Ipv6Addr::LOCALHOST, port).into(), get).await.ends_with("GET /"));
        }
        server.abort();
    }

    #[tokio::test]
    async fn in_its_family_an_address_leaves_the_port_of_the_other_one_free() {
        let Ok(six) = listen_in_family((Ipv6Addr::UNSPECIFIED, 0).into()) else { return };
        let port = six.local_addr().unwrap().port();
        let four = listen_in_family((Ipv4Addr::UNSPECIFIED, port).into()).unwrap();
        assert_eq!(four.local_addr().unwrap().port(), port);
        assert!(listen_in_family((Ipv4Addr::UNSPECIFIED, port).into()).is_err(), "taken");
    }
}
