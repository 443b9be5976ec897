//! For tests only: what the tests of several crates need.
//!
//! - [`control_plane`]: a real kube-apiserver and etcd, thrown away after the test.
//! - [`fake_kernel`]: a kernel in memory that can fail with any errno at any call.
//! - [`kernel_baseline`]: the least that the kernel needs for a number of Services.
//! - [`objects`]: the same Services as objects of the API; [`pure_path`]: what is counted of their way to the
//!   kernel.
//! - [`lab`]: a node, pods and a client in network namespaces; [`daemon`]: the real binary on that node;
//!   [`kube_proxy`]: the program that it replaces.
//! - [`documented`]: what docs/json.md says of output.
//! - [`process`]: programs that run beside the tests, and their logs.
//! - [`log`]: what is logged. [`patience`]: how long they wait.

pub mod control_plane;
pub mod daemon;
pub mod documented;
pub mod fake_kernel;
pub mod kernel_baseline;
pub mod kube_proxy;
pub mod lab;
pub mod log;
pub mod metrics;
pub mod objects;
pub mod patience;
pub mod process;
pub mod protobuf;
pub mod pure_path;

pub use fake_kernel::FakeKernel;
