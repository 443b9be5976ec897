//! `kube-ipvs0` and the VIPs on it.

mod change;
mod links;

pub use change::Change;
pub use links::{Error, Failed, Links, Observed};
