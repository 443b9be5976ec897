//! kube-ipvs: the IPVS-mode node proxy for Kubernetes, as one binary.
//!
//! The crates under `crates/` decide what is programmed. Here is what surrounds them:
//!
//! - [`cli`]: the operator's commands; [`config`]: flags and the configuration file
//! - [`daemon`]: connects the parts and ends them
//! - [`node`]: what is required of the node and set on it; `checks`: what is checked of it, before the start
//!   and while the daemon runs; [`finding`]: what a check says; [`preflight`]: what would happen if a daemon
//!   started here
//! - `conntrack`: the thread that removes stale UDP flows; `direct_return` asks other nodes
//! - [`takeover`]: what other proxies left behind, and one that runs beside us
//! - [`source`]: where Services come from
//! - [`serve`]: health checks, metrics, the control socket; [`events`]: Events; [`logging`]: the log
//! - `process`: its build, its limits and the signals that end it; `files`: how files are read and written

mod checks;
pub mod cli;
pub mod config;
mod conntrack;
pub mod daemon;
mod direct_return;
pub mod events;
mod files;
pub mod finding;
pub mod logging;
pub mod node;
pub mod preflight;
mod process;
pub mod serve;
pub mod source;
pub mod takeover;
