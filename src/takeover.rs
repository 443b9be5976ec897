//! Other proxies on this node: what kube-proxy left behind, one that runs beside us, and a second kube-ipvs.

pub mod cleanup;
pub mod hand_over;
pub mod instance_lock;
pub mod leftovers;
pub mod live_proxy;
