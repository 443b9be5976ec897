//! CoreDNS is rolled while pods resolve names.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::{
    kubectl,
    state::Cluster,
    web::{self, End, IN, Web},
};

/// How many names each pod resolves in one go, and how often a second.
const NAMES: usize = 10;
const TIMES: f64 = 7.0;

/// How many questions each pod asks at the least: forty a second, while CoreDNS is not rolled.
const LEAST: usize = 800;

/// How long they ask before CoreDNS is rolled, and after.
const BESIDE: Duration = Duration::from_secs(10);

/// The file in a pod that ends its questions.
const STOP: &str = "/tmp/stop";

/// Each pod resolves names while CoreDNS is replaced: no question stays without an answer.
pub(super) fn rolls(cluster: &Cluster) -> Result<()> {
    let _web = Web::deploy(cluster, 1, End::Drained)?;
    let pods: Vec<String> = cluster.workers().iter().map(web::client_name).collect();
    let began = Instant::now();
    thread::scope(|scope| {
        let asking: Vec<_> = pods.iter().map(|pod| scope.spawn(move || ask(pod))).collect();
        thread::sleep(BESIDE);
        let rolled = roll_out();
        thread::sleep(BESIDE);
        for pod in &pods {
            kubectl::run(&format!("{IN} exec {pod} -- touch {STOP}"))?;
        }
        rolled?;
        for (thread, pod) in asking.into_iter().zip(&pods) {
            let (asked, answered) = thread.join().map_err(|_| anyhow!("a thread panicked"))??;
            let seconds = began.elapsed().as_secs();
            println!("{pod}: {asked} questions in {seconds} s, {answered} answers");
            ensure!(asked == answered, "{pod}: {answered} answers to {asked} questions");
            ensure!(asked >= LEAST, "{pod} asked {asked} questions instead of {LEAST}");
        }
        Ok(())
    })
}

fn roll_out() -> Result<()> {
    kubectl::run("--namespace=kube-system rollout restart deployment/coredns")?;
    kubectl::wait_for_rollout("kube-system", "deployment/coredns")
}

/// How many questions a pod asks, and how many are answered. Each is asked once: dig does not repeat one that is lost.
fn ask(pod: &str) -> Result<(usize, usize)> {
    let names = ["kubernetes.default.svc.cluster.local"; NAMES].join(" ");
    let script = format!(
        "until [ -e {STOP} ]; do \
         echo asked; dig +tries=1 +timeout=5 +short {names} & sleep {:.2}; done; wait",
        1.0 / TIMES
    );
    let printed = kubectl::output_of(&[IN, "exec", pod, "--", "bash", "-c", &script])
        .with_context(|| format!("resolving names in {pod}"))?;
    let asked = printed.lines().filter(|line| *line == "asked").count() * NAMES;
    let answered = printed.lines().filter(|line| line.starts_with("10.")).count();
    Ok((asked, answered))
}
