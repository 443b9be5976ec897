//! The configuration file, the command line, and what is converted to a configuration file.

use std::path::Path;

use kube_ipvs::{
    cli::{self, Flags},
    config::{
        Settings,
        convert::{self, Input},
    },
};

/// Gives `work` the flags of a daemon with these arguments, if there are such flags.
fn with_flags<'a>(arguments: impl IntoIterator<Item = &'a str>, work: impl FnOnce(&Flags)) {
    let arguments = ["kube-ipvs", "--hostname-override=node"].into_iter().chain(arguments);
    let command_line = cli::parse(arguments.map(Into::into)).ok();
    if let Some(flags) = command_line.as_ref().and_then(|command_line| command_line.flags()) {
        work(flags);
    }
}

/// Reads the file. Its settings are written to a file, and read again as the same.
pub fn fuzz(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    with_flags([], |flags| {
        if let Ok(settings) = Settings::with_text(flags, Path::new("config.conf"), text) {
            assert_is_read_back(flags, &settings);
        }
    });
}

/// Settings that are written to a file are read again as the same. Settings that only flags have are not written.
fn assert_is_read_back(flags: &Flags, settings: &Settings) {
    let Ok(text) = settings.effective.to_yaml() else { return };
    match Settings::with_text(flags, Path::new("config.conf"), &text) {
        Ok(again) => assert_eq!(again.effective, settings.effective, "{text}"),
        Err(error) => unreachable!("{error}: {text}"),
    }
}

/// Reads one argument per line. The settings of the flags are written to a file, and read again as the same.
pub fn flags(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    with_flags(text.lines(), |flags| {
        // No file is opened.
        if flags.config.is_none()
            && let Ok(settings) = Settings::resolve(flags)
        {
            assert_is_read_back(flags, &settings);
        }
    });
}

/// Converts the text. The daemon takes what comes of it, and it is converted to itself.
pub fn convert(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let Some(file) = converted(text) else { return };
    assert_eq!(converted(&file).as_ref(), Some(&file));
    with_flags([], |flags| {
        if let Err(error) = Settings::with_text(flags, Path::new("config.conf"), &file) {
            unreachable!("{error}: {file}");
        }
    });
}

/// The file that comes of it.
fn converted(text: &str) -> Option<String> {
    convert::convert(&[Input { name: "input", text }], &[]).ok()?.to_yaml().ok()
}
