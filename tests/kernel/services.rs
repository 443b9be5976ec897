//! What clients get of a Service: which endpoint answers, when endpoints change, and which client address it sees.

mod balancing;
mod draining;
mod ejection;
mod exposure;
mod limits;
mod local_mode;
mod policies;
mod requests;
mod schedulers;
mod udp;
mod untracked;
mod weights;
