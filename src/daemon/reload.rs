//! What ends the daemon, to be restarted, beside a signal: another configuration, other credentials.

use std::{convert::Infallible, future, path::Path, time::Duration};

use anyhow::anyhow;
use service::one_line;
use tokio::{
    select,
    sync::watch,
    time::{Instant, sleep},
};
use tracing::warn;

use crate::{
    config::{self, Settings, Source},
    events::Outbox,
    files::{CHECK_INTERVAL, WatchedFile},
    finding::{Cause, Finding},
    source::api_server,
};

/// How often the node is checked again for a changed file: mending the node does not touch the file. Each check may
/// make the kernel search for a module.
const AGAIN: Duration = Duration::from_secs(30);

/// Returns the reason to exit when the file means something else than `settings` and `suits_node` accepts it.
/// `reread` reads the file. An unusable file is reported as long as it is unusable, and the old settings hold: a
/// proxy that restarts over and over is worse than one with yesterday's configuration.
pub(super) async fn configuration_changed(
    settings: &Settings,
    reread: impl Fn() -> Result<Settings, config::Error>,
    suits_node: impl AsyncFn(&Settings) -> anyhow::Result<()>,
    unusable: UnusableFile,
    outbox: &Outbox,
) -> anyhow::Error {
    let Some(path) = &settings.config_file else { return future::pending().await };
    // Warnings contain line numbers, so they are not compared.
    let reread = || reread().map(|read| Settings { warnings: settings.warnings.clone(), ..read });
    select! {
        () = other(path, settings, reread, suits_node, &unusable) => anyhow!(
            "{path}: the configuration has changed; exiting to be restarted with it",
            path = path.display()
        ),
        never = unusable.tell(outbox) => match never {},
    }
}

/// Returns when the file differs from `settings` and a daemon could start with it.
async fn other(
    path: &Path,
    settings: &Settings,
    reread: impl Fn() -> Result<Settings, config::Error>,
    suits_node: impl AsyncFn(&Settings) -> anyhow::Result<()>,
    unusable: &UnusableFile,
) {
    let mut file = WatchedFile::unread(path.to_owned());
    // The new settings, and when to check the node for them.
    let mut open = None;
    loop {
        if file.has_changed() {
            open = None;
            match reread() {
                Ok(same) if same == *settings => unusable.end(),
                Ok(other) => open = Some((other, Instant::now())),
                Err(error) => unusable.begin(path, &one_line(&error)),
            }
        }
        if let Some((other, next)) = &mut open
            && *next <= Instant::now()
        {
            match suits_node(other).await {
                Ok(()) => return,
                Err(error) => unusable.begin(path, &format!("{}: {}", path.display(), one_line(&*error))),
            }
            *next = Instant::now() + AGAIN;
        }
        sleep(CHECK_INTERVAL).await;
    }
}

/// The finding that the file is unusable, for `kube-ipvs status`. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct UnusableFile(watch::Sender<Option<Finding>>);

impl UnusableFile {
    /// The finding, while the file is unusable.
    pub(super) fn finding(&self) -> Option<Finding> {
        self.0.borrow().clone()
    }

    fn begin(&self, path: &Path, cause: &str) {
        let what = format!("{cause}; continuing with what was read before");
        let finding = Finding::warning(path.display(), what)
            .cause(Cause::ConfigurationFile)
            .remedy("fix it before the next restart: the daemon would not start");
        if self.finding().as_ref() != Some(&finding) {
            finding.log_begin();
            self.0.send_replace(Some(finding));
        }
    }

    fn end(&self) {
        if let Some(finding) = self.0.send_replace(None) {
            finding.log_end();
        }
    }

    /// Repeats the finding in Events while the file is unusable.
    async fn tell(&self, outbox: &Outbox) -> Infallible {
        let mut held = self.0.subscribe();
        loop {
            let finding = held.borrow_and_update().clone();
            let say = async {
                match finding {
                    Some(finding) => {
                        outbox.remind(Cause::ConfigurationFile.into(), &finding.to_string()).await
                    }
                    None => future::pending().await,
                }
            };
            select! {
                never = say => match never {},
                // Fails only without a sender, which is ours.
                _ = held.changed() => {}
            }
        }
    }
}

/// The files as they were when the client was made: a kubeconfig, certificates and keys. Tokens are not among them,
/// since the client rereads them.
pub(super) struct Credentials(Vec<WatchedFile>);

impl Credentials {
    /// The files named by these settings. Call it before they are used.
    pub(super) fn for_settings(settings: &Settings) -> Self {
        let files = match &settings.source {
            Source::Api { kubeconfig, master } => api_server::files(kubeconfig.as_deref(), master.as_deref()),
            Source::Directory(_) => Vec::new(),
        };
        Self(files.into_iter().map(WatchedFile::known).collect())
    }

    /// Returns the reason to exit when a file has changed. While the new files are unusable the old ones hold: a
    /// certificate may come a moment before its key.
    pub(super) async fn changed(mut self, settings: &Settings) -> anyhow::Error {
        let Source::Api { kubeconfig, master } = &settings.source else {
            return future::pending().await;
        };
        // The changed file, while it is not known to be usable.
        let mut changed = None;
        loop {
            sleep(CHECK_INTERVAL).await;
            let newly =
                self.0.iter_mut().filter_map(|file| file.has_changed().then(|| file.path.clone())).last();
            let is_new = newly.is_some();
            changed = newly.or(changed);
            let Some(path) = &changed else { continue };
            let path = path.display();
            // A file that it names may come later, and is not watched yet: so it is tried again each time.
            match api_server::server(kubeconfig.as_deref(), master.as_deref()).await {
                Ok(_) => {
                    return anyhow!(
                        "{path}: the way to the API server has changed; exiting to be restarted with it"
                    );
                }
                Err(error) if is_new => {
                    warn!("{path} has changed: {error:#}; continuing with what was read before");
                }
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
