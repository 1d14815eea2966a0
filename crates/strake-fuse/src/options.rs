//! The options of mount(8) that the kernel keeps, as flags of mount(2).
//!
//! The kernel enforces most of them by itself. What it leaves to the daemon (`ro` for callers that
//! do not come through the kernel, `sync`, `dirsync` and access times) the daemon reads back from
//! the kernel's list of mounts, so the list is always right: see [`crate::mode`].

use rustix::mount::MountFlags;

/// Each option, the flags that it sets, and the flags that it clears.
const TABLE: &[(&str, MountFlags, MountFlags)] = {
    const NONE: MountFlags = MountFlags::empty();
    const TIMES: MountFlags =
        MountFlags::NOATIME.union(MountFlags::RELATIME).union(MountFlags::STRICTATIME);
    &[
        ("async", NONE, MountFlags::SYNCHRONOUS),
        ("atime", NONE, MountFlags::NOATIME),
        ("defaults", NONE, NONE),
        ("dev", NONE, MountFlags::NODEV),
        ("diratime", NONE, MountFlags::NODIRATIME),
        ("dirsync", MountFlags::DIRSYNC, NONE),
        ("exec", NONE, MountFlags::NOEXEC),
        ("noatime", MountFlags::NOATIME, TIMES),
        ("nodev", MountFlags::NODEV, NONE),
        ("nodiratime", MountFlags::NODIRATIME, NONE),
        ("noexec", MountFlags::NOEXEC, NONE),
        ("norelatime", NONE, MountFlags::RELATIME),
        ("nostrictatime", NONE, MountFlags::STRICTATIME),
        ("nosuid", MountFlags::NOSUID, NONE),
        ("relatime", MountFlags::RELATIME, TIMES),
        ("ro", MountFlags::RDONLY, NONE),
        ("rw", NONE, MountFlags::RDONLY),
        ("strictatime", MountFlags::STRICTATIME, TIMES),
        ("suid", NONE, MountFlags::NOSUID),
        ("sync", MountFlags::SYNCHRONOUS, NONE),
    ]
};

/// See the head of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelOptions {
    flags: MountFlags,
    allow_other: bool,
}

impl Default for KernelOptions {
    fn default() -> KernelOptions {
        KernelOptions { flags: MountFlags::empty(), allow_other: false }
    }
}

impl KernelOptions {
    /// Adds one option. Of options that contradict each other the last one counts. False if the
    /// kernel has no such option.
    pub fn add(&mut self, option: &str) -> bool {
        if option == "allow_other" {
            self.allow_other = true;
            return true;
        }
        let Some((_, set, clear)) = TABLE.iter().find(|row| row.0 == option) else { return false };
        self.flags = self.flags.difference(*clear).union(*set);
        true
    }

    /// The flags of mount(2).
    pub fn flags(&self) -> MountFlags {
        self.flags
    }

    /// The options as `fusermount3` takes them.
    pub(crate) fn words(&self) -> Vec<&'static str> {
        let set = TABLE.iter().filter(|(_, set, _)| !set.is_empty() && self.flags.contains(*set));
        let mut words: Vec<&str> = set.map(|(word, ..)| *word).collect();
        if self.allow_other {
            words.push("allow_other");
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> KernelOptions {
        let mut options = KernelOptions::default();
        text.split(',').for_each(|word| assert!(options.add(word), "{word}"));
        options
    }

    #[test]
    fn the_last_of_options_that_contradict_each_other_counts() {
        assert_eq!(of("ro,rw,nosuid,suid,sync,async"), KernelOptions::default());
        assert_eq!(of("noatime,strictatime").flags(), MountFlags::STRICTATIME);
        assert_eq!(of("strictatime,relatime").flags(), MountFlags::RELATIME);
        assert_eq!(of("noatime,atime"), KernelOptions::default());
        assert_eq!(of("ro,noexec,allow_other").words(), ["noexec", "ro", "allow_other"]);
        assert!(!KernelOptions::default().add("fast"));
    }
}
