//! What the daemon serves: health checks and metrics by HTTP, and the control socket for operators.

pub mod control;
pub mod health;
pub mod health_check_node_ports;
pub mod http;
pub mod metrics;
