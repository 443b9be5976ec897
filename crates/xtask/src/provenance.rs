//! How something was built, as a SLSA provenance (<https://slsa.dev/spec/v1.0/provenance>): of which sources, by which
//! command, with which compiler.
//!
//! It names no time and no machine: the same sources give the same provenance, wherever they are built.

use anyhow::Result;
use guest::{files, platform::Platform, source::Source, workspace};
use serde_json::{Value, json};

/// The media type of what [`statement`] makes.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.in-toto+json";

/// The type of its predicate.
pub(crate) const PREDICATE: &str = "https://slsa.dev/provenance/v1";

const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");

/// An in-toto statement of these subjects: files or images by their names, with their SHA-256 in hexadecimal digits.
pub(crate) fn statement(
    source: &Source,
    command: &str,
    platforms: &[Platform],
    subjects: &[(String, String)],
) -> Result<String> {
    let lock_file = files::bytes(&workspace::root().join("Cargo.lock"))?;
    let from = json!({"uri": format!("git+{REPOSITORY}"), "digest": {"gitCommit": source.commit}});
    let lock_file = json!({"name": "Cargo.lock", "digest": {"sha256": files::sha256(&lock_file)?}});
    let subjects: Vec<Value> =
        subjects.iter().map(|(name, sha256)| json!({"name": name, "digest": {"sha256": sha256}})).collect();
    let targets: Vec<&str> = platforms.iter().map(|platform| platform.target()).collect();
    let c_compilers: Vec<String> = platforms.iter().filter_map(|platform| platform.c_compiler()).collect();
    let statement = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": format!("{REPOSITORY}/blob/main/docs/verify.md#what-the-provenance-says"),
                "externalParameters": {"source": from, "command": command},
                "internalParameters": {
                    "targets": targets,
                    "compiler": workspace::compiler_version()?,
                    "cCompilers": c_compilers,
                },
                "resolvedDependencies": [from, lock_file],
            },
            "runDetails": {"builder": {"id": format!("{REPOSITORY}/blob/main/docs/verify.md#who-builds")}},
        },
    });
    Ok(statement.to_string())
}
