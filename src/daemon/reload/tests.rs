use std::{cell::Cell, fs, os::unix::fs::symlink};

use anyhow::ensure;
use ipvs::Scheduler;
use serde_json::json;
use tempfile::TempDir;
use testkit::log::logged;
use tokio::{runtime::Builder, time::timeout};

use super::*;
use crate::{
    cli,
    events::{REMINDER, tests::Server},
    files::FAILED_READS,
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
    let (unusable, outbox) = (UnusableFile::default(), Outbox::default());
    let watch = configuration_changed(&settings, || read(volume), anything_suits, unusable, &outbox);
    tokio::pin!(watch);
    assert!(timeout(Duration::from_mins(1), &mut watch).await.is_err(), "nothing has changed yet");
    change();
    timeout(Duration::from_mins(1), &mut watch).await.ok().map(|error| error.to_string())
}

#[tokio::test(start_paused = true)]
async fn a_config_map_that_is_swapped_ends_the_daemon() {
    let volume = volume("ipvs: {scheduler: rr}\n");
    let ended = ending(&volume, || publish(&volume, "..2", "ipvs: {scheduler: lc}\n")).await.unwrap();
    assert!(ended.ends_with("config.conf: the configuration has changed; exiting to be restarted with it"));
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_written_in_place_ends_the_daemon_soon() {
    let volume = volume("");
    let start = Instant::now();
    let path = volume.path().join("config.conf");
    let ended =
        ending(&volume, || fs::write(path, format!("{HEAD}clusterCIDR: 10.0.0.0/8\n")).unwrap()).await;
    assert!(ended.is_some() && start.elapsed() < Duration::from_mins(1) + 3 * CHECK_INTERVAL);
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
    let suits = async |settings: &Settings| match settings.services.scheduler {
        Scheduler::LC => Err(anyhow!("the kernel refuses the scheduler lc")),
        _ => Ok(()),
    };
    let outbox = Outbox::default();
    let watch = configuration_changed(&settings, || read(&volume), suits, unusable.clone(), &outbox);
    tokio::pin!(watch);
    publish(&volume, "..2", "mode: ipvs\nipvs: {scheduler: lc}\n");
    assert!(timeout(Duration::from_mins(1), &mut watch).await.is_err());
    let what = unusable.finding().unwrap().what;
    assert!(
        what.ends_with(
            "config.conf: the kernel refuses the scheduler lc; continuing with what was read before"
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
    let (settings, unusable, loaded) = (read(&volume).unwrap(), UnusableFile::default(), Cell::new(false));
    let suits = async |_: &Settings| {
        ensure!(loaded.get(), "the kernel refuses the scheduler lc");
        Ok(())
    };
    let watch = configuration_changed(&settings, || read(&volume), suits, unusable.clone(), &outbox);
    tokio::pin!(watch);
    publish(&volume, "..2", "mode: ipvs\nipvs: {scheduler: lc}\n");
    assert!(timeout(AGAIN * 9, &mut watch).await.is_err());
    assert!(unusable.finding().is_some());
    assert_eq!(server.events().len(), 1, "an unchanged cause is not reported again");
    loaded.set(true);
    assert!(timeout(AGAIN + CHECK_INTERVAL, &mut watch).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn unusable_file_is_a_warning_while_it_lasts_and_an_event_with_the_cause() {
    let (server, volume) = (Server::taking(), volume("mode: ipvs\n"));
    let (outbox, publisher) = server.queue();
    tokio::spawn(publisher.run());
    let (settings, unusable) = (read(&volume).unwrap(), UnusableFile::default());
    let watch = configuration_changed(&settings, || read(&volume), anything_suits, unusable.clone(), &outbox);
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
    assert!(mode.contains("config.conf: mode: ") && mode.contains("continuing with"), "{mode}");
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
        sleep(CHECK_INTERVAL * (FAILED_READS - 2)).await;
        let not_yet = what();
        sleep(CHECK_INTERVAL * 3).await;
        let gone = what();
        fs::write(&file, b"\xff\xfe").unwrap();
        sleep(Duration::from_mins(1)).await;
        let no_text = what();
        fs::write(&file, format!("{HEAD}mode: ipvs\n")).unwrap();
        sleep(Duration::from_mins(1)).await;
        let whole = what();
        fs::remove_file(&file).unwrap();
        sleep(CHECK_INTERVAL * (FAILED_READS - 2)).await;
        fs::write(&file, format!("{HEAD}mode: ipvs\n")).unwrap();
        sleep(Duration::from_mins(1)).await;
        (malformed, not_yet, gone, no_text, whole, what())
    };
    let outbox = Outbox::default();
    let (malformed, not_yet, gone, no_text, whole, replaced) = tokio::select! {
        said = story => said,
        end = configuration_changed(&settings, || read(&volume), anything_suits, unusable.clone(), &outbox) => panic!("{end}"),
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
    let watch = configuration_changed(&settings, || read(&volume), anything_suits, unusable, &outbox);
    tokio::pin!(watch);
    fs::remove_file(volume.path().join("..1/config.conf")).unwrap();
    assert!(timeout(REMINDER * 2 + Duration::from_mins(5), &mut watch).await.is_err());
    assert_eq!(server.events().len(), 3);
    fs::write(volume.path().join("..1/config.conf"), format!("{HEAD}mode: ipvs\n")).unwrap();
    assert!(timeout(REMINDER * 3, &mut watch).await.is_err());
    assert_eq!(server.events(), [""; 0], "it can be used again");
}

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
