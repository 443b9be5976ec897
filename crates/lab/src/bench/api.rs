//! An API server that costs next to nothing: all its objects are encoded beforehand.
//!
//! It serves lists, WatchLists, one Node and everything else that kube-ipvs and kube-proxy watch, in protobuf, which
//! both ask for, and records when the last object of each list was sent. As a real one it compresses lists. To anything
//! else it answers "not found". It uses HTTP without TLS, with one thread per connection.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::SystemTime,
};

use anyhow::{Context as _, Result};
use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use testkit::{kernel_baseline::Size, lab::Host, objects, protobuf};

/// What can be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Resource {
    Nodes,
    Services,
    EndpointSlices,
    ServiceCidrs,
}

impl Resource {
    /// The resource at the end of a path.
    fn at(path: &str) -> Option<Self> {
        match path {
            "/api/v1/nodes" => Some(Self::Nodes),
            "/api/v1/services" => Some(Self::Services),
            "/apis/discovery.k8s.io/v1/endpointslices" => Some(Self::EndpointSlices),
            "/apis/networking.k8s.io/v1/servicecidrs" => Some(Self::ServiceCidrs),
            _ => None,
        }
    }

    /// The kind of its objects.
    const fn kind(self) -> &'static str {
        match self {
            Self::Nodes => "Node",
            Self::Services => "Service",
            Self::EndpointSlices => "EndpointSlice",
            Self::ServiceCidrs => "ServiceCIDR",
        }
    }
}

/// How a list, or more than one, was sent: from the first request to the last object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) asked: SystemTime,
    pub(super) complete: SystemTime,
}

/// What it serves.
pub(super) struct Objects {
    /// The Node that the programs run on.
    pub(super) node: Value,
    pub(super) services: Vec<Value>,
    pub(super) slices: Vec<Value>,
}

impl Objects {
    /// A cluster of this size, in which the programs' node has these addresses.
    pub(super) fn of_size(size: Size, node: &[IpAddr]) -> Self {
        Self {
            node: objects::node(node, &["10.244.0.0/24"]),
            services: (0..size.services).map(objects::service).collect(),
            slices: (0..size.services).map(|number| objects::slice(size, number)).collect(),
        }
    }
}

/// The running server. Its threads end with the process.
pub(super) struct Api {
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    node: Value,
    lists: BTreeMap<Resource, Encoded>,
    watchers: Mutex<Vec<(Resource, Sender<Event>)>>,
    sent: Mutex<BTreeMap<Resource, Sent>>,
    /// When the first answer began.
    first_byte: OnceLock<SystemTime>,
}

/// An event of a watch, as it is sent.
type Event = Arc<[u8]>;

/// All objects of a kind.
struct Encoded {
    /// As a list, and the same compressed.
    list: Vec<u8>,
    compressed: Vec<u8>,
    /// As the events that begin a watch, and the one that says that these were all.
    events: Vec<u8>,
    end: Vec<u8>,
}

impl Encoded {
    fn new(resource: Resource, objects: Vec<Value>) -> Result<Self> {
        let kind = resource.kind();
        let events = objects.iter().flat_map(|object| protobuf::event("ADDED", kind, object)).collect();
        let list = protobuf::list(kind, VERSION, objects);
        // As fast as it can, as the API server does.
        let mut compressed = GzEncoder::new(Vec::new(), Compression::fast());
        compressed.write_all(&list)?;
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        let metadata = json!({"resourceVersion": VERSION, "annotations": annotations});
        let end = protobuf::event("BOOKMARK", kind, &json!({"metadata": metadata}));
        Ok(Self { list, compressed: compressed.finish()?, events, end })
    }
}

/// Of everything.
const VERSION: &str = "1";

impl Api {
    /// Serves these on the loopback of `host`.
    pub(super) fn serve(host: &Host, objects: Objects) -> Result<Self> {
        let Objects { node, services, slices } = objects;
        let resources = [
            (Resource::Nodes, vec![node.clone()]),
            (Resource::Services, services),
            (Resource::EndpointSlices, slices),
            (Resource::ServiceCidrs, Vec::new()),
        ];
        let lists = resources.into_iter().map(|(resource, all)| Ok((resource, Encoded::new(resource, all)?)));
        let lists = lists.collect::<Result<_>>()?;
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

    /// Sends a changed Service or EndpointSlice to all watches of its kind.
    pub(super) fn change(&self, object: &Value) {
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
        let event: Event = protobuf::event("MODIFIED", kind, object).into();
        let mut watchers = self.shared.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|(resource, watcher)| {
            resource.kind() != kind || watcher.send(Arc::clone(&event)).is_ok()
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
        let Request { target, takes_gzip } = Request::read(&stream)?;
        self.first_byte.get_or_init(SystemTime::now);
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        if path == "/api/v1/nodes/node" {
            return respond(&mut stream, "200 OK", &self.node);
        }
        let Some((resource, encoded)) =
            Resource::at(path).and_then(|resource| Some((resource, self.lists.get(&resource)?)))
        else {
            let status = json!({
                "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404,
            });
            return respond(&mut stream, "404 Not Found", &status);
        };
        let head = |more| {
            let kind = "Content-Type: application/vnd.kubernetes.protobuf";
            format!("HTTP/1.1 200 OK\r\n{kind}{more}\r\nConnection: close\r\n\r\n")
        };
        if !query.split('&').any(|word| matches!(word, "watch=true" | "watch=1")) {
            let (list, more) = if takes_gzip {
                (&encoded.compressed, "\r\nContent-Encoding: gzip")
            } else {
                (&encoded.list, "")
            };
            stream.write_all(head(more).as_bytes())?;
            return self.send(&mut stream, resource, asked, list.split_at(list.len().saturating_sub(1)));
        }
        // Subscribes before anything is sent: no change may be lost between the list, or only the head, and
        // the rest.
        let changes = self.subscribe(resource);
        stream.write_all(head(";stream=watch").as_bytes())?;
        if query.contains("sendInitialEvents=true") {
            self.send(&mut stream, resource, asked, (&encoded.events, &encoded.end))?;
        }
        for change in changes {
            stream.write_all(&change)?;
        }
        Ok(())
    }

    /// Sends all of something in two parts, and records when.
    fn send(
        &self,
        stream: &mut TcpStream,
        resource: Resource,
        asked: SystemTime,
        (most, end): (&[u8], &[u8]),
    ) -> Result<()> {
        stream.write_all(most)?;
        // The time is taken before the end is sent: a client that has read it may have synced by the time
        // that this thread runs again.
        let sent = Sent { asked, complete: SystemTime::now() };
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).insert(resource, sent);
        Ok(stream.write_all(end)?)
    }

    fn subscribe(&self, resource: Resource) -> Receiver<Event> {
        let (sender, receiver) = channel();
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner).push((resource, sender));
        receiver
    }
}

/// What is asked for.
struct Request {
    target: String,
    takes_gzip: bool,
}

impl Request {
    /// Reads a request to its end.
    fn read(stream: &TcpStream) -> Result<Self> {
        let mut reader = BufReader::new(stream);
        let mut first = String::new();
        reader.read_line(&mut first)?;
        let (mut length, mut takes_gzip) = (0, false);
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let Some((name, value)) = header.split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse()?;
            }
            takes_gzip |= name.eq_ignore_ascii_case("accept-encoding") && value.contains("gzip");
        }
        std::io::copy(&mut reader.take(length), &mut std::io::sink())?;
        Ok(Self { target: first.split(' ').nth(1).unwrap_or_default().to_owned(), takes_gzip })
    }
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
