//! The program of `cargo xtask cluster` and `cargo xtask e2e`.

use std::process::ExitCode;

fn main() -> ExitCode {
    cluster::run()
}
