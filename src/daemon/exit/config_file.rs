//! Ends the daemon, to be restarted, when the meaning of its configuration file changes.

use std::{convert::Infallible, future, path::Path, time::Duration};

use anyhow::anyhow;
use service::one_line;
use tokio::{
    select,
    sync::watch,
    time::{Instant, sleep},
};

use super::watched_file::{LOOK, WatchedFile};
use crate::{
    config::{self, Settings},
    events::Outbox,
    finding::{Cause, Finding},
};

/// How often the node is checked again for a changed file: mending the node does not touch the file. Each check may
/// make the kernel look for a module.
const AGAIN: Duration = Duration::from_secs(30);

/// Returns the reason to exit when the file means something else than `settings` and `suits_node` accepts it.
/// `reread` reads the file. An unusable file is reported as long as it is unusable, and the old settings hold: a
/// proxy that restarts over and over is worse than one with yesterday's configuration.
pub(in crate::daemon) async fn changed(
    settings: &Settings,
    reread: impl Fn() -> Result<Settings, config::Error>,
    suits_node: impl AsyncFn(&Settings) -> anyhow::Result<()>,
    unusable: UnusableFile,
    outbox: Option<Outbox>,
) -> anyhow::Error {
    let Some(path) = &settings.config_file else { return future::pending().await };
    // Warnings contain line numbers, so they are not compared.
    let reread = || reread().map(|read| Settings { warnings: settings.warnings.clone(), ..read });
    select! {
        () = other(path, settings, reread, suits_node, &unusable) => anyhow!(
            "{path}: the configuration has changed; ending, to be started again with it",
            path = path.display()
        ),
        never = unusable.tell(outbox.as_ref()) => match never {},
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
        sleep(LOOK).await;
    }
}

/// The finding that the file is unusable, for `kube-ipvs status`. Clones share it.
#[derive(Clone, Debug, Default)]
pub(in crate::daemon) struct UnusableFile(watch::Sender<Option<Finding>>);

impl UnusableFile {
    /// The finding, while the file is unusable.
    pub(in crate::daemon) fn finding(&self) -> Option<Finding> {
        self.0.borrow().clone()
    }

