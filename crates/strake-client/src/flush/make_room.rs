//! Room for what makes a full file system fuller: what deletions still hold is freed, and what was
//! replaced.
//!
//! A writer that finds no room takes a turn, in which nobody else finds room to grow. It frees in
//! slices and looks for room after each: first what was overwritten and only waits for the rounds;
//! then what some dirty blocks hold too much, by sending them; at last what only a sync of all
//! files settles. So it seldom waits for more than a slice, and writers that only overwrite never
//! wait for it.

use crate::block_io::send::free_overwritten;
use crate::flush::sync::sync_inodes;
use crate::flush::writers::flush_or_latch;
use crate::inode::open_table::Pinned;
use crate::mount::Mount;
use strake_array::reaper;
use strake_array::room::Turn;
use strake_proto::{Error, ErrorKind, Result};

/// How often everything is synced for one operation: the largest write has five blocks of the
/// smallest size, and the reserve has room for one at least.
const FREEING_MAX: usize = 8;
/// Dirty blocks that are sent at a time.
const SLICE_BLOCKS: usize = 16;

/// Does what needs room, and does it again if there is none and something can be freed. The caller
/// holds no block and no content.
pub(crate) fn with_room<T>(mount: &Mount, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    let before = mount.array.meta.changes();
    let is_full =
        |result: &Result<T>| matches!(result, Err(error) if error.kind() == ErrorKind::NoSpace);
    let mut result = work();
    if is_full(&result) && reaper::reclaim(&mount.array, before) {
        result = work();
    }
    if !is_full(&result) {
        return result;
    }
    let _turn = take_turn(mount)?;
    // Somebody else's turn may have been all that was in the way.
    result = work();
    if is_full(&result) {
        free_overwritten(mount);
        result = work();
    }
    let mut slices = Slices::of(mount);
    while is_full(&result) && slices.send_next(mount) {
        result = work();
    }
    for _ in 0..FREEING_MAX {
        if !is_full(&result) || !free_replaced(mount) {
            break;
        }
        result = work();
    }
    result
}

/// # Errors
/// `Io` if the turns of others take too long: disks that do not answer hold them up.
fn take_turn(mount: &Mount) -> Result<Turn<'_>> {
    let _wait = mount.array.observe.waiters.enter("turn to find space", "");
    let turn = mount.array.room.take_turn(mount.settings.standstill_max);
    turn.ok_or_else(|| Error::new(ErrorKind::Io, "what is dirty cannot be made durable"))
}

/// The blocks that hold room when a turn begins, those last that have been dirty for longest.
struct Slices(Vec<(Pinned, u64)>);

impl Slices {
    fn of(mount: &Mount) -> Slices {
        let mut blocks = Vec::new();
        for inode in mount.dirty_inodes(None).into_iter().rev() {
            let Some(file) = inode.core.lock().file.clone() else { continue };
            let holds = |index: &u64| {
                let Some(block) = file.find_block(*index) else { return false };
                let claim = block.data.try_read().map(|data| data.claim());
                claim.is_none_or(|claim| claim.bytes > 0 && !claim.overwrites)
            };
            let dirty = file.dirty_blocks().into_iter().rev().filter(holds);
            blocks.extend(dirty.map(|index| (inode.clone(), index)));
        }
        Slices(blocks)
    }

    /// Sends some of the blocks, and frees what they replace. False when there are none left.
    fn send_next(&mut self, mount: &Mount) -> bool {
        let _wait = mount.array.observe.waiters.enter("space of what was written anew", "");
        let slice = self.0.split_off(self.0.len().saturating_sub(SLICE_BLOCKS));
        if slice.is_empty() {
            return false;
        }
        mount.flush_fan.run(slice.len(), &|at| {
            let (inode, index) = &slice[at];
            let Some(file) = inode.core.lock().file.clone() else { return };
            // A block that is gone from the map was dropped with what it held, or is clean.
            let Some(block) = file.find_block(*index) else { return };
            flush_or_latch(mount, inode, &file, &block, None);
        });
        free_overwritten(mount);
        true
    }
}

/// Makes everything durable, so that nothing is held and what was replaced is freed. False if there
/// was nothing to be made durable. In the caller's turn.
fn free_replaced(mount: &Mount) -> bool {
    let array = &*mount.array;
    let _wait = array.observe.waiters.enter("space of what was written anew", "");
    if !array.room.begin_freeing() {
        return false;
    }
    // Errors are latched at the files they concern.
    let _ = sync_inodes(mount, &mount.dirty_inodes(None));
    // Also what others are about to settle; if they take too long, less is freed.
    array.rounds.wait_for_settling(mount.settings.standstill_max);
    // The NSDs free what was settled; a block that is lost over it is dirty, and held for.
    let _ = array.rounds.run(false);
    array.room.refresh();
    true
}
