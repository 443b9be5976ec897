//! An API server that costs next to nothing: all its objects are encoded beforehand.
//!
//! It serves WatchLists, one Node and everything else that kube-ipvs and kube-proxy watch, and records when
//! the last object of each list was sent. To anything else it answers "not found". It uses HTTP without TLS,
//! with one thread per connection.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use testkit::kernel_baseline::Size;
use testkit::lab::Host;
use testkit::objects::{self, event};

/// What can be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Resource {
    Nodes,
    Services,
    EndpointSlices,
    ServiceCidrs,
}

impl Resource {
    /// The resource at the end of a path, with the type of its bookmarks.
    fn at(path: &str) -> Option<(Self, &'static str, &'static str)> {
        match path {
            "/api/v1/nodes" => Some((Self::Nodes, "v1", "Node")),
            "/api/v1/services" => Some((Self::Services, "v1", "Service")),
            "/apis/discovery.k8s.io/v1/endpointslices" => {
                Some((Self::EndpointSlices, "discovery.k8s.io/v1", "EndpointSlice"))
            }
            "/apis/networking.k8s.io/v1/servicecidrs" => {
                Some((Self::ServiceCidrs, "networking.k8s.io/v1", "ServiceCIDR"))
            }
            _ => None,
        }
    }
}

/// How a list, or more than one, was sent: from the first request to the last object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) asked: SystemTime,
    pub(super) complete: SystemTime,
}

/// The running server. Its threads end with the process.
pub(super) struct Api {
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    node: Value,
    /// Each list as the events that begin a watch.
    lists: BTreeMap<Resource, String>,
    watchers: Mutex<Vec<(Resource, Sender<Arc<str>>)>>,
    sent: Mutex<BTreeMap<Resource, Sent>>,
    /// When the first answer began.
    first_byte: OnceLock<SystemTime>,
}

impl Api {
    /// Serves a cluster of this size on the loopback of `host`.
    pub(super) fn start(host: &Host, size: Size) -> Result<Self> {
        let node = objects::node(host.ipv4);
        let lists = BTreeMap::from([
            (Resource::Nodes, event("ADDED", &node)),
            (Resource::Services, objects::added((0..size.services).map(objects::service))),
            (
                Resource::EndpointSlices,
                objects::added((0..size.services).map(|number| objects::slice(size, number))),
            ),
        ]);
        let shared = Arc::new(Shared {
            node,
            lists,
            watchers: Mutex::default(),
            sent: Mutex::default(),
            first_byte: OnceLock::new(),
        });
        let listener = host.inside(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))??;
        let address = listener.local_addr()?;
        let served = Arc::clone(&shared);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let shared = Arc::clone(&served);
                // A client that disconnects is not a failure.
                thread::spawn(move || drop(shared.serve(connection)));
            }
        });
        Ok(Self { address, shared })
    }

    /// How a program names it.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sends a changed EndpointSlice to all watches.
    pub(super) fn change(&self, slice: &Value) {
        let event: Arc<str> = event("MODIFIED", slice).into();
        let mut watchers = self.shared.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|(resource, watcher)| {
            *resource != Resource::EndpointSlices || watcher.send(Arc::clone(&event)).is_ok()
        });
    }

    /// When the first byte of the first answer was sent.
    pub(super) fn first_byte(&self) -> Result<SystemTime> {
        self.shared.first_byte.get().copied().context("nothing has been asked for")
    }

    /// How the lists of Services and EndpointSlices were last sent.
    pub(super) fn lists(&self) -> Result<Sent> {
        let sent = self.shared.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |resource| {
            sent.get(&resource).copied().with_context(|| format!("{resource:?} have not been asked for"))
        };
        let (services, slices) = (of(Resource::Services)?, of(Resource::EndpointSlices)?);
        Ok(Sent { asked: services.asked.min(slices.asked), complete: services.complete.max(slices.complete) })
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        let asked = SystemTime::now();
        let target = request(&stream)?;
        self.first_byte.get_or_init(SystemTime::now);
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        if path == "/api/v1/nodes/node" {
            return respond(&mut stream, "200 OK", &self.node);
        }
        let watches = query.split('&').any(|word| matches!(word, "watch=true" | "watch=1"));
        let Some((resource, version, kind)) = Resource::at(path).filter(|_| watches) else {
            let status = json!({
                "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404,
            });
            return respond(&mut stream, "404 Not Found", &status);
        };
        // Subscribes before anything is sent: no change may be lost between the list, or only the head, and
        // the rest.
        let changes = self.subscribe(resource);
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")?;
        if query.contains("sendInitialEvents=true") {
            let list = self.lists.get(&resource).map_or("", String::as_str);
            stream.write_all(list.as_bytes())?;
            // The time is taken before the end is sent: a client that has read it may have synced by the time
            // that this thread runs again.
            let sent = Sent { asked, complete: SystemTime::now() };
            self.sent.lock().unwrap_or_else(PoisonError::into_inner).insert(resource, sent);
            stream.write_all(objects::end_of_list(version, kind).as_bytes())?;
        }
        for change in changes {
            stream.write_all(change.as_bytes())?;
        }
        Ok(())
    }

    fn subscribe(&self, resource: Resource) -> Receiver<Arc<str>> {
        let (sender, receiver) = channel();
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner).push((resource, sender));
        receiver
    }
}

/// Reads a request to its end, and returns its path.
fn request(stream: &TcpStream) -> Result<String> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((name, value)) = header.split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse()?;
        }
    }
    std::io::copy(&mut reader.take(length), &mut std::io::sink())?;
    Ok(first.split(' ').nth(1).unwrap_or_default().to_owned())
}

fn respond(stream: &mut TcpStream, status: &str, body: &Value) -> Result<()> {
    let body = body.to_string();
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )?;
    Ok(())
}
