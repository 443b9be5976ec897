//! Packet by packet: who answers and whose address it sees, which rules a packet meets, which hooks it passes.

mod counted;
mod evaluations;
mod liveness;
mod lost;
mod reports;
mod tables;
mod walks;
