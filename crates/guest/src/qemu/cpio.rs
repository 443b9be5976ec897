//! A writer for the "newc" cpio format, which the kernel unpacks as initramfs.
//!
//! An archive is a sequence of entries: a header of "070701" and thirteen numbers of eight
//! hexadecimal digits, the name with a final NUL, the data. Name and data are each padded to a
//! multiple of four bytes. An entry named `TRAILER!!!` ends it. See
//! `Documentation/driver-api/early-userspace/buffer-format.rst` in the kernel's sources.

use std::io::{self, Write};

const TRAILER: &str = "TRAILER!!!";

// From stat(2).
const S_IFDIR: u32 = 0o040_000;
const S_IFCHR: u32 = 0o020_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

/// What stands at a path. Everything belongs to root.
pub(super) enum Entry<'a> {
    /// A directory, mode 0755.
    Directory,
    /// A regular file with its permission bits.
    File { permissions: u32, data: &'a [u8] },
    /// A symbolic link to the path given.
    Symlink(&'a [u8]),
    /// A character device, mode 0600.
    Device { major: u32, minor: u32 },
}

/// Writes an archive, entry by entry. A directory comes before what is in it.
pub(super) struct Archive<W> {
    out: W,
    next_inode: u32,
}

impl<W: Write> Archive<W> {
    /// An empty archive.
    pub(super) fn new(out: W) -> Self {
        Self { out, next_inode: 1 }
    }

    /// Adds the entry at `name`, a path without its leading slash. `InvalidInput` if the data has
    /// 4 GiB or more, which the format cannot say.
    pub(super) fn add(&mut self, name: &[u8], entry: &Entry<'_>) -> io::Result<()> {
        let (mode, data, device) = match *entry {
            Entry::Directory => (S_IFDIR | 0o755, &[][..], (0, 0)),
            Entry::File { permissions, data } => (S_IFREG | (permissions & 0o7777), data, (0, 0)),
            Entry::Symlink(target) => (S_IFLNK | 0o777, target, (0, 0)),
            Entry::Device { major, minor } => (S_IFCHR | 0o600, &[][..], (major, minor)),
        };
        let inode = self.next_inode;
        self.next_inode += 1;
        self.record(inode, mode, device, name, data)
    }

    /// Ends the archive and gives the writer back.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.record(0, 0, (0, 0), TRAILER.as_bytes(), &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn record(
        &mut self,
        inode: u32,
        mode: u32,
        (major, minor): (u32, u32),
        name: &[u8],
        data: &[u8],
    ) -> io::Result<()> {
        let too_large = |_| io::Error::new(io::ErrorKind::InvalidInput, "4 GiB or more in one cpio entry");
        let size = u32::try_from(data.len()).map_err(too_large)?;
        let name_size = u32::try_from(name.len() + 1).map_err(too_large)?;
        let links = 1;
        // inode, mode, uid, gid, links, mtime, size, device's major and minor, the node's own
        // major and minor, size of the name, checksum (unused).
        let numbers = [inode, mode, 0, 0, links, 0, size, 0, 0, major, minor, name_size, 0];
        self.out.write_all(b"070701")?;
        for number in numbers {
            write!(self.out, "{number:08x}")?;
        }
        self.out.write_all(name)?;
        self.out.write_all(&[0])?;
        // The header's 110 bytes count for the alignment of what follows the name.
        self.pad(110 + name.len() + 1)?;
        self.out.write_all(data)?;
        self.pad(data.len())
    }

    fn pad(&mut self, written: usize) -> io::Result<()> {
        let zeros: &[u8] = match written % 4 {
            1 => &[0; 3],
            2 => &[0; 2],
            3 => &[0; 1],
            _ => &[],
        };
        self.out.write_all(zeros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_laid_out_as_the_format_says() {
        let mut archive = Archive::new(Vec::new());
        archive.add(b"a", &Entry::File { permissions: 0o644, data: b"12345" }).unwrap();
        let bytes = archive.finish().unwrap();
        let header = concat!(
            "070701", "00000001", "000081a4", "00000000", "00000000", "00000001", "00000000", "00000005",
            "00000000", "00000000", "00000000", "00000000", "00000002", "00000000"
        );
        assert_eq!(&bytes[..110], header.as_bytes());
        assert_eq!(&bytes[110..120], b"a\0".iter().chain(b"12345\0\0\0").copied().collect::<Vec<_>>());
        assert!(bytes[120..].starts_with(b"070701"));
        assert!(bytes.ends_with(b"TRAILER!!!\0\0\0\0"));
        assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn every_entry_starts_on_a_multiple_of_four_whatever_the_lengths() {
        for name in ["a", "ab", "abc", "abcd"] {
            for data in [&b""[..], b"1", b"12", b"123", b"1234"] {
                let mut archive = Archive::new(Vec::new());
                archive.add(name.as_bytes(), &Entry::File { permissions: 0o755, data }).unwrap();
                let trailer = archive.finish().unwrap().windows(6).rposition(|at| at == b"070701").unwrap();
                assert_eq!(trailer % 4, 0, "{name:?} {data:?}");
            }
        }
    }

    #[test]
    fn devices_links_and_directories_carry_their_type() {
        let mut archive = Archive::new(Vec::new());
        archive.add(b"dev", &Entry::Directory).unwrap();
        archive.add(b"dev/console", &Entry::Device { major: 5, minor: 1 }).unwrap();
        archive.add(b"sh", &Entry::Symlink(b"busybox")).unwrap();
        let text = String::from_utf8(archive.finish().unwrap()).unwrap();
        let modes: Vec<&str> = text.match_indices("070701").map(|(at, _)| &text[at + 14..at + 22]).collect();
        assert_eq!(modes, ["000041ed", "00002180", "0000a1ff", "00000000"]);
        let device = text.match_indices("070701").nth(1).unwrap().0;
        assert_eq!(&text[device + 6 + 9 * 8..device + 6 + 11 * 8], "0000000500000001");
        assert!(text.contains("sh\0\0\0\0busybox\0"));
    }
}
