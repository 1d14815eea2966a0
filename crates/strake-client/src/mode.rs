//! How a file system is mounted, where that concerns the `Vfs`: whether it may be changed, whether
//! changes are durable at once, and when reads move access times.
//!
//! The adapter takes the mode from the options of the mount and hands it over
//! ([`crate::Vfs::set_mode`]). Options that the kernel alone enforces, such as `nosuid`, are not
//! here.

use std::sync::atomic::{AtomicU8, Ordering};
use strake_proto::{Attr, Timestamp};

/// When reads move the access time of a file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// Never (`noatime`).
    Never,
    /// If it is not after the last change, or older than a day (`relatime`).
    #[default]
    Relative,
    /// Always (`strictatime`).
    Always,
}

impl AccessTimes {
    /// Whether a read at `now` moves the access time of an inode with these attributes.
    pub fn is_due(self, attr: &Attr, now: Timestamp) -> bool {
        const DAY: i64 = 24 * 3600;
        let due = match self {
            AccessTimes::Never => false,
            AccessTimes::Always => true,
            AccessTimes::Relative => {
                attr.atime <= attr.mtime
                    || attr.atime <= attr.ctime
                    || now.seconds - attr.atime.seconds >= DAY
            }
        };
        due && now > attr.atime
    }
}

/// See the head of this file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountMode {
    /// Nothing may be changed (`ro`). Data that was written before still becomes durable.
    pub read_only: bool,
    /// Every change of a file is durable before it is acknowledged (`sync`).
    pub sync: bool,
    /// Every change of names is durable before it is acknowledged (`dirsync`, and `sync`).
    pub sync_names: bool,
    /// When reads move the access times of files.
    pub access_times: AccessTimes,
    /// Listings do not move the access times of directories (`nodiratime`).
    pub no_directory_times: bool,
}

impl MountMode {
    /// When listings move the access times of directories.
    pub fn directory_times(self) -> AccessTimes {
        if self.no_directory_times { AccessTimes::Never } else { self.access_times }
    }
}

/// The mode of a mount, which requests read while it changes.
#[derive(Debug, Default)]
pub(crate) struct ModeCell(AtomicU8);

impl ModeCell {
    pub(crate) fn set(&self, mode: MountMode) {
        let times = match mode.access_times {
            AccessTimes::Relative => 0,
            AccessTimes::Never => 16,
            AccessTimes::Always => 32,
        };
        let flags = [mode.read_only, mode.sync, mode.sync_names, mode.no_directory_times];
        let bits = (0..).zip(flags).fold(times, |bits, (at, flag)| bits | (u8::from(flag) << at));
        self.0.store(bits, Ordering::Release);
    }

    pub(crate) fn get(&self) -> MountMode {
        let bits = self.0.load(Ordering::Acquire);
        MountMode {
            read_only: bits & 1 != 0,
            sync: bits & 2 != 0,
            sync_names: bits & 4 != 0,
            no_directory_times: bits & 8 != 0,
            access_times: match bits & 48 {
                0 => AccessTimes::Relative,
                16 => AccessTimes::Never,
                _ => AccessTimes::Always,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_comes_back_as_it_was_set() {
        let cell = ModeCell::default();
        assert_eq!(cell.get(), MountMode::default());
        for bits in 0..16 {
            for access_times in [AccessTimes::Never, AccessTimes::Relative, AccessTimes::Always] {
                let has = |bit: u8| bits & bit != 0;
                let mode = MountMode {
                    read_only: has(1),
                    sync: has(2),
                    sync_names: has(4),
                    no_directory_times: has(8),
                    access_times,
                };
                cell.set(mode);
                assert_eq!(cell.get(), mode);
            }
        }
    }
}

#[cfg(test)]
#[path = "mode_test.rs"]
mod mode_test;
