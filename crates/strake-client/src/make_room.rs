//! Room for what is written to a full file system: what deletions still hold is freed, and what was
//! replaced by making everything durable.

use crate::commit::sync_inodes;
use crate::shared::Shared;
use strake_array::reaper;
use strake_array::room::Turn;
use strake_proto::{Error, ErrorKind, Result};

/// How often room is made for one operation: the largest write has five blocks of the smallest
/// size, and the reserve has room for one at least.
const FREEING_MAX: usize = 8;

/// Does what needs room, and does it again if there is none and something can be freed: what
/// deletions still hold, and what was replaced. The caller holds no block and no content.
pub(crate) fn with_room<T>(shared: &Shared, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    let before = shared.array.meta.changes();
    let is_full =
        |result: &Result<T>| matches!(result, Err(error) if error.kind() == ErrorKind::NoSpace);
    let mut result = work();
    if is_full(&result) && reaper::reclaim(&shared.array, before) {
        result = work();
    }
    if !is_full(&result) {
        return result;
    }
    let _turn = take_turn(shared)?;
    // Somebody else's turn may have been all that was in the way.
    result = work();
    for _ in 0..FREEING_MAX {
        if !is_full(&result) || !free_replaced(shared) {
            break;
        }
        result = work();
    }
    result
}

/// # Errors
/// `Io` if the turns of others take too long: disks that do not answer hold them up.
fn take_turn(shared: &Shared) -> Result<Turn<'_>> {
    let _wait = shared.array.observe.waiters.enter("turn to find space", "");
    let turn = shared.array.room.take_turn(shared.settings.standstill_max);
    turn.ok_or_else(|| Error::new(ErrorKind::Io, "what is dirty cannot be made durable"))
}

/// Makes everything durable, so that nothing is held and what was replaced is freed. False if there
/// was nothing to be made durable. In the caller's turn.
fn free_replaced(shared: &Shared) -> bool {
    let array = &*shared.array;
    let _wait = array.observe.waiters.enter("space of what was written anew", "");
    if !array.room.begin_freeing() {
        return false;
    }
    // Errors are latched at the files they concern.
    let _ = sync_inodes(shared, &shared.dirty_inodes(None));
    // Also what others are about to settle; if they take too long, less is freed.
    array.rounds.wait_for_settling(shared.settings.standstill_max);
    // The NSDs free what was settled; a block that is lost over it is dirty, and held for.
    let _ = array.rounds.run(false);
    array.room.refresh();
    true
}
