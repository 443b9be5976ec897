//! What shows kube-proxy's configuration: ConfigMaps, Pods, files of distributions.

use std::path::Path;

use kube_ipvs::{
    cli,
    config::{
        Settings,
        convert::{Input, convert},
    },
};

/// Converts the text. The daemon takes what comes of it, and it is converted to itself.
pub fn fuzz(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let Some(file) = converted(text) else { return };
    assert_eq!(converted(&file).as_ref(), Some(&file));
    let Ok(command_line) = cli::parse(["kube-ipvs", "--hostname-override=node"].map(Into::into)) else {
        return;
    };
    let Some(flags) = command_line.flags() else { return };
    if let Err(error) = Settings::with_text(flags, Path::new("config.conf"), &file) {
        unreachable!("{error}: {file}");
    }
}

/// The file that comes of it.
fn converted(text: &str) -> Option<String> {
    convert(&[Input { name: "input", text }], &[]).ok()?.to_yaml().ok()
}
