//! The program kubectl-ipvs: see `kubectl ipvs --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kubectl_ipvs::main(std::env::args_os())
}