    fn begin(&self, path: &Path, cause: &str) {
        let what = format!("{cause}; going on with what was read before");
        let finding = Finding::warning(path.display(), what)
            .cause(Cause::ConfigurationFile)
            .remedy("put it right before anything starts the daemon anew, which would end with this");
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
    async fn tell(&self, outbox: Option<&Outbox>) -> Infallible {
        let Some(outbox) = outbox else { return future::pending().await };
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

#[cfg(test)]
mod tests {
    use std::{cell::Cell, fs, os::unix::fs::symlink};

    use anyhow::ensure;
    use ipvs::Scheduler;
    use tempfile::TempDir;
    use tokio::time::{Instant, timeout};

    use super::{super::watched_file::FAILED_LOOKS, *};
    use crate::{
        cli,
        events::{REMINDER, tests::Server},
    };

    const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

    /// A directory as the kubelet mounts a ConfigMap, with this in the file.
    fn volume(fields: &str) -> TempDir {
        let volume = tempfile::tempdir().unwrap();
        publish(&volume, "..1", fields);
        symlink("..data/config.conf", volume.path().join("config.conf")).unwrap();
        volume
    }

    /// Swaps the contents of the volume, as the kubelet does it.
    fn publish(volume: &TempDir, version: &str, fields: &str) {
        let path = |name: &str| volume.path().join(name);
        fs::create_dir(path(version)).unwrap();
        fs::write(path(version).join("config.conf"), format!("{HEAD}{fields}")).unwrap();
        symlink(version, path("..data_tmp")).unwrap();
        fs::rename(path("..data_tmp"), path("..data")).unwrap();
    }

    fn read(volume: &TempDir) -> Result<Settings, config::Error> {
        let path = volume.path().join("config.conf").into_os_string();
        let line = cli::parse(["kube-ipvs".into(), "--hostname-override=n".into(), "--config".into(), path]);
        Settings::resolve(line.unwrap().flags().unwrap())
    }

    async fn anything_suits(_: &Settings) -> anyhow::Result<()> {
        Ok(())
    }

    /// What the daemon ends with within a minute, if it ends.
    async fn ending(volume: &TempDir, change: impl FnOnce()) -> Option<String> {
        let settings = read(volume).unwrap();
        let watch = changed(&settings, || read(volume), anything_suits, UnusableFile::default(), None);
        tokio::pin!(watch);
        assert!(timeout(Duration::from_mins(1), &mut watch).await.is_err(), "nothing has changed yet");
        change();
        timeout(Duration::from_mins(1), &mut watch).await.ok().map(|error| error.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn a_config_map_that_is_swapped_ends_the_daemon() {
        let volume = volume("ipvs: {scheduler: rr}\n");
        let ended = ending(&volume, || publish(&volume, "..2", "ipvs: {scheduler: lc}\n")).await.unwrap();
        assert!(
            ended
                .ends_with("config.conf: the configuration has changed; ending, to be started again with it")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_written_in_place_ends_the_daemon_soon() {
        let volume = volume("");
        let start = Instant::now();
        let path = volume.path().join("config.conf");
        let ended =
            ending(&volume, || fs::write(path, format!("{HEAD}clusterCIDR: 10.0.0.0/8\n")).unwrap()).await;
        assert!(ended.is_some() && start.elapsed() < Duration::from_mins(1) + 3 * LOOK);
    }

    #[tokio::test(start_paused = true)]
    async fn another_text_that_means_the_same_changes_nothing() {
        let volume = volume("mode: ipvs\n");
        assert_eq!(ending(&volume, || publish(&volume, "..2", "# For later.\nmode: ipvs\n")).await, None);
        publish(&volume, "..3", "modus: ipvs\n");
        assert_eq!(ending(&volume, || publish(&volume, "..4", "# For later.\nmodus: ipvs\n")).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn daemon_keeps_its_settings_while_the_file_is_unusable_or_gone() {
        let volume = volume("mode: ipvs\n");
        assert_eq!(ending(&volume, || publish(&volume, "..2", "mode: iptables\n")).await, None);
        publish(&volume, "..3", "mode: ipvs\n");
        assert_eq!(ending(&volume, || publish(&volume, "..4", "ipvs: [\n")).await, None);
        publish(&volume, "..5", "mode: ipvs\n");
        let gone = || fs::remove_file(volume.path().join("config.conf")).unwrap();
        assert_eq!(ending(&volume, gone).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn settings_that_do_not_suit_this_node_are_a_warning_and_do_not_end_the_daemon() {
        let volume = volume("mode: ipvs\n");
        let (settings, unusable) = (read(&volume).unwrap(), UnusableFile::default());
        let suits = async |settings: &Settings| match settings.scheduler {
            Scheduler::LC => Err(anyhow!("the kernel does not take the scheduler lc")),
            _ => Ok(()),
        };
        let watch = changed(&settings, || read(&volume), suits, unusable.clone(), None);
        tokio::pin!(watch);
        publish(&volume, "..2", "mode: ipvs\nipvs: {scheduler: lc}\n");
        assert!(timeout(Duration::from_mins(1), &mut watch).await.is_err());
        let what = unusable.finding().unwrap().what;
        assert!(
            what.ends_with(
                "config.conf: the kernel does not take the scheduler lc; going on with what was read before"
            ),
            "{what}"
        );
        publish(&volume, "..3", "mode: ipvs\nipvs: {scheduler: sh}\n");
        assert!(timeout(Duration::from_mins(1), &mut watch).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_comes_to_suit_an_unchanged_file_ends_the_daemon() {
        let (server, volume) = (Server::taking(), volume("mode: ipvs\n"));
        let (outbox, publisher) = server.queue();
        tokio::spawn(publisher.run());
        let (settings, unusable, loaded) =
            (read(&volume).unwrap(), UnusableFile::default(), Cell::new(false));
        let suits = async |_: &Settings| {
            ensure!(loaded.get(), "the kernel does not take the scheduler lc");
            Ok(())
        };
        let watch = changed(&settings, || read(&volume), suits, unusable.clone(), Some(outbox.clone()));
        tokio::pin!(watch);
        publish(&volume, "..2", "mode: ipvs\nipvs: {scheduler: lc}\n");
        assert!(timeout(AGAIN * 9, &mut watch).await.is_err());
        assert!(unusable.finding().is_some());
        assert_eq!(server.events().len(), 1, "an unchanged cause is not reported again");
        loaded.set(true);
        assert!(timeout(AGAIN + LOOK, &mut watch).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn unusable_file_is_a_warning_while_it_lasts_and_an_event_with_the_cause() {
        let (server, volume) = (Server::taking(), volume("mode: ipvs\n"));
        let (outbox, publisher) = server.queue();
        tokio::spawn(publisher.run());
        let (settings, unusable) = (read(&volume).unwrap(), UnusableFile::default());
        let watch =
            changed(&settings, || read(&volume), anything_suits, unusable.clone(), Some(outbox.clone()));
        let story = async {
            let mut said = Vec::new();
            let steps = ["mode: iptables\n", "mode: iptables # Again.\n", "ipvs: [\n", "mode: ipvs\n"];
            for (step, fields) in steps.into_iter().enumerate() {
                sleep(Duration::from_mins(1)).await;
                publish(&volume, &format!("..{}", step + 2), fields);
                sleep(Duration::from_mins(1)).await;
                said.push(unusable.finding().map(|finding| finding.what));
            }
            said
        };
        let said = tokio::select! {
            said = story => said,
            end = watch => panic!("{end}"),
        };
        let [Some(mode), Some(again), Some(malformed), None] = &said[..] else { panic!("{said:?}") };
        assert!(mode.contains("config.conf: mode: ") && mode.contains("going on with"), "{mode}");
        assert_eq!(mode, again);
        assert!(malformed.contains("config.conf:3:7: "), "{malformed}");
        sleep(Duration::from_mins(15)).await;
        let events = server.events();
        let notes: Vec<_> = events.iter().map(|event| event["note"].as_str().unwrap()).collect();
        let [first, second] = notes[..] else { panic!("{notes:?}") };
        assert!(first.starts_with(mode) && second.contains(malformed), "{notes:?}");
        for event in &events {
            assert_eq!(
                (&event["reason"], &event["type"]),
                (&"ConfigurationFileUnusable".into(), &"Warning".into())
            );
            assert_eq!(event["regarding"]["kind"], "Node");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn missing_or_binary_file_is_a_warning_unless_it_is_being_replaced() {
        let volume = volume("mode: ipvs\n");
        let file = volume.path().join("..1/config.conf");
        let (settings, unusable) = (read(&volume).unwrap(), UnusableFile::default());
        let what = || unusable.finding().map(|finding| finding.what);
        let story = async {
            let bad = "ipvs: [\n";
            fs::write(&file, format!("{HEAD}{bad}")).unwrap();
            sleep(Duration::from_mins(1)).await;
            let malformed = what();
            fs::remove_file(&file).unwrap();
            sleep(LOOK * (FAILED_LOOKS - 2)).await;
            let not_yet = what();
            sleep(LOOK * 3).await;
            let gone = what();
            fs::write(&file, b"\xff\xfe").unwrap();
            sleep(Duration::from_mins(1)).await;
            let no_text = what();
            fs::write(&file, format!("{HEAD}mode: ipvs\n")).unwrap();
            sleep(Duration::from_mins(1)).await;
            let whole = what();
            fs::remove_file(&file).unwrap();
            sleep(LOOK * (FAILED_LOOKS - 2)).await;
            fs::write(&file, format!("{HEAD}mode: ipvs\n")).unwrap();
            sleep(Duration::from_mins(1)).await;
            (malformed, not_yet, gone, no_text, whole, what())
        };
        let (malformed, not_yet, gone, no_text, whole, replaced) = tokio::select! {
            said = story => said,
            end = changed(&settings, || read(&volume), anything_suits, unusable.clone(), None) => panic!("{end}"),
        };
        assert!(malformed.as_ref().unwrap().contains("config.conf:3:7: "), "{malformed:?}");
        assert_eq!(not_yet, malformed);
        let (gone, no_text) = (gone.unwrap(), no_text.unwrap());
        assert!(gone.contains("cannot be read: No such file"), "{gone}");
        assert!(no_text.contains("cannot be read: ") && no_text.contains("invalid utf-8"), "{no_text}");
        assert_eq!((whole, replaced), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn as_long_as_the_file_cannot_be_used_an_event_says_so_every_half_hour() {
        let (server, volume) = (Server::taking(), volume("mode: ipvs\n"));
        let (outbox, publisher) = server.queue();
        tokio::spawn(publisher.run());
        let (settings, unusable) = (read(&volume).unwrap(), UnusableFile::default());
        let watch = changed(&settings, || read(&volume), anything_suits, unusable, Some(outbox.clone()));
        tokio::pin!(watch);
        fs::remove_file(volume.path().join("..1/config.conf")).unwrap();
        assert!(timeout(REMINDER * 2 + Duration::from_mins(5), &mut watch).await.is_err());
        assert_eq!(server.events().len(), 3);
        fs::write(volume.path().join("..1/config.conf"), format!("{HEAD}mode: ipvs\n")).unwrap();
        assert!(timeout(REMINDER * 3, &mut watch).await.is_err());
        assert_eq!(server.events(), [""; 0], "it can be used again");
    }
}
