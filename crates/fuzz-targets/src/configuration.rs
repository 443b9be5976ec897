//! The configuration file.

use std::path::Path;

use kube_ipvs::{
    cli::{self, Flags},
    config::Settings,
};

/// Reads the file. Its settings are written to a file, and read again as the same.
pub fn fuzz(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let Ok(command_line) = cli::parse(["kube-ipvs", "--hostname-override=node"].map(Into::into)) else {
        return;
    };
    if let Some(flags) = command_line.flags() {
        round_trip(flags, text);
    }
}

fn round_trip(flags: &Flags, text: &str) {
    let path = Path::new("config.conf");
    let Ok(settings) = Settings::with_text(flags, path, text) else { return };
    assert_is_read_back(flags, &settings);
}

/// Settings that are written to a file are read again as the same. Settings that only flags have are not written.
pub(crate) fn assert_is_read_back(flags: &Flags, settings: &Settings) {
    let Ok(text) = settings.effective.to_yaml() else { return };
    match Settings::with_text(flags, Path::new("config.conf"), &text) {
        Ok(again) => assert_eq!(again.effective, settings.effective, "{text}"),
        Err(error) => unreachable!("{error}: {text}"),
    }
}
