//! At a start: what the metadata kept of small synchronous writes is written into its files again.
//! See `flush/harden.rs`.

use crate::data::of::Of;
use crate::data::write::Position;
use crate::flush::sync::sync_inode_whole;
use crate::inode::open_table::Pinned;
use crate::memory::file::FileState;
use crate::mount::Mount;
use std::sync::Arc;
use strake_array::meta_link::wrong_reply;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::meta::{HardenedUnit, MetaQuery, MetaReply};
use strake_proto::{ErrorKind, Ino, Result};

/// Units asked for at once at the start. Few, so that files with more than one page of them are
/// nothing rare, in use and in tests.
const PAGE_UNITS: u32 = 16;

/// At a start: writes what the metadata kept into the files it belongs to. Returns the units.
pub(crate) fn fold_at_start(mount: &Mount) -> Result<u64> {
    // It was acknowledged: it is owed, whether there is room or not.
    mount.array.room.set_owing(true);
    let result = fold_files(mount);
    mount.array.room.set_owing(false);
    result
}

fn fold_files(mount: &Mount) -> Result<u64> {
    let (mut next, mut count) = ((Ino(0), 0), 0);
    let mut under_way: Option<Unfolded> = None;
    loop {
        let query = MetaQuery::Hardened { ino: next.0, unit: next.1, limit: PAGE_UNITS };
        let MetaReply::Hardened(page) = mount.array.meta.query(&query)? else {
            return Err(wrong_reply());
        };
        for (ino, unit) in &page {
            if under_way.as_ref().is_none_or(|it| it.inode.ino != *ino) {
                if let Some(all) = under_way.take() {
                    all.fold(mount)?;
                }
                under_way = Some(Unfolded::new(mount, *ino)?);
            }
            let file = under_way.as_mut().expect("invariant: just made");
            file.write_again(mount, unit)?;
            next = (*ino, unit.unit + 1);
            count += 1;
        }
        if page.is_empty() {
            if let Some(all) = under_way {
                all.fold(mount)?;
            }
            return Ok(count);
        }
    }
}

/// A file whose units are being written again. Until that has been done with all of them, it does
/// not count as hardened: a sync of it would have the metadata forget them all.
struct Unfolded {
    inode: Pinned,
    file: Arc<FileState>,
    bytes: usize,
}

impl Unfolded {
    fn new(mount: &Mount, ino: Ino) -> Result<Unfolded> {
        let inode = mount.table.pin(ino);
        let file = mount.file(&inode)?;
        Ok(Unfolded { inode, file, bytes: 0 })
    }

    fn write_again(&mut self, mount: &Mount, unit: &HardenedUnit) -> Result<()> {
        self.bytes += unit.bytes.len();
        let (mut bytes, start) = (unit.bytes.clone(), unit.unit * UNIT_BYTES as u64);
        // One that ended with its file, which has grown: zeros follow. What a stripe that nobody
        // synced has there would be mixed with it.
        let end = self.file.size().saturating_sub(start).min(UNIT_BYTES as u64);
        bytes.resize(bytes.len().max(end as usize), 0);
        let of = Of { mount, inode: &self.inode, file: &self.file };
        of.write(Position::At(start), &bytes)?;
        // That was no change that a user made.
        let mut core = self.inode.core.lock();
        (core.mtime, core.ctime) = (None, None);
        Ok(())
    }

    fn fold(self, mount: &Mount) -> Result<()> {
        self.file.add_hardened(self.bytes);
        // Where the disks are full the bytes stay in memory and in the log, and are tried again.
        match sync_inode_whole(mount, &self.inode) {
            Err(error) if error.kind() != ErrorKind::NoSpace => Err(error),
            _ => Ok(()),
        }
    }
}
