//! Every measurement of `cargo xtask bench` in a tiny size, and the instruction counts.
//!
//! A failure of the real kube-proxy is one here, too: what is tested is the measuring.

mod instructions;
mod tiny;
