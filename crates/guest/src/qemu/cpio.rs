//! A writer for the "newc" cpio format, which the kernel unpacks as initramfs.
//!
//! An archive is a sequence of entries: a header of "070701" and thirteen numbers of eight
//! hexadecimal digits, the name with a final NUL, the data. Name and data are each padded to a
//! multiple of four bytes. An entry named `TRAILER!!!` ends it. See
//! `Documentation/driver-api/early-userspace/buffer-format.rst` in the kernel's sources.

use std::io::{self, Write};

/// Writes an archive, entry by entry. A directory comes before what is in it. Everything belongs to root.
pub(super) struct Archive<W> {
    out: W,
    next_inode: u32,
}

impl<W: Write> Archive<W> {
    /// An empty archive.
    pub(super) fn new(out: W) -> Self {
        Self { out, next_inode: 1 }
    }

    /// Adds the entry at `name`, a path without its leading slash, with the mode of stat(2), a file's bytes or a link's
    /// target, and a device's numbers. `InvalidInput` if the data has 4 GiB or more, which the format cannot say.
    pub(super) fn add(
        &mut self,
        name: &[u8],
        mode: u32,
        data: &[u8],
        (major, minor): (u32, u32),
    ) -> io::Result<()> {
        let too_large = |_| io::Error::new(io::ErrorKind::InvalidInput, "4 GiB or more in one cpio entry");
        let size = u32::try_from(data.len()).map_err(too_large)?;
        let name_size = u32::try_from(name.len() + 1).map_err(too_large)?;
        let (inode, links) = (self.next_inode, 1);
        self.next_inode += 1;
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

    /// Ends the archive and gives the writer back.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.add(b"TRAILER!!!", 0, &[], (0, 0))?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn pad(&mut self, written: usize) -> io::Result<()> {
        let length = written.next_multiple_of(4) - written;
        self.out.write_all([0; 3].get(..length).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_laid_out_as_the_format_says() {
        let mut archive = Archive::new(Vec::new());
        archive.add(b"a", 0o100_644, b"12345", (0, 0)).unwrap();
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
                archive.add(name.as_bytes(), 0o100_755, data, (0, 0)).unwrap();
                let trailer = archive.finish().unwrap().windows(6).rposition(|at| at == b"070701").unwrap();
                assert_eq!(trailer % 4, 0, "{name:?} {data:?}");
            }
        }
    }

    #[test]
    fn a_device_has_its_numbers_and_a_link_its_target() {
        let mut archive = Archive::new(Vec::new());
        archive.add(b"dev/console", 0o020_600, &[], (5, 1)).unwrap();
        archive.add(b"sh", 0o120_777, b"busybox", (0, 0)).unwrap();
        let text = String::from_utf8(archive.finish().unwrap()).unwrap();
        assert_eq!(&text[14..22], "00002180");
        assert_eq!(&text[6 + 9 * 8..6 + 11 * 8], "0000000500000001");
        assert!(text.contains("sh\0\0\0\0busybox\0"));
    }
}
