//! Services, EndpointSlices and the Node in; desired state, and the reasons for it, out.
//!
//! A new test goes into the module of the behaviour that a user sees; [`common`] has what all of them use.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on must stop"
)]

mod addresses {
    //! At which addresses and ports a Service is served, and who may reach them.

    mod conflicts;
    mod external;
    mod node_ports;
    mod owners;
    mod source_ranges;
    mod untracked;
}
mod any_order_of_events;
mod balancing;
mod changes;
mod common;
mod direct_return;
mod ejection;
mod endpoints {
    //! Which endpoints serve a Service.

    mod external_traffic_policy;
    mod slices_are_merged;
    mod which_are_used;
}
mod explained_addresses;
mod explanations;
mod health_checks;
mod hostile_services;
mod limits;
mod type_changes;
mod virtual_servers;
mod weights;
mod which_services_are_served;
