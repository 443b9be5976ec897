//! Which endpoints serve a Service.

mod external_traffic_policy;
mod slices_are_merged;
mod which_are_used;
