//! Folding: what was hardened goes into stripes piece by piece, and the metadata forgets it.
//!
//! A thread begins when half of what may be kept is kept. In each turn it sends some of the blocks
//! concerned, runs a round, and names the units that are in stable stripes then
//! ([`MetaOp::FoldedUnits`]). Programs go on meanwhile: an `fsync` waits only when as much is kept
//! as may be, and then for one turn as a rule.
//!
//! A unit that is hardened again meanwhile is not named: see [`crate::memory::kept`].

use crate::flush::writers::flush_or_latch;
use crate::inode::core::InodeState;
use crate::inode::open_table::Pinned;
use crate::memory::block::Block;
use crate::memory::file::{Content, FileState};
use crate::mount::Mount;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use strake_proto::limits::{FOLDED_UNITS_MAX, UNIT_BYTES};
use strake_proto::meta::MetaOp;
use strake_proto::{ErrorKind, Result};
use tracing::warn;

/// The most units that are kept for all files together (16 MiB). Beyond this, files are synced the
/// long way.
const KEPT_UNITS_MAX: usize = 4096;
/// Folding begins when one part in so many of that is kept, and ends at one part in twice as many.
const BEGIN_PARTS: usize = 2;
/// One turn sends so many blocks. A round for fewer costs too much where disks are slow to sync.
const TURN_BLOCKS: usize = 256;
/// An `fsync` that finds as much kept as may be goes the long way if no turn of the thread brings
/// anything for so long.
const STUCK_MAX: Duration = Duration::from_secs(5);

fn kept(mount: &Mount) -> usize {
    mount.page_pool.hardened.load(Ordering::Acquire)
}

/// The most units that may be kept.
fn kept_max(mount: &Mount) -> usize {
    KEPT_UNITS_MAX.min(mount.page_pool.dirty_max() / 2 / UNIT_BYTES)
}

/// Has the thread fold if much is kept. If as much is kept as may be, waits for it. False if it is
/// still as much then.
pub(crate) fn wait_for_folding(mount: &Mount) -> bool {
    let most = kept_max(mount);
    if kept(mount) >= most / BEGIN_PARTS {
        mount.folding.ask();
    }
    if kept(mount) < most {
        return true;
    }
    let _wait = mount.array.observe.waiters.enter("folding of small writes", "");
    let clock = &mount.array.clock;
    let begin = clock.monotonic();
    let (mut seen, mut progress) = (None, begin);
    // Others may use the room that each turn makes.
    while kept(mount) >= most {
        let turns = mount.folding.wait();
        let now = clock.monotonic();
        if turns > seen {
            (seen, progress) = (turns, now);
        }
        let is_stuck = now.saturating_sub(progress) >= STUCK_MAX;
        if turns.is_none() || is_stuck || now.saturating_sub(begin) >= mount.settings.standstill_max
        {
            return false;
        }
    }
    true
}

/// The work of the thread that folds, until it ends.
pub(crate) fn serve(mount: &Mount) {
    while mount.folding.next() {
        let least = kept_max(mount) / BEGIN_PARTS / 2;
        while kept(mount) > least {
            let has_folded = fold_some(mount, TURN_BLOCKS);
            if !mount.folding.end_turn(has_folded) {
                return;
            }
            if !has_folded {
                break;
            }
        }
    }
}

/// One turn. False if it brought nothing.
pub(crate) fn fold_some(mount: &Mount, most: usize) -> bool {
    // A mount that was declared dead sends nothing.
    if mount.hold_lease().is_err() {
        return false;
    }
    let before = kept(mount);
    let mut files: Vec<(Pinned, Arc<FileState>)> = Vec::new();
    for inode in mount.dirty_inodes(None) {
        let file = inode.core.lock().file.clone();
        files.extend(file.filter(|file| file.is_hardened()).map(|file| (inode, file)));
    }
    let each = (most / files.len().max(1)).max(1);
    let mut batch: Vec<(&Pinned, &Arc<FileState>, Arc<Block>)> = Vec::new();
    for (inode, file) in &files {
        let indexes = file.kept(|kept| kept.next_blocks(each));
        let blocks = indexes.into_iter().filter_map(|index| file.find_block(index));
        batch.extend(blocks.filter(|it| is_sent(file, it)).map(|block| (inode, file, block)));
    }
    mount.flush_fan.run(batch.len(), &|at| {
        let (inode, file, block) = &batch[at];
        flush_or_latch(mount, inode, file, block, None);
    });
    // If the round fails for some blocks, they are dirty again.
    let _ = mount.array.rounds.run(false);
    for (inode, file) in &files {
        if let Err(error) = forget_stored(mount, inode, file) {
            warn!(target: "fs", "small writes to inode {} are kept longer: {error}", inode.ino);
        }
    }
    kept(mount) < before
}

/// Whether a block is to be sent now. If nothing of it is left to send, notes that.
fn is_sent(file: &FileState, block: &Block) -> bool {
    let Some(data) = block.data.try_read() else { return true };
    if block.pinned.load(Ordering::Acquire) > 0 {
        return false;
    }
    if !data.dirty && !data.detached && !block.is_unsure() {
        file.note_clean(block.index);
    }
    data.dirty
}

/// Has the metadata forget the hardened units of a file that are in stable stripes.
pub(crate) fn forget_stored(mount: &Mount, inode: &InodeState, file: &FileState) -> Result<()> {
    let content = file.content.read();
    let Content::Object(layout) = &*content else { return Ok(()) };
    let _serial = file.meta.lock();
    forget(mount, inode, file, layout.block_size, false)
}

/// Has the metadata forget units that are in stable stripes: all of them, or only the `outdated`
/// ones. The caller holds `file.meta`, so what is named here is not hardened again before the
/// metadata has forgotten it.
pub(crate) fn forget(
    mount: &Mount,
    inode: &InodeState,
    file: &FileState,
    block_size: u32,
    outdated: bool,
) -> Result<()> {
    let in_block = u64::from(block_size) / UNIT_BYTES as u64;
    loop {
        let units = file.kept(|kept| kept.forgettable(outdated, FOLDED_UNITS_MAX));
        if units.is_empty() {
            return Ok(());
        }
        let numbers = units.iter().map(|(block, unit)| block * in_block + u64::from(*unit));
        let op = MetaOp::FoldedUnits { ino: inode.ino, units: numbers.collect() };
        match mount.change(inode, op) {
            Ok(_) => {}
            // The file is gone, and so is what was kept of it.
            Err(error) if error.kind() == ErrorKind::Stale => {}
            Err(error) => return Err(error),
        }
        file.kept(|kept| kept.forget(&units));
    }
}

#[cfg(test)]
#[path = "folding_test.rs"]
pub(crate) mod folding_test;
