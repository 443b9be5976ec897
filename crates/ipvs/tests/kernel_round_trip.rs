//! What is written is what the kernel holds, and what is read back. In a real kernel, each test in a
//! network namespace of its own.

#[cfg(test)]
mod kernel_round_trip {
    mod attributes;
    mod listing;
    mod outcomes;
    mod support;
    mod survey;
    mod whole_table;
}
