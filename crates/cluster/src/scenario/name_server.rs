//! CoreDNS is rolled while pods resolve names.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};

use crate::kubectl;
use crate::state::Cluster;
use crate::web::{self, End, Web};

/// How often each pod asks a second.
const RATE: u32 = 50;

/// Each pod resolves names while CoreDNS is replaced: no question stays without an answer.
pub(super) fn rolls(cluster: &Arc<Cluster>) -> Result<()> {
    let _web = Web::deploy(cluster, 1, End::Drained)?;
    let pause = format!("{:.3}", 1.0 / f64::from(RATE));
    // dig waits five seconds for an answer, and asks no second time: one that is lost is seen.
    let script = format!(
        "end=$(($(date +%s) + 60)); while [ $(date +%s) -lt $end ]; do sleep {pause}; \
         dig +tries=1 +short kubernetes.default.svc.cluster.local >/tmp/answer && grep -q . /tmp/answer && echo y || echo n; done | sort | uniq -c"
    );
    let pods: Vec<String> = cluster.workers().iter().map(|node| format!("client-{}", node.name)).collect();
    std::thread::scope(|scope| {
        let asking: Vec<_> = pods
            .iter()
            .map(|pod| {
                let script = &script;
                scope.spawn(move || {
                    kubectl::output(cluster, &web::in_namespace(&["exec", pod, "--", "bash", "-c", script]))
                })
            })
            .collect();
        let dns = ["--namespace=kube-system", "rollout", "restart", "deployment/coredns"];
        kubectl::output(cluster, &dns)?;
        let dns = ["--namespace=kube-system", "rollout", "status", "deployment/coredns", "--timeout=120s"];
        kubectl::output(cluster, &dns)?;
        for (thread, pod) in asking.into_iter().zip(&pods) {
            let printed = thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            println!("{pod}: {}", printed.split_whitespace().collect::<Vec<_>>().join(" "));
            ensure!(printed.contains('y'), "{pod} got no answer at all");
            let lost = printed.lines().find(|line| line.ends_with('n')).context("").ok();
            ensure!(
                lost.is_none(),
                "{pod}: questions without an answer: {}",
                lost.unwrap_or_default().trim()
            );
        }
        Ok(())
    })
}
