//! The counters of what programs did with a file system, as `strake mon` shows them.

use crate::operations::OperationSnapshot;
use serde::{Deserialize, Serialize};

/// What programs did since the mount, or since the counters were reset. Requests that the kernel
/// answers from its page cache are not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IoCounters {
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Files opened or created.
    pub opens: u64,
    /// Files closed for the last time.
    pub closes: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Parts of directories read.
    pub readdirs: u64,
    /// Changes told to the metadata.
    pub inode_updates: u64,
}

impl IoCounters {
    /// The counters of a process with these operations, which has told the metadata of `changes`.
    pub fn of(operations: &[OperationSnapshot], changes: u64) -> IoCounters {
        let sum = |names: &[&str], of: &dyn Fn(&OperationSnapshot) -> u64| -> u64 {
            operations.iter().filter(|one| names.contains(&&*one.name)).map(of).sum()
        };
        let count = |one: &OperationSnapshot| one.durations.count();
        let bytes = |one: &OperationSnapshot| one.bytes;
        IoCounters {
            bytes_read: sum(&["fuse_read"], &bytes),
            bytes_written: sum(&["fuse_write"], &bytes),
            opens: sum(&["fuse_open", "fuse_create", "fuse_tmpfile"], &count),
            closes: sum(&["fuse_release"], &count),
            reads: sum(&["fuse_read"], &count),
            writes: sum(&["fuse_write"], &count),
            readdirs: sum(&["fuse_readdir", "fuse_readdirplus"], &count),
            inode_updates: changes,
        }
    }

    /// Each counter of these and the others, put together.
    fn with(self, other: IoCounters, put: fn(u64, u64) -> u64) -> IoCounters {
        IoCounters {
            bytes_read: put(self.bytes_read, other.bytes_read),
            bytes_written: put(self.bytes_written, other.bytes_written),
            opens: put(self.opens, other.opens),
            closes: put(self.closes, other.closes),
            reads: put(self.reads, other.reads),
            writes: put(self.writes, other.writes),
            readdirs: put(self.readdirs, other.readdirs),
            inode_updates: put(self.inode_updates, other.inode_updates),
        }
    }

    /// What has happened since `earlier`.
    #[must_use]
    pub fn since(self, earlier: IoCounters) -> IoCounters {
        self.with(earlier, u64::saturating_sub)
    }

    /// The sums of these and of another file system's.
    #[must_use]
    pub fn and(self, other: IoCounters) -> IoCounters {
        self.with(other, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_proto::histogram::Histogram;

    fn did(name: &str, times: u64, bytes: u64) -> OperationSnapshot {
        let mut durations = Histogram::default();
        (0..times).for_each(|_| durations.add(1));
        OperationSnapshot { name: name.to_owned(), failures: 0, bytes, durations }
    }

    #[test]
    fn the_counters_are_those_of_requests_and_can_be_set_to_zero() {
        let operations = [
            did("fuse_create", 1, 0),
            did("fuse_open", 2, 0),
            did("fuse_read", 3, 300),
            did("fuse_readdir", 4, 0),
            did("fuse_readdirplus", 5, 0),
            did("fuse_release", 6, 0),
            did("fuse_write", 7, 700),
            did("read", 100, 1000),
        ];
        let counters = IoCounters::of(&operations, 8);
        let expected = IoCounters {
            bytes_read: 300,
            bytes_written: 700,
            opens: 3,
            closes: 6,
            reads: 3,
            writes: 7,
            readdirs: 9,
            inode_updates: 8,
        };
        assert_eq!(counters, expected);
        assert_eq!(counters.since(counters), IoCounters::default());
        assert_eq!(counters.and(counters).since(counters), counters);
    }
}
