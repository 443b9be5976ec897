//! One list, from the request to its last object.

use futures::{
    StreamExt as _, TryStreamExt as _,
    stream::{self, BoxStream},
};
use kube::{api::ListParams, core::Request};
use tokio_util::codec::FramedRead;

use super::{
    encoding::{Encoding, json, list_decoder::ListDecoder},
    failure::Failure,
    request::Requests,
};
use crate::objects::{Kind, View};

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
    Ok(match answer.encoding {
        Encoding::Protobuf => {
            FramedRead::new(answer.reader(), ListDecoder::default()).map_err(Failure::from).boxed()
        }
        Encoding::Json => {
            let parts = json::list(&answer.whole().await?)?;
            stream::iter(parts).map(Ok).boxed()
        }
    })
}
