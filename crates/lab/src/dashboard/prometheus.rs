//! A real Prometheus that has the recorded pages, and its answers to the panels.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use guest::go::prometheus as programs;
use guest::workspace;
use serde_json::{Map, Value, json};
use testkit::daemon::eventually_within;

use super::pages::{self, EVERY};

/// How long it may take until it answers.
const PATIENCE: Duration = Duration::from_secs(60);
/// A value that is older is not shown: where a node did not answer there is a gap.
const LOOKBACK: &str = "--query.lookback-delta=15s";
/// What Grafana puts in for the variables.
const VARIABLES: [(&str, &str); 3] = [("$job", ".+"), ("$instance", ".+"), ("$__rate_interval", "1m")];
/// How much of the beginning is not shown: there is no rate of it yet.
const BEGINNING: u64 = 60;

/// The server. It is killed when dropped.
struct Prometheus {
    process: Child,
    address: String,
    promtool: PathBuf,
}

/// The dashboard with what it shows of these pages. `directory` is for what is made meanwhile.
pub(super) fn answers(pages: &Path, directory: &Path) -> Result<Value> {
    let path = workspace::root().join("manifests/monitoring/dashboard.json");
    let dashboard = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let dashboard: Value = serde_json::from_str(&dashboard)?;
    let (data, text) = (directory.join("prometheus"), directory.join("metrics.txt"));
    if data.exists() {
        fs::remove_dir_all(&data).with_context(|| data.display().to_string())?;
    }
    let (values, [first, last]) = pages::as_openmetrics(pages)?;
    fs::write(&text, values).with_context(|| text.display().to_string())?;
    let prometheus = Prometheus::start(&text, &data)?;
    let step = EVERY.as_secs();
    let from = (first + BEGINNING).next_multiple_of(step);
    let range = [format!("--start={from}"), format!("--end={last}"), format!("--step={step}s")];
    let mut answers = Map::new();
    for panel in list(&dashboard, "panels") {
        let targets = list(panel, "targets").iter();
        let answered = targets.map(|target| prometheus.answer(target, &range)).collect::<Result<Vec<_>>>()?;
        if !answered.is_empty() && answered.iter().all(|answer| list(answer, "series").is_empty()) {
            eprintln!("xtask: the panel {:?} is empty", string(panel, "title"));
        }
        answers.insert(panel.get("id").map(Value::to_string).unwrap_or_default(), answered.into());
    }
    Ok(json!({"dashboard": dashboard, "from": from, "to": last, "step": step, "answers": answers}))
}

impl Prometheus {
    /// Starts it with the values in a text of OpenMetrics.
    fn start(text: &Path, data: &Path) -> Result<Self> {
        let [server, promtool] = programs::server_and_promtool()?;
        let mut import = Command::new(&promtool);
        import.args(["tsdb", "create-blocks-from", "openmetrics", "--quiet"]).args([text, data]);
        guest::programs::run(&mut import)?;
        let configuration = data.join("prometheus.yml");
        fs::write(&configuration, "global: {}\n").with_context(|| configuration.display().to_string())?;
        // Free a moment ago.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.to_string();
        let log = File::create(data.join("log")).context("creating a log")?;
        let process = Command::new(&server)
            .arg(format!("--config.file={}", configuration.display()))
            .arg(format!("--storage.tsdb.path={}", data.display()))
            .arg(format!("--web.listen-address={address}"))
            .arg(LOOKBACK)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {}", server.display()))?;
        let prometheus = Self { process, address: format!("http://{address}"), promtool };
        eventually_within(PATIENCE, "Prometheus answers", || {
            prometheus.query(&["instant", &prometheus.address, "1"]).map(drop)
        })?;
        Ok(prometheus)
    }

    /// What a panel's target shows: a legend, and series with it.
    fn answer(&self, target: &Value, [from, to, step]: &[String; 3]) -> Result<Value> {
        let expression = string(target, "expr");
        let put_in = |text: String, (variable, value): &(&str, &str)| text.replace(variable, value);
        let expression = VARIABLES.iter().fold(expression.to_owned(), put_in);
        let series = self.query(&["range", from, to, step, &self.address, &expression])?;
        Ok(json!({"legend": string(target, "legendFormat"), "series": series}))
    }

    fn query(&self, arguments: &[&str]) -> Result<Value> {
        let output = Command::new(&self.promtool).args(["query", "-o", "json"]).args(arguments).output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "promtool query {}: {error}", arguments.join(" "));
        serde_json::from_slice(&output.stdout).context("what promtool prints")
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // Both only fail if it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn string<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}
