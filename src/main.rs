//! The program kube-ipvs: see `kube-ipvs --help`.

use std::process::ExitCode;

/// musl's own allocator asks the kernel for memory and gives it back all the time: docs/evidence/performance.md.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    kube_ipvs::cli::main(std::env::args_os())
}
