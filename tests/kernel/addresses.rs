//! Where Services are served, and whose address it is: NodePorts, VIPs, and the addresses of others.

mod owners;
mod served;
mod vip_binding;
