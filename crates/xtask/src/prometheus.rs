//! prom2json, which reads metrics with Prometheus' own parser, for `tests/peer_node_metrics.rs`.

use std::path::PathBuf;

use crate::go::Module;

const PROM2JSON: &str = "prom2json";

pub(crate) const MODULE: Module = Module {
    name: "prometheus",
    programs: &[(
        PROM2JSON,
        "github.com/prometheus/prom2json/cmd/prom2json",
        "github.com/prometheus/prom2json",
    )],
};

/// Where prom2json is.
pub(crate) fn prom2json() -> anyhow::Result<PathBuf> {
    Ok(MODULE.built()?.join(PROM2JSON))
}
