//! kube-ipvs.
fn main() {}
