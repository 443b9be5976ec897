//! Prometheus' own tools: prom2json, which reads metrics with its parser, for `tests/peer/metrics.rs`;
//! promtool, which checks metrics, alerts and the expressions of the dashboard, for `tests/api/monitoring.rs`.

use std::path::PathBuf;

use super::Module;

const PROM2JSON: &str = "prom2json";
const PROMTOOL: &str = "promtool";

/// promtool's.
pub const MODULE: Module = Module {
    name: "prometheus",
    tags: "remove_all_sd",
    cgo: false,
    programs: &[(
        PROMTOOL,
        "github.com/prometheus/prometheus/cmd/promtool",
        "github.com/prometheus/prometheus",
    )],
};

/// prom2json's, by itself: with the parser that promtool needs, prom2json 1.4 panics.
pub const PARSER: Module = Module {
    name: "prom2json",
    tags: "",
    cgo: false,
    programs: &[(
        PROM2JSON,
        "github.com/prometheus/prom2json/cmd/prom2json",
        "github.com/prometheus/prom2json",
    )],
};

/// Where prom2json is.
pub fn prom2json() -> anyhow::Result<PathBuf> {
    Ok(PARSER.built()?.join(PROM2JSON))
}

/// Where promtool is.
pub fn promtool() -> anyhow::Result<PathBuf> {
    Ok(MODULE.built()?.join(PROMTOOL))
}
