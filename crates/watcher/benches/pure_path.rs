//! What kube-ipvs itself computes, from the bytes of the API server to the bytes for the kernel, with neither
//! of the two.
//!
//! `pure_path PHASE` goes through all phases up to this one, and ends at once. What a phase costs is the
//! difference to the run before; `cargo xtask bench --check` counts it in instructions, which are the same on
//! every run.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    convert::Infallible,
    env,
    future::{self, Future, poll_fn},
    hint::black_box,
    pin::Pin,
    process,
    rc::Rc,
    sync::{Mutex, PoisonError},
    task::Poll,
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, stream};
use http::{Request, Response, header::CONTENT_TYPE};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use ipvs::Family;
use kube::{Client, client::Body};
use kubernetes::api;
use service::{Change, Event, Options, State};
use testkit::{
    kernel_baseline::Size,
    objects, protobuf,
    pure_path::{Phase, encoded},
};
use tokio::{
    runtime::{self, Runtime},
    sync::mpsc::{UnboundedSender, unbounded_channel},
};
use watcher::{Draining, Foreign, Observed, Ownership, diff, diff_everything};

/// The size of the cluster: large enough that fixed costs hardly count, small enough for valgrind.
const SIZE: Size = Size { services: 1_000, endpoints: 5 };
/// How many EndpointSlices change, one after the other.
const CHANGES: u32 = 100;
/// The size of a chunk: about as much as comes in one frame of HTTP/2.
const CHUNK: usize = 16 * 1024;

fn main() -> Result<()> {
    let named = |name: String| Phase::ALL.into_iter().find(|phase| phase.name() == name);
    let last = env::args().skip(1).find_map(named).context("which phase?")?;
    // At once, so that giving memory back is not counted.
    let end_of = |phase| {
        if phase == last {
            process::exit(0);
        }
    };

    let mut source = Source::new()?;
    let changes: Vec<_> = (0..CHANGES)
        .map(|number| {
            protobuf::event("MODIFIED", "EndpointSlice", &objects::shortened_slice(SIZE, number)).into()
        })
        .collect();
    end_of(Phase::Inputs);

    let lists = source.until(|changes| {
        let has = |wanted: fn(&Change) -> bool| changes.iter().any(wanted);
        has(|change| matches!(change, Change::Services(Event::InitDone(_))))
            && has(|change| matches!(change, Change::Slices(Event::InitDone(_))))
    });
    end_of(Phase::Decode);

    let mut state = State::new(Options::new("node"));
    for change in lists {
        black_box(state.apply(change));
    }
    end_of(Phase::Desire);

    let ours =
        Ownership { families: BTreeSet::from([Family::V4]), exclude: Vec::new(), foreign: Foreign::Delete };
    let mut image = Observed::default();
    let plan = diff_everything(&state, &image, &ours);
    let all = SIZE.services * (1 + SIZE.endpoints);
    ensure!(plan.len() > all as usize, "only {} operations", plan.len());
    end_of(Phase::Plan);

    black_box(encoded(&plan));
    end_of(Phase::Encode);

    plan.operations().for_each(|operation| image.carried_out(&operation));
    end_of(Phase::Follow);

    let nothing = diff_everything(&state, &image, &ours);
    ensure!(nothing.is_empty(), "something is still to be done: {nothing}");
    end_of(Phase::PlanNothing);

    for change in changes {
        source.slices.send(change)?;
        for change in source.until(|changes| !changes.is_empty()) {
            let touched = state.apply(change);
            let plan = diff(&state, &image, &touched, &ours, &Draining::default());
            ensure!(plan.len() == 1, "one real server goes: {plan}");
            black_box(encoded(&plan));
            plan.operations().for_each(|operation| image.carried_out(&operation));
        }
    }
    end_of(Phase::Change);
    Ok(())
}

/// The watches of an API server that has all answers in memory.
struct Source {
    runtime: Runtime,
    watching: Pin<Box<dyn Future<Output = Infallible>>>,
    changes: Rc<RefCell<Vec<Change>>>,
    /// The watch of EndpointSlices. The others never send anything.
    slices: UnboundedSender<Bytes>,
}

impl Source {
    fn new() -> Result<Self> {
        let (slices, changes) = unbounded_channel();
        let watch = Mutex::new(Some(changes));
        let all = |kind, objects| chunks(protobuf::list(kind, "1", objects));
        let lists = [
            ("/nodes", all("Node", vec![objects::node(&[[192, 0, 2, 1].into()], &["10.244.0.0/24"])])),
            ("/services", all("Service", (0..SIZE.services).map(objects::service).collect())),
            (
                "/endpointslices",
                all("EndpointSlice", (0..SIZE.services).map(|number| objects::slice(SIZE, number)).collect()),
            ),
        ];
        let respond = move |request: Request<Body>| {
            let asked = request.uri();
            let watches = asked.query().is_some_and(|query| query.contains("watch=true"));
            let list = lists.iter().find(|(path, _)| asked.path().ends_with(path)).filter(|_| !watches);
            let list = list.map_or_else(Vec::new, |(_, chunks)| chunks.clone());
            let is_of_slices = asked.path().ends_with("/endpointslices");
            let changes =
                watch.lock().unwrap_or_else(PoisonError::into_inner).take_if(|_| watches && is_of_slices);
            let changes = stream::unfold(changes, async |changes| {
                let mut changes = changes?;
                Some((changes.recv().await?, Some(changes)))
            });
            let silence = stream::poll_fn(move |_| if watches { Poll::Pending } else { Poll::Ready(None) });
            let frames = stream::iter(list).chain(changes).chain(silence);
            let body = StreamBody::new(frames.map(|chunk| Ok::<_, Infallible>(Frame::data(chunk))));
            let response = Response::builder().header(CONTENT_TYPE, "application/vnd.kubernetes.protobuf");
            future::ready(response.body(body))
        };

        let runtime = runtime::Builder::new_current_thread().enable_time().build()?;
        let entered = runtime.enter();
        let client = Client::new(tower::service_fn(respond), "default");
        drop(entered);
        let changes = Rc::new(RefCell::new(Vec::new()));
        let received = Rc::clone(&changes);
        let watching = Box::pin(async move {
            let watches = api::Watches::default();
            api::watch(client, "node", &watches, |change| received.borrow_mut().push(change)).await
        });
        Ok(Self { runtime, watching, changes, slices })
    }

    /// Returns what has been received once it is enough.
    fn until(&mut self, enough: impl Fn(&[Change]) -> bool) -> Vec<Change> {
        let Self { runtime, watching, changes, .. } = self;
        runtime.block_on(poll_fn(|context| {
            if let Poll::Ready(never) = watching.as_mut().poll(context) {
                match never {}
            }
            let mut changes = changes.borrow_mut();
            if enough(&changes) { Poll::Ready(changes.split_off(0)) } else { Poll::Pending }
        }))
    }
}

/// An answer as it comes in.
fn chunks(answer: Vec<u8>) -> Vec<Bytes> {
    let mut rest = Bytes::from(answer);
    let mut chunks = Vec::new();
    while !rest.is_empty() {
        chunks.push(rest.split_to(rest.len().min(CHUNK)));
    }
    chunks
}
