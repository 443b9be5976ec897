//! The commands of README.md and docs, typed on a node with the Services of docs/examples, and what they print.

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::CommandFactory as _;
use kube_ipvs::cli::CommandLine;
use testkit::{
    daemon::{Daemon, binary, eventually, eventually_within},
    lab::{Host, Lab},
};

use crate::support::documents::{self, Command, Place, Scene, expectation::difference};

/// Where the pods of the examples listen.
const POD_PORT: u16 = 8080;

/// How long a command may take until it prints what the document says.
const PATIENCE: Duration = Duration::from_secs(15);

/// The node that readers are to imagine: its Services are those of docs/examples.
struct Stage {
    /// Two pods on the node, and the third on another node.
    lab: Lab,
    /// The other node, which leads to the third pod.
    _other_node: Host,
    files: tempfile::TempDir,
    daemon: Option<Daemon>,
}

impl Stage {
    fn new() -> Self {
        let mut lab = Lab::new(2, POD_PORT).unwrap();
        let other_node = lab.add_pod_on_another_node("eth1", "another-node", POD_PORT).unwrap();
        let files = tempfile::tempdir().unwrap();
        fs::create_dir(files.path().join("manifests")).unwrap();
        fs::create_dir(files.path().join("bin")).unwrap();
        let mut stage = Self { lab, _other_node: other_node, files, daemon: None };
        stage.set(&[]);
        stage
    }

    /// The examples as they are in the repository, and a daemon that has programmed them.
    fn set(&mut self, flags: &[String]) {
        drop(self.daemon.take());
        for file in fs::read_dir(self.manifests()).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
        for file in fs::read_dir(documents::root().join("docs/examples")).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), self.manifests().join(file.file_name())).unwrap();
        }
        // No period repairs what a document has shown to be broken.
        let flags: Vec<&str> = ["--ipvs-min-sync-period=0s", "--ipvs-sync-period=1h"]
            .into_iter()
            .chain(flags.iter().map(String::as_str))
            .collect();
        let daemon = Daemon::with_manifests(&self.lab.node, &self.manifests(), &flags).unwrap();
        // What drains from the scene before may end at any time, and `diff` prints what has ended until it is removed.
        eventually("everything is programmed, and nothing drains", || {
            let status = daemon.ask(&self.lab.node, "status")?;
            ensure!(
                status.contains("synced:          yes") && status.contains("draining:        0"),
                "{status}"
            );
            Ok(())
        })
        .unwrap();
        write_program(&self.programs().join("kube-ipvs"), &daemon);
        self.daemon = Some(daemon);
    }

    fn manifests(&self) -> PathBuf {
        self.files.path().join("manifests")
    }

    fn programs(&self) -> PathBuf {
        self.files.path().join("bin")
    }

    fn host(&self, name: &str) -> &Host {
        let hosts = [&self.lab.node, &self.lab.client];
        let mut hosts = hosts.into_iter().chain(&self.lab.pods);
        let name = if name.is_empty() { "node" } else { name };
        hosts.find(|host| host.name == name).unwrap_or_else(|| panic!("there is no host {name}"))
    }

    /// Does what is to be done before a block.
    fn prepare(&mut self, scene: &Scene) -> Result<()> {
        match scene {
            Scene::NoDaemon => drop(self.daemon.take()),
            Scene::Daemon(flags) => self.set(flags),
            Scene::First(script) => {
                let (_, complaint) = self.shell("", script, &self.manifests())?;
                ensure!(complaint.is_empty(), "{script}: {complaint}");
            }
        }
        Ok(())
    }

    /// What a command prints, errors too, and how it complains if its exit code is not 0.
    fn shell(&self, host: &str, script: &str, directory: &Path) -> Result<(String, String)> {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = self.host(host).command("sh");
        shell.args(["-c", script]).current_dir(directory).stdin(Stdio::null());
        shell.env("PATH", format!("{}:{path}", self.programs().display()));
        // No pipe: what goes on in the background holds it.
        let printed = tempfile::NamedTempFile::new()?;
        let output = printed.reopen()?;
        shell.stdout(output.try_clone()?).stderr(output);
        let status = shell.status()?;
        let printed = String::from_utf8_lossy(&fs::read(printed.path())?).into_owned();
        let complaint = if status.success() { String::new() } else { format!("{status}\n{printed}") };
        Ok((printed, complaint))
    }

    /// Types the command; what it prints may be late, since the daemon follows what was done before.
    fn types(&mut self, command: &Command) -> Result<()> {
        for scene in &command.scenes {
            self.prepare(scene)?;
        }
        let script = command.in_the_test_kernel().map_or_else(|| command.text.clone(), alone);
        let script = script.as_str();
        if command.printed.is_empty() {
            let (_, complaint) = self.shell(&command.host, script, documents::root())?;
            ensure!(complaint.is_empty(), "{complaint}");
            return Ok(());
        }
        let mut first = None;
        eventually_within(PATIENCE, "it prints what the document says", || {
            let (printed, _) = self.shell(&command.host, script, documents::root())?;
            let difference = difference(&command.printed, &printed);
            let said = first.get_or_insert_with(|| printed.clone());
            match difference {
                None => Ok(()),
                Some(difference) if *said == printed => bail!("{difference} in\n{printed}"),
                Some(difference) => bail!("{difference} in\n{printed}\nat first it was\n{said}"),
            }
        })
    }
}

