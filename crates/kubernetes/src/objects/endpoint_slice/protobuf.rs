//! EndpointSlices in protobuf.

use prost::{Message, bytes::Bytes};

use super::{RawConditions, RawEndpoint, RawHint, RawHints, RawPort, RawSlice};
use crate::objects::{
    metadata::protobuf::ObjectMeta,
    protobuf::{first, given, is, messages, text},
};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EndpointSlice {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, repeated, tag = "2")]
    endpoints: Vec<Endpoint>,
    #[prost(message, repeated, tag = "3")]
    ports: Vec<EndpointPort>,
    #[prost(bytes = "bytes", tag = "4")]
    address_type: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct Endpoint {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    addresses: Vec<Bytes>,
    #[prost(message, optional, tag = "2")]
    conditions: Option<EndpointConditions>,
    #[prost(bytes = "bytes", optional, tag = "6")]
    node_name: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "7")]
    zone: Option<Bytes>,
    #[prost(message, optional, tag = "8")]
    hints: Option<EndpointHints>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct EndpointConditions {
    #[prost(bool, optional, tag = "1")]
    ready: Option<bool>,
    #[prost(bool, optional, tag = "2")]
    serving: Option<bool>,
    #[prost(bool, optional, tag = "3")]
    terminating: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct EndpointHints {
    #[prost(message, repeated, tag = "1")]
    for_zones: Vec<Hint>,
    #[prost(message, repeated, tag = "2")]
    for_nodes: Vec<Hint>,
}

/// `ForZone` and `ForNode`.
#[derive(Clone, PartialEq, Message)]
struct Hint {
    #[prost(bytes = "bytes", tag = "1")]
    name: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct EndpointPort {
    #[prost(bytes = "bytes", optional, tag = "1")]
    name: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    protocol: Option<Bytes>,
    #[prost(int32, optional, tag = "3")]
    port: Option<i32>,
}

impl From<EndpointSlice> for RawSlice {
    fn from(sent: EndpointSlice) -> Self {
        Self {
            metadata: is(sent.metadata),
            address_type: text(sent.address_type),
            ports: messages(sent.ports),
            endpoints: messages(sent.endpoints),
        }
    }
}

impl From<Endpoint> for RawEndpoint {
    fn from(sent: Endpoint) -> Self {
        Self {
            addresses: first(sent.addresses),
            conditions: is(sent.conditions),
            node_name: given(sent.node_name),
            zone: given(sent.zone),
            hints: is(sent.hints),
        }
    }
}

impl From<EndpointConditions> for RawConditions {
    fn from(sent: EndpointConditions) -> Self {
        Self { ready: is(sent.ready), serving: is(sent.serving), terminating: is(sent.terminating) }
    }
}

impl From<EndpointHints> for RawHints {
    fn from(sent: EndpointHints) -> Self {
        Self { for_zones: messages(sent.for_zones), for_nodes: messages(sent.for_nodes) }
    }
}

impl From<Hint> for RawHint {
    fn from(sent: Hint) -> Self {
        Self { name: text(sent.name) }
    }
}

impl From<EndpointPort> for RawPort {
    fn from(sent: EndpointPort) -> Self {
        Self { name: given(sent.name), protocol: given(sent.protocol), port: is(sent.port) }
    }
}
