//! Makes room for operations that make a full file system fuller. It frees the space of deleted
//! data and of replaced versions.
//!
//! A writer that finds no room takes a turn. During the turn no other writer finds room to grow.
//! The writer frees space in three steps, and looks for room after each slice:
//!
//! 1. Overwritten versions that only wait for the rounds.
//! 2. Space that some dirty blocks hold in excess. Sending them frees it.
//! 3. Space that only a sync of all files settles.
//!
//! So the writer seldom waits for more than a slice, and writers that only overwrite never wait for
//! its turn.
//!
//! Beside other mounts, these may hold space that they do not need. They give it back within a few
//! of their ticks, so a writer that found nothing else waits that long for it.

use crate::block_io::send::free_overwritten;
use crate::flush::last_close::close_kept;
use crate::flush::sync::sync_inodes;
use crate::flush::writers::flush_or_latch;
use crate::inode::open_table::Pinned;
use crate::mount::Mount;
use std::time::Duration;
use strake_array::reaper;
use strake_array::room::Turn;
use strake_proto::{Error, ErrorKind, Result};

/// How often everything is synced for one operation. The largest write has five blocks of the
/// smallest size, and the reserve has room for at least one of them.
const FREEING_MAX: usize = 8;
/// How many dirty blocks are sent at a time.
const SLICE_BLOCKS: usize = 16;
/// How long a writer waits for other mounts, in which each has several ticks. A mount that does not
/// give back what it does not need may have died.
const OTHERS_MAX: Duration = Duration::from_secs(4);
/// How often it looks meanwhile.
const OTHERS_STEP: Duration = Duration::from_millis(100);

/// Runs `work`, which needs room, and runs it again if there is no room and some can be freed. The
/// caller holds no block and no content.
pub(crate) fn with_room<T>(mount: &Mount, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    let mut result = with_own_room(mount, &mut work);
    if !is_full(&result) || mount.array.room.held_elsewhere() == 0 {
        return result;
    }
    let _wait = mount.array.observe.waiters.enter("space that other mounts hold", "");
    let clock = &mount.array.clock;
    let end = clock.monotonic() + OTHERS_MAX;
    // Each attempt asks the NSDs again.
    while is_full(&result) && mount.array.room.held_elsewhere() > 0 && clock.monotonic() < end {
        clock.sleep(OTHERS_STEP);
        result = work();
    }
    if is_full(&result) { with_own_room(mount, &mut work) } else { result }
}

fn is_full<T>(result: &Result<T>) -> bool {
    matches!(result, Err(error) if error.kind() == ErrorKind::NoSpace)
}

fn with_own_room<T>(mount: &Mount, work: &mut impl FnMut() -> Result<T>) -> Result<T> {
    let before = mount.array.meta.changes();
    let mut result = work();
    if is_full(&result) && close_kept(mount, Duration::MAX) {
        result = work();
    }
    if is_full(&result) && reaper::reclaim(&mount.array, before) {
        result = work();
    }
    if !is_full(&result) {
        return result;
    }
    let _turn = take_turn(mount)?;
    // The turn of another writer may have freed enough.
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
    let turn = mount.array.room.take_turn(mount.settings.standstill_max);
    turn.ok_or_else(|| Error::new(ErrorKind::Io, "what is dirty cannot be made durable"))
}

/// The blocks that hold room when a turn begins. The blocks that have been dirty longest come last.
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

    /// Sends some of the blocks and frees the versions that they replace. False if none are left.
    fn send_next(&mut self, mount: &Mount) -> bool {
        let _wait = mount.array.observe.waiters.enter("space of what was written anew", "");
        let slice = self.0.split_off(self.0.len().saturating_sub(SLICE_BLOCKS));
        if slice.is_empty() {
            return false;
        }
        mount.flush_fan.run(slice.len(), &|at| {
            let (inode, index) = &slice[at];
            let Some(file) = inode.core.lock().file.clone() else { return };
            // A block that is not in the map any more was dropped with its bytes, or is clean.
            let Some(block) = file.find_block(*index) else { return };
            flush_or_latch(mount, inode, &file, &block, None);
        });
        free_overwritten(mount);
        true
    }
}

/// Makes everything durable, so that nothing holds room and replaced versions are freed. False if
/// there was nothing to make durable. The caller has the turn.
fn free_replaced(mount: &Mount) -> bool {
    let array = &*mount.array;
    let _wait = array.observe.waiters.enter("space of what was written anew", "");
    if !array.room.begin_freeing() {
        return false;
    }
    // Errors are latched at the files that they concern.
    let _ = sync_inodes(mount, &mount.dirty_inodes(None));
    // Waits also for what others are about to settle. If they take too long, less is freed.
    array.rounds.wait_for_settling(mount.settings.standstill_max);
    // The NSDs free what was settled. If the round fails for a block, the block is dirty again and
    // has room held for it.
    let _ = array.rounds.run(false);
    array.room.refresh();
    true
}
