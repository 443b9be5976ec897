//! Nodes in protobuf.

use prost::{Message, bytes::Bytes};

use super::{RawAddress, RawNode, RawSpec, RawStatus, RawTaint};
use crate::objects::{
    metadata::protobuf::ObjectMeta,
    protobuf::{is, messages, text, texts},
};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Node {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    spec: Option<NodeSpec>,
    #[prost(message, optional, tag = "3")]
    status: Option<NodeStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct NodeSpec {
    #[prost(bytes = "bytes", tag = "1")]
    pod_cidr: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pod_cidrs: Vec<Bytes>,
    #[prost(message, repeated, tag = "5")]
    taints: Vec<Taint>,
}

#[derive(Clone, PartialEq, Message)]
struct Taint {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct NodeStatus {
    #[prost(message, repeated, tag = "5")]
    addresses: Vec<NodeAddress>,
}

#[derive(Clone, PartialEq, Message)]
struct NodeAddress {
    #[prost(bytes = "bytes", tag = "1")]
    kind: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    address: Bytes,
}

impl From<Node> for RawNode {
    fn from(sent: Node) -> Self {
        Self { metadata: is(sent.metadata), spec: is(sent.spec), status: is(sent.status) }
    }
}

impl From<NodeSpec> for RawSpec {
    fn from(sent: NodeSpec) -> Self {
        Self {
            pod_cidr: text(sent.pod_cidr),
            pod_cidrs: texts(sent.pod_cidrs),
            taints: messages(sent.taints),
        }
    }
}

impl From<Taint> for RawTaint {
    fn from(sent: Taint) -> Self {
        Self { key: text(sent.key) }
    }
}

impl From<NodeStatus> for RawStatus {
    fn from(sent: NodeStatus) -> Self {
        Self { addresses: messages(sent.addresses) }
    }
}

impl From<NodeAddress> for RawAddress {
    fn from(sent: NodeAddress) -> Self {
        Self { kind: text(sent.kind), address: text(sent.address) }
    }
}
