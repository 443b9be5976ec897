//! Why manifests could not be read.

use std::{io, path::PathBuf};

/// Why manifests could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory itself could not be read.
    #[error("cannot read the directory {}", path.display())]
    ReadDirectory {
        /// The directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// One of the files in it could not be read.
    #[error("cannot read {}", path.display())]
    ReadFile {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file is not YAML, or not JSON.
    #[error("{}:{line}:{column}: {message}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The column in the line, counted from 1.
        column: u64,
        /// What is wrong there, in words.
        message: String,
    },
    /// The system does not notify of changes in the directory.
    #[error("cannot watch the directory {} for changes", path.display())]
    Watch {
        /// The directory.
        path: PathBuf,
        /// The system's answer.
        source: notify::Error,
    },
}
