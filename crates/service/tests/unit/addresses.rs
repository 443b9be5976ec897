//! At which addresses and ports a Service is served, and who may reach them.

mod conflicts;
mod external;
mod node_ports;
mod owners;
mod source_ranges;
