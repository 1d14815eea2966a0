//! Decides what the kernel may cache.
//!
//! **Names and attributes** may be cached for a day where nothing changes behind the kernel's back.
//! Beside other mounts they are cached as long as the mount has a lease and a token: attributes
//! that the kernel asked for under that of the inode, and names under that of the directory
//! (docs/decisions/0072-names-in-the-kernel.md).
//!
//! **Pages.** A file is open either the *cached way*, through the kernel's page cache, or the
//! *direct way*, past it (`FOPEN_DIRECT_IO`). The direct way is several times as fast for streams,
//! and leaves caching to the page pool. It is chosen for a file that is opened for writing only. It
//! is also chosen for an empty file that is opened for reading and writing, because such a file is
//! about to be written; the kernel must be able to map it. A file with contents that is opened for
//! both belongs to a program that looks at the contents again and again, so it is cached.
//!
//! The kernel drops cached pages before a direct write. But a reader that fills them again *during*
//! the write would keep old bytes. So one inode is never open both ways at once. A writer gets the
//! direct way only while nobody has the inode open the cached way. While it is open the direct way,
//! everybody else gets the direct way, too. [`crate::pages`] takes care of mappings meanwhile.
//!
//! Where every read moves the access time (`strictatime`), files are opened the direct way.
//!
//! Beside other mounts every open is direct, if the kernel can map such files. The kernel would put
//! appended bytes at the end of the file as it last knew it, and cache them there.

use crate::pages::Pages;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use strake_client::vfs::OpenFlags;
use strake_env::sync::Mutex;
use strake_proto::Ino;

/// How long the kernel may cache names, also those that do not exist, and attributes, if the `Vfs`
/// does not say otherwise.
pub(crate) fn cache_time(is_shared: bool) -> Duration {
    if is_shared { Duration::ZERO } else { Duration::from_secs(86_400) }
}

/// Inodes are spread over this many tables, so that two opens seldom need the same lock.
const SHARDS: usize = 16;

#[derive(Default)]
struct Opens {
    cached: u32,
    direct: u32,
    /// Made when first asked for.
    pages: Option<Arc<Pages>>,
}

/// Knows for each open inode which way it is open.
#[derive(Default)]
pub(crate) struct OpenModes {
    /// True if the kernel can map files that are open the direct way.
    direct_maps: bool,
    /// True if every open goes the direct way.
    all_direct: bool,
    shards: [Mutex<HashMap<Ino, Opens>>; SHARDS],
}

impl OpenModes {
    pub(crate) fn new(direct_maps: bool, is_shared: bool) -> OpenModes {
        let all_direct = is_shared && direct_maps;
        OpenModes { direct_maps, all_direct, ..OpenModes::default() }
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Opens>> {
        &self.shards[(ino.0 % SHARDS as u64) as usize]
    }

    /// Counts an open. True if it goes the direct way. `all_reads` says whether all reads are to
    /// come here, and `is_empty` whether the file has no bytes yet.
    pub(crate) fn open(
        &self,
        ino: Ino,
        flags: OpenFlags,
        all_reads: bool,
        is_empty: impl FnOnce() -> bool,
    ) -> bool {
        let mut table = self.shard(ino).lock();
        let opens = table.entry(ino).or_default();
        let wanted = self.all_direct
            || (all_reads && self.direct_maps)
            || flags.write && (!flags.read || (self.direct_maps && is_empty()));
        let direct = opens.direct > 0 || (opens.cached == 0 && wanted);
        *(if direct { &mut opens.direct } else { &mut opens.cached }) += 1;
        direct
    }

    /// The state of the pages of an open inode. `None` if the inode is not open, which happens only
    /// if a request names a wrong one.
    pub(crate) fn pages(&self, ino: Ino) -> Option<Arc<Pages>> {
        let mut table = self.shard(ino).lock();
        table.get_mut(&ino).map(|opens| Arc::clone(opens.pages.get_or_insert_default()))
    }

    /// Forgets an open of the way that `direct` says. False if there was none, which happens only
    /// if a request names a wrong one.
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
        assert!(modes.open(Ino(5), WRITER, false, || false));
        assert!(
            modes.open(Ino(5), READER, false, || false),
            "while a direct writer is there, all go direct"
        );
        assert!(!modes.open(Ino(6), READER, false, || false));
        assert!(
            !modes.open(Ino(6), WRITER, false, || false),
            "a cached reader makes writers cached"
        );
        modes.close(Ino(5), true);
        modes.close(Ino(5), true);
        assert!(!modes.open(Ino(5), READER, false, || false), "closed ones count no more");
    }

    #[test]
    fn an_empty_file_is_opened_for_both_the_direct_way_where_that_can_be_mapped() {
        let both = OpenFlags { read: true, ..WRITER };
        assert!(!OpenModes::new(false, false).open(Ino(5), both, false, || true));
        assert!(!OpenModes::new(true, false).open(Ino(5), both, false, || false));
        assert!(OpenModes::new(true, false).open(Ino(5), both, false, || true));
        assert!(!OpenModes::new(true, false).open(Ino(5), READER, false, || true));
        assert!(OpenModes::new(true, false).open(Ino(5), READER, true, || false), "strictatime");
        assert!(
            OpenModes::new(true, true).open(Ino(5), READER, false, || false),
            "beside other mounts"
        );
    }
}
