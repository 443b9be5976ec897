//! The shared libraries a program is linked with.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;

/// Whether the file at `path` is an ELF file.
pub(super) fn is_elf(path: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok_and(|()| magic == *b"\x7fELF")
}

/// The shared libraries `program` needs, the dynamic loader among them; none for a static program.
pub(super) fn libraries(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).env("LC_ALL", "C").output().context("starting ldd")?;
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

/// Takes the paths from lines like `libc.so.6 => /lib/libc.so.6 (0x…)` and
/// `/lib64/ld-linux-x86-64.so.2 (0x…)`.
fn parse(ldd: &str) -> Vec<PathBuf> {
    ldd.lines()
        .filter_map(|line| {
            let found = line.split_once("=>").map_or(line, |(_, found)| found);
            found.split_whitespace().next().filter(|path| path.starts_with('/')).map(PathBuf::from)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_the_absolute_paths_that_ldd_names() {
        let dynamic = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibnl-3.so.200 => /lib/x86_64-linux-gnu/libnl-3.so.200 (0x0)\n\
                       \tlibgone.so => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let paths = ["/lib/x86_64-linux-gnu/libnl-3.so.200", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(parse(dynamic), paths.map(PathBuf::from));
        assert!(parse("\tstatically linked\n").is_empty());
        assert!(parse("\tnot a dynamic executable\n").is_empty());
    }
}
