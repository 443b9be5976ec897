//! A short part of each long run: as root, on a kernel with IPVS, with the API server that the environment names.

/// One of each kind of fault, under load; see [`lab::chaos`].
#[test]
#[ignore = "needs root, ip_vs and a kube-apiserver: cargo xtask test --tier faults"]
fn some_faults_under_load_heal() -> anyhow::Result<()> {
    lab::chaos::small()
}

/// Ten seconds of churn under load; see [`lab::soak`].
#[test]
#[ignore = "needs root, ip_vs and a kube-apiserver: cargo xtask test --tier faults"]
fn ten_seconds_of_churn_lose_no_connection() -> anyhow::Result<()> {
    lab::soak::small()
}
