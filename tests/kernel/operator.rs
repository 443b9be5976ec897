//! What an operator and monitoring ask of the program: its commands, health checks, metrics and log.

mod bugreport;
mod cleanup;
mod control;
mod documents;
mod explain;
mod hand_over;
mod health;
mod history;
mod list;
mod log;
mod metrics;
mod questions;
mod status;
mod top;
