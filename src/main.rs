//! The program kube-ipvs: see `kube-ipvs --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kube_ipvs::cli::main(std::env::args_os())
}
