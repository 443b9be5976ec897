//! kube-ipvs: the IPVS-mode node proxy for Kubernetes, as one binary.
//!
//! What decides lives in the crates under `crates/`. Here is what is around it: the command line and
//! the configuration file ([`cli`], [`config`]), what is checked and set up before anything is written
//! ([`preflight`], [`sysctl`]), what of the node should be otherwise ([`advice`]), where Services come from
//! ([`api`]), and how an operator talks to the running daemon ([`control`]). [`daemon`] puts them together.

pub mod advice;
pub mod api;
pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod events;
pub mod logging;
pub mod preflight;
pub mod sysctl;
mod yaml;
