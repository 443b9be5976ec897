//! The command line.

use kube_ipvs::{cli, config::Settings};

use crate::configuration::assert_is_read_back;

/// Reads one argument per line. The settings of the flags are written to a file, and read again as the same.
pub fn fuzz(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let arguments = ["kube-ipvs", "--hostname-override=node"].into_iter().chain(text.lines());
    let Ok(command_line) = cli::parse(arguments.map(Into::into)) else { return };
    // No file is opened.
    let Some(flags) = command_line.flags().filter(|flags| flags.config.is_none()) else { return };
    if let Ok(settings) = Settings::resolve(flags) {
        assert_is_read_back(flags, &settings);
    }
}
