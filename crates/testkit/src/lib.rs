//! For tests only: what the tests of several crates need.
//!
//! - [`fake_kernel`]: a kernel in memory that can fail with any errno at any call.

pub mod fake_kernel;

pub use fake_kernel::FakeKernel;
