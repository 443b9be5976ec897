//! The program on a node of a lab, fed by a real API server. These run in the test kernel.

mod advice;
mod cidr;
mod credentials;
mod following;
mod health;
mod rbac;
mod token;
