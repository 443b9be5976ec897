//! The way to the API server and the credentials for it: when their files say something else, the daemon ends, to be
//! started again with them.

use anyhow::anyhow;
use tokio::time::sleep;
use tracing::warn;

use super::watched_file::{LOOK, WatchedFile};
use crate::{
    config::{Settings, Source},
    source::api_server,
};

/// The files, with what they said when the client was made of them: a kubeconfig, certificates and keys. A token is
/// none of them, for it is read again and again.
pub(in crate::daemon) struct Credentials(Vec<WatchedFile>);

impl Credentials {
    /// The credentials that these settings lead to. To be called before they are used.
    pub(in crate::daemon) fn for_settings(settings: &Settings) -> Self {
        let files = match &settings.source {
            Source::Api { kubeconfig, master } => api_server::files(kubeconfig.as_deref(), master.as_deref()),
            Source::Directory(_) => Vec::new(),
        };
        Self(files.into_iter().map(WatchedFile::known).collect())
    }

    /// Ends with what to say when one of them has changed. As long as they cannot be used, those that were
    /// read before hold: a certificate without its key, for example, which comes a moment later.
    pub(in crate::daemon) async fn changed(mut self, settings: &Settings) -> anyhow::Error {
        let Source::Api { kubeconfig, master } = &settings.source else {
            return std::future::pending().await;
        };
        // Of which it is not known yet whether it can be used.
        let mut changed = None;
        loop {
            sleep(LOOK).await;
            let news = self.0.iter_mut().filter_map(|file| file.has_news().then(|| file.path.clone())).last();
            let is_news = news.is_some();
            changed = news.or(changed);
            let Some(path) = &changed else { continue };
            let path = path.display();
            // What it names may come later, and is not watched yet: so it is tried again each time.
            match api_server::server(kubeconfig.as_deref(), master.as_deref()).await {
                Ok(_) => {
                    return anyhow!(
                        "{path}: what the API server is asked with has changed; ending, to be started again with it"
                    );
                }
                Err(error) if is_news => {
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
    fn credentials_that_cannot_be_used_are_told_of_once_and_not_at_each_look() {
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
