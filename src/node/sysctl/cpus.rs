//! How many processors the machine has.

use std::{fs, num::NonZero, thread};

use super::Sysctl;

impl Sysctl {
    /// How many processors are online, whichever of them this process may use: conntrack's table serves all
    /// of them.
    pub(crate) fn processors(&self) -> u32 {
        let list = fs::read_to_string(self.processors.join("online")).ok();
        let online = list.and_then(|list| count(list.trim())).filter(|count| *count > 0);
        online.unwrap_or_else(|| {
            let usable = thread::available_parallelism().map_or(1, NonZero::get);
            u32::try_from(usable).unwrap_or(u32::MAX)
        })
    }
}

/// `0-3,8` is five.
fn count(list: &str) -> Option<u32> {
    list.split(',').try_fold(0u32, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// What is found where the kernel says this.
    fn found(online: &str) -> u32 {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("sys/devices/system/cpu");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("online"), online).unwrap();
        Sysctl::at(root.path()).processors()
    }

    #[test]
    fn processors_are_counted_from_the_kernel_s_list() {
        for (list, processors) in [
            ("0", Some(1)),
            ("0-3", Some(4)),
            ("0-3,8,10-11", Some(7)),
            ("", None),
            ("3-0", None),
            ("x", None),
        ] {
            assert_eq!(count(list), processors, "{list}");
        }
    }

    #[test]
    fn without_a_list_of_use_those_that_this_process_may_use_count() {
        assert_eq!(found("0-90,95\n"), 92);
        let usable = u32::try_from(thread::available_parallelism().unwrap().get()).unwrap();
        for list in ["", "x\n", "5-4\n"] {
            assert_eq!(found(list), usable, "{list}");
        }
        assert_eq!(Sysctl::at(Path::new("/nonexistent")).processors(), usable);
    }
}
