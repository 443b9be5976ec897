//! kube-ipvs's own computation must not have become dearer.

use lab::bench::instructions::{Check, check};

#[test]
#[ignore = "needs valgrind: cargo xtask test --tier bench"]
fn no_phase_takes_many_more_instructions_than_recorded() {
    match check().unwrap() {
        Check::Compared(complaints) => assert!(complaints.is_empty(), "{}", complaints.join("\n")),
        Check::Unavailable(reason) => println!("SKIP: {reason}"),
    }
}
