//! Our nf_tables tables on the real kernel: what is installed, and what it does to packets.

mod host;
mod masquerade;
mod programs;
mod tables;
