//! A description of one file: its layout, the places of its blocks, and the part of it that is in
//! memory. `strake diag explain` prints it.

use crate::client::StrakeVfs;
use crate::inode::core::InodeState;
use crate::memory::file::{Content, FileState};
use crate::tokens::shared;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use strake_array::stripe_io::Sight;
use strake_proto::layout::NsdAvailability;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::{Attr, BlockIndex, FileType, Ino, NsdId, ObjectLayout, Result};
use strake_token::Mode;

/// The place of a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is no regular file.
    NoFile,
    /// Nowhere: it has only zeros, or nothing.
    Nowhere,
    /// In its inode, with so many bytes.
    Inode(u64),
    /// In blocks of an object.
    Object(ObjectLayout),
}

/// The strips of a file that one NSD has and lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnNsd {
    /// How it may be used now.
    pub availability: NsdAvailability,
    /// Strips of the newest versions of their blocks.
    pub present: u64,
    /// Strips that it should have and does not, or has of older versions.
    pub missing: u64,
    /// Strips that are damaged.
    pub damaged: u64,
    /// Blocks of which it may have a strip, but cannot be read.
    pub away: u64,
}

/// The part of a file that is in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InMemory {
    /// Blocks in the page pool.
    pub blocks: u64,
    /// Their bytes, as far as they were not in use at that moment.
    pub bytes: u64,
    /// Blocks that are written and not yet sent.
    pub dirty: u64,
    /// Blocks that are sent and not yet stable.
    pub unstable: u64,
    /// Whether small synchronous writes are in the metadata's log, from where they go into blocks.
    pub hardened: bool,
}

/// The description of a file.
#[derive(Clone, Debug)]
pub struct FileView {
    /// Its attributes.
    pub attr: Attr,
    /// The place of its bytes.
    pub place: Place,
    /// Its blocks up to its size.
    pub blocks: u64,
    /// How many of them were looked for on the NSDs.
    pub looked: u64,
    /// How many of these are stored nowhere: they are zeros, or only in memory.
    pub holes: u64,
    /// How many of these have lost strips. Others make up for these.
    pub degraded: u64,
    /// How many of these cannot be read now, because too many strips are away or damaged.
    pub unreadable: u64,
    /// What the NSDs have of these.
    pub nsds: BTreeMap<NsdId, OnNsd>,
    /// What is in memory.
    pub memory: InMemory,
    /// Open handles of this mount.
    pub handles: u32,
    /// The token that this mount holds, beside other mounts. `Some(None)` if it holds none.
    pub token: Option<Option<Mode>>,
}

impl StrakeVfs {
    /// Looks at a file. At most `blocks_max` of its blocks are looked for on the NSDs, spread
    /// evenly over the file. What this does to caches and tokens is what `stat` does.
    ///
    /// # Errors
    /// `NotFound` if there is no such file; those of the metadata.
    pub fn explain(&self, ino: Ino, blocks_max: u64) -> Result<FileView> {
        let mount = &self.mount;
        let held = mount.tokens.as_ref().map(|tokens| tokens.held(ino));
        let _tokens = mount.take([shared(ino)])?;
        let inode = mount.table.pin(ino);
        let attr = mount.attr(&inode)?;
        let mut view = FileView {
            attr,
            place: Place::NoFile,
            blocks: 0,
            looked: 0,
            holes: 0,
            degraded: 0,
            unreadable: 0,
            nsds: BTreeMap::new(),
            memory: InMemory::default(),
            handles: mount.table.handles(ino),
            token: held,
        };
        if attr.file_type == FileType::Regular {
            self.look_into(&inode, blocks_max, &mut view)?;
        }
        Ok(view)
    }

    fn look_into(&self, inode: &InodeState, blocks_max: u64, view: &mut FileView) -> Result<()> {
        let file = self.mount.file(inode)?;
        view.memory = in_memory(&file);
        let layout = match &*file.content.read() {
            Content::Empty => {
                view.place = Place::Nowhere;
                return Ok(());
            }
            Content::Inline(bytes) => {
                view.place = Place::Inode(bytes.len() as u64);
                return Ok(());
            }
            Content::Object(layout) => *layout,
        };
        view.place = Place::Object(layout);
        view.blocks = file.size().div_ceil(u64::from(layout.block_size));
        view.looked = view.blocks.min(blocks_max);
        for at in 0..view.looked {
            let index = u128::from(at) * u128::from(view.blocks) / u128::from(view.looked);
            self.look_for(&layout, BlockIndex(index as u64), view)?;
        }
        Ok(())
    }

    fn look_for(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        view: &mut FileView,
    ) -> Result<()> {
        let (io, floors) = (&self.mount.array.io, &self.mount.array.floors);
        let found = io.locate(layout, block, floors.floor(layout.object, block))?;
        let (mut present, mut lost, mut away) = (0, 0u32, 0u32);
        for (slot, sight) in found.slots.iter().zip(&found.sights) {
            let of = view.nsds.entry(io.nsds().nsd(*slot)).or_insert_with(|| OnNsd {
                availability: io.nsds().availability(*slot),
                present: 0,
                missing: 0,
                damaged: 0,
                away: 0,
            });
            match sight {
                Sight::Present => (of.present, present) = (of.present + 1, present + 1),
                Sight::Unneeded => {}
                Sight::Missing => (of.missing, lost) = (of.missing + 1, lost + 1),
                Sight::Damaged => (of.damaged, lost) = (of.damaged + 1, lost + 1),
                Sight::Away => (of.away, away) = (of.away + 1, away + 1),
            }
        }
        match found.newest {
            None if lost + away > u32::from(layout.code.parity) => view.unreadable += 1,
            None => view.holes += 1,
            Some((_, bytes)) => {
                let stripe = strake_stripe::StripeCode::of_block(layout.code, u64::from(bytes));
                view.degraded += u64::from(lost + away > 0);
                view.unreadable += u64::from(present < stripe.data_strips());
            }
        }
        Ok(())
    }
}

fn in_memory(file: &Arc<FileState>) -> InMemory {
    let blocks = file.blocks_in_memory();
    // A block that is read or written at this moment is left out, and nobody waits for it.
    let units = |block: &Arc<crate::memory::block::Block>| {
        block.data.try_read().map_or(0, |data| data.valid.count() as u64)
    };
    InMemory {
        blocks: blocks.len() as u64,
        bytes: blocks.iter().map(units).sum::<u64>() * UNIT_BYTES as u64,
        dirty: file.dirty_blocks().len() as u64,
        unstable: file.unstable.load(Ordering::Acquire),
        hardened: file.is_hardened(),
    }
}

#[cfg(test)]
#[path = "explain_test.rs"]
mod explain_test;
