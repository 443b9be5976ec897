//! Plays scripts on two nodes at one API server.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use serde_json::{Value, json};
use testkit::control_plane::ControlPlane;

use super::{
    marker::{self, Marker},
    nodes::Nodes,
    script::{Action, Kind, Node, Script, Step},
    tables::{Difference, Tables},
};

/// Whom no script is about: the marker, and the API server's own Service.
const BACKGROUND: [&str; 3] = [marker::VIPS[0], marker::VIPS[1], "10.96.0.1"];

/// An API server, and the nodes of the scripts played last, which the next ones go on using if they have
/// the same flags.
pub(crate) struct Stage {
    server: ControlPlane,
    marker: Marker,
    nodes: Option<(Vec<String>, Nodes)>,
}

impl Stage {
    /// Sets it up. `None`, said as a skip, where there is no API server or no kube-proxy.
    pub(crate) fn new() -> Result<Option<Self>> {
        let Some(server) = testkit::kube_proxy::control_plane()? else { return Ok(None) };
        Ok(Some(Self { server, marker: Marker::default(), nodes: None }))
    }

    /// Plays a script to its end, or to the first step that does not lead where it should.
    pub(crate) fn play(&mut self, script: &Script) -> Result<()> {
        // The old nodes go before there are new ones.
        let mut nodes = match self.nodes.take().filter(|(flags, _)| *flags == script.flags) {
            Some((_, nodes)) => nodes,
            None => Nodes::new(&self.server, &script.flags)?,
        };
        let namespace = format!("peer-{}", script.name.replace('_', "-"));
        self.server
            .apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}))?;
        let mut run = Run {
            server: &self.server,
            marker: &mut self.marker,
            nodes: &mut nodes,
            namespace,
            ipv6: script.ipv6,
            written: BTreeSet::new(),
        };
        let played = run.play(script).and_then(|()| run.leave());
        // The others are not to see what is left of a script that went wrong.
        run.clear()?;
        played.map_err(|error| anyhow!("{error:#}\n{}", nodes.last_words()))?;
        // Nodes on which something went wrong are of no use to another script.
        self.nodes = Some((script.flags.clone(), nodes));
        Ok(())
    }
}

/// A script that is being played.
struct Run<'a> {
    server: &'a ControlPlane,
    marker: &'a mut Marker,
    nodes: &'a mut Nodes,
    namespace: String,
    ipv6: bool,
    /// The objects that exist.
    written: BTreeSet<(Kind, String)>,
}

impl Run<'_> {
    fn play(&mut self, script: &Script) -> Result<()> {
        // The last script has seen to it that nothing is left.
        let mut tables = [Tables::default(), Tables::default()];
        for step in &script.steps {
            tables = self.step(step, &tables).with_context(|| format!("at {:?}", step.sentence))?;
            let [kube_proxy, kube_ipvs] = &tables;
            let lines = kube_proxy.0.union(&kube_ipvs.0).count();
            match &step.reason {
                None => println!("  {} ({lines} lines)", step.sentence),
                Some(why) => {
                    let differ = step.difference.len();
                    println!("  {} ({lines} lines; {differ} on one side only, because {why})", step.sentence);
                }
            }
        }
        Ok(())
    }

    /// Does what the step says, waits for both proxies, and compares. `before` are the tables as they
    /// were; returned are the tables as they are.
    fn step(&mut self, step: &Step, before: &[Tables; 2]) -> Result<[Tables; 2]> {
        for action in &step.actions {
            self.act(action)?;
        }
        if step.actions.iter().any(|action| matches!(action, Action::Run(_))) {
            self.nodes.wait_for_full_sync()?;
        }
        self.marker.pass(self.server, self.nodes, self.ipv6)?;
        let after = self.nodes.differ_as(&step.difference, &BACKGROUND)?;
        match (*before == after, step.changes_nothing) {
            (true, false) => bail!("no table has changed; a step of that kind says \"nothing changes\""),
            (false, true) => bail!("a table has changed:\n{}before:\n{}", after[0], before[0]),
            _ => Ok(after),
        }
    }

    fn act(&mut self, action: &Action) -> Result<()> {
        match action {
            Action::Apply(object) => self.apply(object.clone()),
            Action::Delete(kind, name) => self.delete(*kind, name),
            Action::Node(node) => self.nodes.write_object(self.server, node),
            Action::Run(command) => self.nodes.run(command),
            Action::Wait => self.marker.pass(self.server, self.nodes, self.ipv6),
            Action::Stop => self.nodes.stop(),
            Action::Start => self.nodes.start(),
        }
    }

    fn apply(&mut self, mut object: Value) -> Result<()> {
        object["metadata"]["namespace"] = self.namespace.as_str().into();
        self.server.apply(&object)?;
        let kind = if object["kind"] == "Service" { Kind::Service } else { Kind::EndpointSlice };
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        self.written.insert((kind, name.to_owned()));
        Ok(())
    }

    fn delete(&mut self, kind: Kind, name: &str) -> Result<()> {
        self.written.remove(&(kind, name.to_owned()));
        match kind {
            Kind::Service => self.server.delete::<Service>(&self.namespace, name),
            Kind::EndpointSlice => self.server.delete::<EndpointSlice>(&self.namespace, name),
        }
    }

    /// Ends the script. Nothing of it is to stay on the nodes.
    fn leave(&mut self) -> Result<()> {
        self.clear()?;
        self.nodes.write_object(self.server, &Node::default())?;
        self.marker.pass(self.server, self.nodes, self.ipv6)?;
        let [kube_proxy, _] = self.nodes.differ_as(&Difference::default(), &BACKGROUND)?;
        ensure!(kube_proxy.0.is_empty(), "something is left on both nodes:\n{kube_proxy}");
        Ok(())
    }

    /// Deletes the objects that the script has left.
    fn clear(&mut self) -> Result<()> {
        for (kind, name) in self.written.clone() {
            self.delete(kind, &name)?;
        }
        Ok(())
    }
}
