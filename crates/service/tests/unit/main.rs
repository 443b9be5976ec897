//! Services, EndpointSlices and the Node in; desired state, and the reasons for it, out.
//!
//! A new test goes into the module of the behaviour that a user sees; [`common`] has what all of them use.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on must stop"
)]

mod addresses;
mod any_order_of_events;
mod balancing;
mod changes;
mod common;
mod direct_return;
mod ejection;
mod endpoints;
mod explained_addresses;
mod explanations;
mod health_checks;
mod hostile_services;
mod limits;
mod type_changes;
mod virtual_servers;
mod weights;
mod which_services_are_served;
