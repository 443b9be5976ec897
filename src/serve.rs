//! What the daemon serves: health checks and metrics by HTTP, and the control socket for operators; what our nf_tables
//! rules count, and whether endpoints answer, is read for both.

pub mod control;
pub mod health;
pub mod health_check_node_ports;
pub mod http;
pub mod liveness;
pub mod metrics;
pub(crate) mod packets;
