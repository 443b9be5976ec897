//! Values as Go writes them, in flags and in the file.

pub(super) mod duration;
pub(super) mod listen;
pub(super) mod switch;
pub(super) mod vmodule;
