//! Our nf_tables tables on the real kernel: what is installed, and what it does to packets.

mod accept_mark;
mod external;
mod firewall;
mod hand_over;
mod hostport;
mod masquerade;
mod tables;
