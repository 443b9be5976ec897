//! One list, from the request to its last object.

use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use kube::{api::ListParams, core::Request};
use tokio_util::codec::FramedRead;

use super::{
    encoding::{Encoding, json_list::JsonListDecoder, list_decoder::ListDecoder},
    failure::Failure,
    request::Requests,
};
use crate::objects::{Kind, View};

/// The longest list in bytes, uncompressed: 100,000 objects of 10 KiB. Services and EndpointSlices have 1 to 4 KiB in
/// JSON, and half of that in protobuf; a Node with its 50 images has 15 KiB.
const LONGEST: u64 = 1 << 30;

/// A part of a list.
pub(super) enum Part<T> {
    Object(View<T>),
    /// The version of the whole list, from which a watch goes on.
    Version(String),
}

/// Asks for a list, and returns its parts as they come in. The client has the server compress what is long, unless the
/// kubeconfig says otherwise.
pub(super) async fn list<T: Kind>(
    requests: &Requests,
    params: &ListParams,
) -> Result<BoxStream<'static, Result<Part<T>, Failure>>, Failure> {
    let request = Request::new(T::path()).list(params)?;
    let answer = requests.send(request).await?;
    let encoding = answer.encoding;
    let text = answer.bounded_reader(LONGEST, "a list");
    Ok(match encoding {
        Encoding::Protobuf => FramedRead::new(text, ListDecoder::default()).map_err(Failure::from).boxed(),
        Encoding::Json => FramedRead::new(text, JsonListDecoder::default()).map_err(Failure::from).boxed(),
    })
}
