//! The process's OOM score: how soon the kernel ends it when memory is short.

use std::{fs, io};

use tracing::info;

const FILE: &str = "/proc/self/oom_score_adj";

/// Sets how soon the kernel kills this process when memory is short. A failure is only logged: lowering the score
/// needs CAP_SYS_RESOURCE, and in a pod the kubelet has set one.
pub(crate) fn adjust(score: i32) {
    let wanted = score.to_string();
    let adjust = || -> io::Result<()> {
        if fs::read_to_string(FILE)?.trim() == wanted { Ok(()) } else { fs::write(FILE, &wanted) }
    };
    if let Err(error) = adjust() {
        info!("the OOM score adjustment stays as it is and not {wanted}: {error}");
    }
}
