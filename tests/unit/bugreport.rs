//! `kube-ipvs bugreport` without a daemon.

use std::{io::Read, path::Path, process::Output};

use flate2::read::GzDecoder;

const SECRET: &str = "c2VjcmV0LW9mLXRoZS1lbnZpcm9ubWVudA";

/// Runs it with a secret in its environment.
fn bugreport(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = crate::kube_ipvs();
    command.args(["bugreport", "--control-socket=/nonexistent/control.sock"]).args(arguments);
    command.current_dir(directory).env("KUBE_TOKEN", SECRET).output().unwrap()
}

/// What is packed.
fn unpacked(archive: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(archive).read_to_end(&mut bytes).unwrap();
    bytes
}

fn files(archive: &[u8]) -> Vec<String> {
    let bytes = unpacked(archive);
    let mut archive = tar::Archive::new(&bytes[..]);
    let files = archive.entries().unwrap().map(|file| file.unwrap().path().unwrap().into_owned());
    files.map(|file| file.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn without_a_daemon_it_has_what_the_node_tells_and_why_the_rest_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let output = bugreport(directory.path(), &["-"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files = files(&output.stdout);
    for expected in
        ["version.txt", "kernel.txt", "sysctls.txt", "status.json.error.txt", "metrics.txt.error.txt"]
    {
        assert!(files.iter().any(|file| file == expected), "{expected} is not in {files:?}");
    }
    assert_eq!(
        std::fs::read_dir(directory.path()).unwrap().count(),
        0,
        "nothing is written but to standard output"
    );
}

#[test]
fn nothing_of_the_environment_is_in_it() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = unpacked(&bugreport(directory.path(), &["-"]).stdout);
    let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has("Linux version"), "it is unpacked");
    assert!(!has(SECRET) && !has("KUBE_TOKEN"));
}

#[test]
fn it_names_its_file_after_the_node_and_the_time_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let output = bugreport(directory.path(), &[]);
    let name = String::from_utf8(output.stdout).unwrap();
    let name = name.trim_end();
    assert!(name.starts_with("kube-ipvs-bugreport-") && name.ends_with("Z.tar.gz"), "{name}");
    assert!(!files(&std::fs::read(directory.path().join(name)).unwrap()).is_empty());
    let output = bugreport(directory.path(), &["/nonexistent/report.tar.gz"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains(
            "cannot write /nonexistent/report.tar.gz (- is standard output): its directory does not exist\n"
        ),
        "{said}"
    );
}