/// The command on a node of its own, which ends with it: what `cargo xtask vm` has for it.
fn alone(command: &str) -> String {
    format!("unshare --net --pid --fork sh <<'END'\nip link set lo up\n{command}\nEND")
}

/// `kube-ipvs` as the reader calls it: the daemon of the test has its socket elsewhere, and the script passes on where.
fn write_program(path: &Path, daemon: &Daemon) {
    let (binary, socket) = (binary().unwrap(), daemon.socket().display().to_string());
    let command_line = CommandLine::command();
    let asks =
        |command: &&clap::Command| command.get_arguments().any(|it| it.get_long() == Some("control-socket"));
    let questions: Vec<_> =
        command_line.get_subcommands().filter(asks).map(clap::Command::get_name).collect();
    let script = format!(
        "#!/bin/sh\ncommand=$1\ncase $command in\n\
         {questions}) shift; exec {binary} $command --control-socket {socket} \"$@\" ;;\n\
         *) exec {binary} \"$@\" ;;\nesac\n",
        questions = questions.join("|"),
        binary = binary.display()
    );
    fs::write(path, script).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Types all commands of a document in their order, and says of each what went wrong.
fn follow(document: &documents::Document) -> String {
    let commands = Command::all(document);
    let commands: Vec<_> =
        commands.iter().filter(|command| Place::for_command(command) == Place::Node).collect();
    let mut wrong = String::new();
    if commands.is_empty() {
        return wrong;
    }
    println!("{}: {} commands", document.name, commands.len());
    let mut stage = Stage::new();
    for command in commands {
        if let Err(error) = stage.types(command) {
            writeln!(wrong, "{}: {}\n{error:#}\n", command.at, command.text).unwrap();
        }
    }
    wrong
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn every_command_of_the_documents_does_and_prints_what_they_say() {
    let only = std::env::var("KUBE_IPVS_DOCUMENT").unwrap_or_default();
    let documents = documents::for_operators();
    let documents = documents.iter().filter(|document| document.name.contains(&only));
    let wrong: String = documents.map(follow).collect();
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_command_that_prints_something_else_or_fails_is_found_out() {
    let mut stage = Stage::new();
    let mut types = |text: &str, printed: &[&str]| {
        let command = Command {
            at: "here".to_owned(),
            scenes: Vec::new(),
            host: String::new(),
            text: text.to_owned(),
            printed: printed.iter().map(|line| (*line).to_owned()).collect(),
        };
        stage.types(&command).context("typed").is_ok()
    };
    assert!(types("kube-ipvs diff", &[]) && types("echo one", &["one"]));
    assert!(!types("kube-ipvs explain default/unknown", &[]) && !types("echo one", &["two"]));
}
