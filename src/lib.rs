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
pub mod node {
    //! The node itself: what is required of it and set on it before anything is programmed.
    //!
    //! [`requirements`] refuses a node that cannot be served, [`sysctl`] sets kernel parameters, [`init`] does
    //! both in the order that the kernel needs, and [`host_firewall`] accepts traffic of Services in the host's
    //! own firewall. `checks` has what is checked before the start and from then on.

    pub(crate) mod families;
    pub(crate) mod host_firewall;
    pub mod init;
    pub mod requirements;
    pub(crate) mod routing_drops;
    pub mod sysctl;
}
pub mod preflight;
mod process;
pub mod serve {
    //! What the daemon serves: health checks and metrics by HTTP, and the control socket for operators; what our nf_tables
    //! rules count, and whether endpoints answer, is read for both.

    pub mod control;
    pub mod health;
    pub mod health_check_node_ports;
    pub mod http;
    pub mod liveness;
    pub mod metrics;
    pub(crate) mod packets;
}
pub mod source;
pub mod takeover {
    //! Other proxies on this node: what kube-proxy left behind, one that runs beside us, and a second kube-ipvs.

    pub mod cleanup;
    pub mod hand_over;
    pub mod instance_lock;
    pub mod leftovers;
    pub mod live_proxy;
}
