//! kube-ipvs: the IPVS-mode node proxy for Kubernetes, as one binary.
//!
//! What decides lives in the crates under `crates/`. Here is what is around it: the command line and
//! the configuration file ([`cli`], [`config`]), what is checked and set up before anything is written
//! ([`preflight`], [`sysctl`], [`init`]), what of the node should be otherwise ([`advice`]), where Services come from
//! ([`api`]), how an operator talks to the running daemon ([`control`]), what it tells of itself in numbers
//! ([`metrics`]), and what becomes of that which proxies have left on the node ([`cleanup`], [`leftovers`]).
//! [`daemon`] puts them together.

pub mod advice;
pub mod api;
pub mod cleanup;
pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod events;
pub mod health;
pub mod health_ports;
mod host_firewall;
pub mod http;
pub mod init;
pub mod leftovers;
pub mod limits;
pub mod logging;
pub mod metrics;
pub mod preflight;
pub mod sysctl;
mod yaml;
