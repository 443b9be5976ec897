//! Direct return: clients outside keep their address, every endpoint is used, and open connections outlive the node by
//! which they came in.

mod balancing;
mod changes;
mod clients;
pub(crate) mod cluster;
mod cost;
mod entrances;
mod five_nodes;
mod gue;
mod neighbours;
mod survival;
