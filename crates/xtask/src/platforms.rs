//! For which processors something is built.

use guest::platform::Platform;

/// What `--platform` chooses.
#[derive(clap::Args)]
pub(crate) struct Platforms {
    /// Build for this platform alone; may be given several times
    #[arg(long = "platform", value_name = "ARCH", value_enum)]
    platforms: Vec<Platform>,
}

impl Platforms {
    /// The platforms that were chosen, or all.
    pub(crate) fn chosen(&self) -> &[Platform] {
        if self.platforms.is_empty() { &Platform::ALL } else { &self.platforms }
    }
}
