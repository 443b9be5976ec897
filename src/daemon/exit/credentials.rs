//! Ends the daemon, to be restarted, when the files change that the API client was made of.

use anyhow::anyhow;
use tokio::time::sleep;
use tracing::warn;

use super::watched_file::{LOOK, WatchedFile};
use crate::{
    config::{Settings, Source},
    source::api_server,
};

/// The files as they were when the client was made: a kubeconfig, certificates and keys. Tokens are not among them,
/// since the client rereads them.
pub(in crate::daemon) struct Credentials(Vec<WatchedFile>);

impl Credentials {
    /// The files named by these settings. Call it before they are used.
    pub(in crate::daemon) fn for_settings(settings: &Settings) -> Self {
        let files = match &settings.source {
            Source::Api { kubeconfig, master } => api_server::files(kubeconfig.as_deref(), master.as_deref()),
            Source::Directory(_) => Vec::new(),
        };
        Self(files.into_iter().map(WatchedFile::known).collect())
    }

    /// Returns the reason to exit when a file has changed. While the new files are unusable the old ones hold: a
    /// certificate may come a moment before its key.
    pub(in crate::daemon) async fn changed(mut self, settings: &Settings) -> anyhow::Error {
        let Source::Api { kubeconfig, master } = &settings.source else {
            return std::future::pending().await;
        };
        // The changed file, while it is not known to be usable.
        let mut changed = None;
        loop {
            sleep(LOOK).await;
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
                        "{path}: what the API server is asked with has changed; ending, to be started again with it"
                    );
                }
                Err(error) if is_new => {
                    warn!("{path} has changed: {error:#}; going on with what was read before");
                }
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use serde_json::json;
    use testkit::log::logged;
    use tokio::{runtime::Builder, time::timeout};

    use super::*;
    use crate::cli;

    #[test]
    fn unusable_credentials_are_reported_once_and_not_at_each_check() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        let kubeconfig = |user| {
            json!({
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:6443"}}],
                "users": [{"name": "u", "user": user}],
            })
        };
        fs::write(&path, kubeconfig(json!({})).to_string()).unwrap();
        let flags =
            ["kube-ipvs".into(), "--hostname-override=n".into(), "--kubeconfig".into(), path.clone().into()];
        let settings = Settings::resolve(cli::parse(flags).unwrap().flags().unwrap()).unwrap();
        let credentials = Credentials::for_settings(&settings);
        let missing = json!({"client-certificate": "missing.crt", "client-key": "missing.key"});
        fs::write(&path, kubeconfig(missing).to_string()).unwrap();
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let lines = logged(|| {
            let a_minute = async { timeout(Duration::from_mins(1), credentials.changed(&settings)).await };
            assert!(runtime.block_on(a_minute).is_err());
        });
        let [line] = &lines.unwrap()[..] else { panic!("not one line") };
        assert!(line.contains("kubeconfig has changed: ") && line.contains("missing.crt"), "{line}");
    }
}
