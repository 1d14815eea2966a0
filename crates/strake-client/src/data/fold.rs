//! Folding at a start: small synchronous writes that the metadata kept are written into their files
//! again. See `flush/harden.rs`.

use crate::data::of::Of;
use crate::data::write::Position;
use crate::flush::sync::sync_inode_whole;
use crate::inode::open_table::Pinned;
use crate::memory::file::{Content, FileState};
use crate::mount::Mount;
use std::sync::Arc;
use strake_array::meta_link::wrong_reply;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::meta::{HardenedUnit, MetaQuery, MetaReply};
use strake_proto::{ErrorKind, Ino, Result};

/// So many units are asked for at once. The number is small, so that files with several pages of
/// units are common, in use and in tests.
const PAGE_UNITS: u32 = 16;

/// Writes the hardened units of the files for which `of` says true into these files. Returns their
/// number.
pub(crate) fn fold_at_start(mount: &Mount, of: &dyn Fn(Ino) -> bool) -> Result<u64> {
    // These writes were acknowledged, so they are made whether there is room or not.
    mount.array.room.set_owing(true);
    let result = fold_files(mount, of);
    mount.array.room.set_owing(false);
    result
}

fn fold_files(mount: &Mount, of: &dyn Fn(Ino) -> bool) -> Result<u64> {
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
                if of(*ino) {
                    // A living client may have written newer bytes into the file since the page
                    // was read, and then given it up. So its units are asked for once more.
                    under_way = Some(Unfolded::new(mount, *ino)?);
                    next = (*ino, 0);
                    break;
                }
            }
            next = (*ino, unit.unit + 1);
            let Some(file) = &mut under_way else { continue };
            file.write_again(mount, unit)?;
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

/// A file whose units are being written again. It does not count as hardened until all of them have
/// been written, because a sync of a hardened file has the metadata forget all units.
struct Unfolded {
    inode: Pinned,
    file: Arc<FileState>,
    units: Vec<u64>,
}

impl Unfolded {
    fn new(mount: &Mount, ino: Ino) -> Result<Unfolded> {
        let inode = mount.table.pin(ino);
        let file = mount.file(&inode)?;
        Ok(Unfolded { inode, file, units: Vec::new() })
    }

    fn write_again(&mut self, mount: &Mount, unit: &HardenedUnit) -> Result<()> {
        self.units.push(unit.unit);
        let (mut bytes, start) = (unit.bytes.clone(), unit.unit * UNIT_BYTES as u64);
        // The unit may have ended with its file, which has grown since. Zeros follow then.
        // Otherwise bytes of a stripe that was never synced would follow.
        let end = self.file.size().saturating_sub(start).min(UNIT_BYTES as u64);
        bytes.resize(bytes.len().max(end as usize), 0);
        let of = Of { mount, inode: &self.inode, file: &self.file };
        of.write(Position::At(start), &bytes)?;
        // This is no change by a user, so the times stay.
        let mut core = self.inode.core.lock();
        (core.mtime, core.ctime) = (None, None);
        Ok(())
    }

    fn fold(self, mount: &Mount) -> Result<()> {
        let kept = {
            let block_size = match &*self.file.content.read() {
                Content::Object(layout) => layout.block_size,
                Content::Empty | Content::Inline(_) => mount.array.block_size,
            };
            let in_block = u64::from(block_size) / UNIT_BYTES as u64;
            let of_block = |unit: &u64| (unit / in_block, (unit % in_block) as u32);
            self.units.iter().map(of_block).collect::<Vec<_>>()
        };
        self.file.add_hardened(&kept);
        match sync_inode_whole(mount, &self.inode) {
            // If the disks are full, the bytes stay in memory and in the log. A later sync tries
            // again.
            Err(error) if error.kind() == ErrorKind::NoSpace && mount.tokens.is_none() => Ok(()),
            result => result,
        }
    }
}
