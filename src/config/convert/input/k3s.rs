//! The configuration file of k3s, and of RKE2, whose agent is that of k3s.

use serde_json::{Map, Value};

use super::{
    super::{
        Error,
        present::{ClusterCidr, CommandLine, Present},
    },
    texts,
};

/// What is passed to kube-proxy unless `kube-proxy-arg` says otherwise, but for what differs from node to node and for
/// the pods' ranges: `kubeProxyArgs` in pkg/daemons/agent/agent_linux.go, k3s 1.36.
const BY_ITSELF: [&str; 5] = [
    "--proxy-mode=iptables",
    "--healthz-bind-address=127.0.0.1",
    "--conntrack-max-per-core=0",
    "--conntrack-tcp-timeout-established=0s",
    "--conntrack-tcp-timeout-close-wait=0s",
];

/// Reads kube-proxy's arguments and the pods' ranges.
pub(super) fn read(name: &str, file: &Value, present: &mut Present) -> Result<bool, Error> {
    let Value::Object(options) = file else { return Ok(false) };
    let of = ["kube-proxy-arg", "cluster-cidr", "disable-kube-proxy"].map(|option| given(options, option));
    let [arguments, ranges, _] = &of;
    if of.iter().all(Option::is_none) {
        return Ok(false);
    }
    // k3s gives its own flags only where none is given; of two the last counts.
    let arguments = arguments.iter().flatten().map(|argument| flag(argument));
    let verbosity = given(options, "v").into_iter().flatten().map(|level| format!("--v={level}"));
    let words = BY_ITSELF.map(str::to_owned).into_iter().chain(verbosity).chain(arguments).collect();
    present.add_command_line(CommandLine { name: name.to_owned(), words, config_maps: Vec::new() })?;
    present.cluster_cidr = ClusterCidr::Distribution(ranges.as_ref().map(|ranges| ranges.join(",")));
    Ok(true)
}

/// The flag that an argument is. A plus asks for it beside the one that k3s gives; the last one counts all the same.
fn flag(argument: &str) -> String {
    let argument = argument.trim_start_matches("--");
    match argument.split_once('=') {
        Some((name, value)) => format!("--{}={value}", name.trim_end_matches('+')),
        None => format!("--{argument}"),
    }
}

/// The values of an option. With a plus they are added to those of an earlier file.
fn given(options: &Map<String, Value>, option: &str) -> Option<Vec<String>> {
    let value = options.get(option).or_else(|| options.get(&format!("{option}+")))?;
    Some(texts(value))
}
