//! The program of `cargo xtask demo`, `bench`, `scale`, `chaos` and `soak`.

use std::process::ExitCode;

fn main() -> ExitCode {
    lab::run()
}
