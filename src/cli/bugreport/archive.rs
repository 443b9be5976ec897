//! Writes a compressed archive.

use std::io::{self, Write};

use flate2::{Compression, write::GzEncoder};
use k8s_openapi::jiff::Timestamp;
use tar::{Builder, Header};

use super::Item;

/// Writes the items as files of one directory. In place of one that cannot be had there is `NAME.error.txt`.
pub(super) fn write(out: impl Write, directory: &str, now: Timestamp, items: &[Item]) -> io::Result<()> {
    let mut archive = Builder::new(GzEncoder::new(out, Compression::default()));
    for Item { name, content } in items {
        let added = match content {
            Ok(text) => add(&mut archive, &format!("{directory}/{name}"), now, text),
            Err(why) => add(&mut archive, &format!("{directory}/{name}.error.txt"), now, &format!("{why}\n")),
        };
        added?;
    }
    archive.into_inner()?.finish()?.flush()
}

fn add(archive: &mut Builder<impl Write>, path: &str, now: Timestamp, text: &str) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_mode(0o644);
    header.set_mtime(now.as_second().try_into().unwrap_or_default());
    header.set_size(text.len().try_into().unwrap_or(u64::MAX));
    archive.append_data(&mut header, path, text.as_bytes())
}
