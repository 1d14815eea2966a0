//! What the kernel may cache.
//!
//! *Names and attributes*: with a single mount nothing changes behind the kernel's back, so they
//! hold for a day; whoever adds a second mount ties them to tokens here.
//!
//! *Pages*: a file opened for writing only bypasses the page cache (`FOPEN_DIRECT_IO`), which is
//! several times as fast for streams and leaves caching to the page pool. So does an empty file
//! opened for both, since it is about to be written, if the kernel lets such files be mapped; one
//! that has bytes is opened for both by programs that look at them again and again. The kernel
//! drops cached pages before such a write, but a reader that fills them again *during* the write
//! would keep old bytes. So the two ways are never open on one inode at once: a writer gets the
//! direct way only while nobody has the inode open the cached way, and while a direct writer has it
//! open, everyone else goes the direct way too. What is mapped meanwhile is the business of
//! [`crate::pages`].

use crate::pages::Pages;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use strake_client::vfs::OpenFlags;
use strake_env::sync::Mutex;
use strake_proto::Ino;

/// How long names (also those that do not exist) and attributes hold.
pub(crate) const CACHE_TIME: Duration = Duration::from_secs(86_400);

/// Inodes are spread over this many tables, so that opens seldom meet at a lock.
const SHARDS: usize = 16;

#[derive(Default)]
struct Opens {
    cached: u32,
    direct: u32,
    /// Made when first asked for.
    pages: Option<Arc<Pages>>,
}

/// How each open inode is open.
#[derive(Default)]
pub(crate) struct OpenModes {
    /// Whether the kernel maps what is open the direct way.
    direct_maps: bool,
    shards: [Mutex<HashMap<Ino, Opens>>; SHARDS],
}

impl OpenModes {
    pub(crate) fn new(direct_maps: bool) -> OpenModes {
        OpenModes { direct_maps, ..OpenModes::default() }
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Opens>> {
        &self.shards[(ino.0 % SHARDS as u64) as usize]
    }

    /// Counts an open and says whether it goes the direct way; `is_empty` tells whether the file
    /// has no bytes yet.
    pub(crate) fn open(&self, ino: Ino, flags: OpenFlags, is_empty: impl FnOnce() -> bool) -> bool {
        let mut table = self.shard(ino).lock();
        let opens = table.entry(ino).or_default();
        let wanted = flags.write && (!flags.read || (self.direct_maps && is_empty()));
        let direct = opens.direct > 0 || (opens.cached == 0 && wanted);
        *(if direct { &mut opens.direct } else { &mut opens.cached }) += 1;
        direct
    }

    /// What is known of the pages of an open inode; `None` if it is not open, which a request may
    /// say all the same.
    pub(crate) fn pages(&self, ino: Ino) -> Option<Arc<Pages>> {
        let mut table = self.shard(ino).lock();
        table.get_mut(&ino).map(|opens| Arc::clone(opens.pages.get_or_insert_default()))
    }

    /// Forgets an open that was counted as `direct` says; false if none was, which a request may
    /// say all the same.
    pub(crate) fn close(&self, ino: Ino, direct: bool) -> bool {
        let mut table = self.shard(ino).lock();
        let Some(opens) = table.get_mut(&ino) else { return false };
        let count = if direct { &mut opens.direct } else { &mut opens.cached };
        let Some(left) = count.checked_sub(1) else { return false };
        *count = left;
        if opens.cached == 0 && opens.direct == 0 {
            table.remove(&ino);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITER: OpenFlags = OpenFlags { read: false, ..OpenFlags::READ_WRITE };
    const READER: OpenFlags = OpenFlags { write: false, ..OpenFlags::READ_WRITE };

    #[test]
    fn the_two_ways_are_never_open_at_once() {
        let modes = OpenModes::default();
        assert!(modes.open(Ino(5), WRITER, || false));
        assert!(
            modes.open(Ino(5), READER, || false),
            "while a direct writer is there, all go direct"
        );
        assert!(!modes.open(Ino(6), READER, || false));
        assert!(!modes.open(Ino(6), WRITER, || false), "a cached reader makes writers cached");
        modes.close(Ino(5), true);
        modes.close(Ino(5), true);
        assert!(!modes.open(Ino(5), READER, || false), "closed ones count no more");
    }

    #[test]
    fn an_empty_file_is_opened_for_both_the_direct_way_where_that_can_be_mapped() {
        let both = OpenFlags { read: true, ..WRITER };
        assert!(!OpenModes::new(false).open(Ino(5), both, || true));
        assert!(!OpenModes::new(true).open(Ino(5), both, || false));
        assert!(OpenModes::new(true).open(Ino(5), both, || true));
        assert!(!OpenModes::new(true).open(Ino(5), READER, || true));
    }
}
