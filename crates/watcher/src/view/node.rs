//! Node.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use service::{Change, Node};
use tracing::warn;

use super::{
    Decoded, Kind, News, Problems,
    field::{Field, Object},
    metadata::{Metadata, RawMetadata},
};

/// A Node as it comes.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawNode {
    metadata: Field<RawMetadata>,
}

impl Object for RawNode {}

impl Kind for Node {
    const KIND: &'static str = "Node";
    const GROUP: &'static str = "";
    const PLURAL: &'static str = "nodes";
    const ALWAYS_SOME: bool = false;

    type Raw = RawNode;

    fn decode(raw: RawNode) -> (ObjectMeta, Decoded<Self>) {
        let mut problems = Problems::default();
        let mut metadata = Metadata::read(raw.metadata, &mut problems);
        let zone = std::mem::take(&mut metadata.labels.zone)
            .read("metadata.labels[topology.kubernetes.io/zone]", &mut problems);
        // A zone that is not a string cannot be matched by any hint: the same as none.
        (metadata.object_meta(), Decoded::Object(Self { zone: zone.map(Into::into), ips: Vec::new() }))
    }

    fn problems(&self) -> &[String] {
        &[]
    }

    /// A Node that is gone keeps its last zone: its endpoints are still where they were.
    fn change(news: News<Self>) -> Option<Change> {
        match news {
            News::Replace(mut nodes) => {
                if nodes.is_empty() {
                    warn!(
                        "no Node has this node's name (--hostname-override): zone hints are not used until it has"
                    );
                }
                nodes.pop().map(Change::ApplyNode)
            }
            News::Apply(node) => Some(Change::ApplyNode(node)),
            News::Delete(name) => {
                warn!("the Node {} was deleted; its last zone stays", name.name);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::View;
    use super::*;

    fn decoded(text: &str) -> Decoded<Node> {
        serde_json::from_str::<View<Node>>(text).unwrap().decoded
    }

    #[test]
    fn only_the_zone_is_kept() {
        let node = r#"{"metadata":{"name":"n1","labels":{"a":"b","topology.kubernetes.io/zone":"z1"}},"status":{"x":1}}"#;
        assert_eq!(decoded(node), Decoded::Object(Node { zone: Some("z1".into()), ips: Vec::new() }));
    }

    #[test]
    fn a_node_may_have_no_zone() {
        assert_eq!(decoded(r#"{"metadata":{"name":"n1"}}"#), Decoded::Object(Node::default()));
    }
}
