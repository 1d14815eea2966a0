//! Writing behind the application.
//!
//! A block is queued when its last byte is written, or when the pool has too many dirty pages. The
//! threads send blocks, and run a round when enough bytes are accepted. If a send fails, the error
//! is latched at the inode, and the block stays dirty and is tried again.

use crate::block_io::send::flush_block_with;
use crate::block_io::send_many::{Small, TOGETHER_MAX, is_small, send_together};
use crate::inode::core::InodeState;
use crate::inode::open_table::Pinned;
use crate::inode::queue::{Job, Next};
use crate::memory::block::Block;
use crate::memory::file::FileState;
use crate::mount::Mount;
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use strake_array::reaper;
use strake_env::cause;
use strake_proto::ErrorKind;

/// How many blocks one call of `press` queues at most.
const PRESS_BLOCKS_MAX: usize = 32;

/// What a write-behind thread does until it ends.
pub(crate) fn serve(mount: &Mount) {
    loop {
        match mount.write_behind.next() {
            Next::Job(job) => {
                run_with_others(mount, job);
                let last = mount.page_pool.is_waited_for() && mount.write_behind.len() == 0;
                if last || mount.is_round_due() {
                    // If the round fails for some blocks, they are dirty again.
                    let _ = mount.array.rounds.run(false);
                }
            }
            Next::Press => press(mount),
            Next::Idle => {}
            Next::End => return,
        }
    }
}

/// Sends a block. If it is a small file, the small files behind it in the queue are sent together
/// with it.
fn run_with_others(mount: &Mount, job: Job) {
    let mut jobs = vec![job];
    if is_small(&jobs[0].file) {
        let others = mount.write_behind.take_while(TOGETHER_MAX - 1, |job| is_small(&job.file));
        jobs.extend(others);
    }
    if jobs.len() > 1 && mount.hold_lease().is_ok() {
        let _cause = cause::take(jobs[0].cause);
        let small = |job: &Job| Small::of(&job.inode, &job.file, job.index);
        send_together(mount, &jobs.iter().filter_map(small).collect::<Vec<Small>>());
    }
    jobs.into_iter().for_each(|job| run(mount, job));
}

fn run(mount: &Mount, job: Job) {
    // A mount that was declared dead drops the block.
    if mount.hold_lease().is_err() {
        return;
    }
    let Some(block) = job.file.find_block(job.index) else { return };
    let _cause = cause::take(job.cause);
    // If the block was sent since, the reason why it was queued is gone. Bytes written after that
    // have their own reason to wait, perhaps a small `fsync` that need not send the block.
    let Some(sends) = block.queued.swap(0, Ordering::AcqRel).checked_sub(1) else { return };
    flush_or_latch(mount, &job.inode, &job.file, &block, Some(sends));
}

/// Sends a block when no caller waits for the result. If the send fails, and is not just tried
/// again ([`Mount::may_pass`]), the error is latched at the inode. For `since` see
/// [`flush_block_with`].
pub(crate) fn flush_or_latch(
    mount: &Mount,
    inode: &Arc<InodeState>,
    file: &Arc<FileState>,
    block: &Arc<Block>,
    since: Option<u64>,
) {
    let flush = || flush_block_with(mount, inode, file, block, since, &mut || {});
    let before = mount.array.meta.changes();
    let result = match flush() {
        Err(error)
            if error.kind() == ErrorKind::NoSpace && reaper::reclaim(&mount.array, before) =>
        {
            flush()
        }
        result => result,
    };
    if let Err(error) = result
        && !mount.may_pass(&error)
    {
        inode.core.lock().latch.set(error);
    }
}

/// Queues dirty blocks of the inodes that have been dirty longest. If there are none left, runs a
/// round, which makes accepted blocks stable.
///
/// The inodes take turns, because an inode that is written to without pause always has dirty
/// blocks. All calls share one list of them. To make one for each call would take longer than to
/// send the blocks that a call queues, if many small files are dirty.
fn press(mount: &Mount) {
    let mut queued = 0;
    let mut may_renew = true;
    while queued < PRESS_BLOCKS_MAX
        && let Some(inode) = next_pressed(mount, &mut may_renew)
    {
        queued += press_inode(mount, &inode, PRESS_BLOCKS_MAX - queued);
    }
    if queued == 0 && mount.array.rounds.accepted_bytes() > 0 {
        let _ = mount.array.rounds.run(false);
    }
}

/// Takes the next inode with dirty blocks from the list. Makes a new list once, at its end.
fn next_pressed(mount: &Mount, may_renew: &mut bool) -> Option<Pinned> {
    loop {
        let next = mount.pressed.lock().pop_front();
        if let Some(ino) = next {
            // An inode that is on no list any more has nothing to send.
            let found = mount.dirty.lock().get(&ino).cloned();
            if found.is_some() {
                return found;
            }
        } else if std::mem::take(may_renew) {
            let list = mount.dirty_inodes(None);
            *mount.pressed.lock() = list.iter().map(|inode| inode.ino).collect();
        } else {
            return None;
        }
    }
}

/// Queues dirty blocks of one inode, at most `most`. Returns how many.
fn press_inode(mount: &Mount, inode: &Arc<InodeState>, most: usize) -> usize {
    let Some(file) = inode.core.lock().file.clone() else { return 0 };
    // A block that must become stable before it is sent again comes last, with the round.
    let free = |index| {
        let block = file.find_block(index)?;
        let bytes = block.data.try_read()?.dirtied;
        (block.pinned.load(Ordering::Acquire) == 0).then_some((index, bytes))
    };
    let mut dirty: Vec<(u64, usize)> = file.dirty_blocks().into_iter().filter_map(free).collect();
    // The fullest blocks come first: a block with only parts in memory costs as much to send as a
    // whole one.
    dirty.sort_by_key(|(_, bytes)| Reverse(*bytes));
    let indexes = dirty.into_iter().map(|(index, _)| index);
    indexes.filter(|index| enqueue(mount, inode, &file, *index)).take(most).count()
}

/// Queues a block for the write-behind threads. False if it is already in the queue.
pub(crate) fn enqueue(
    mount: &Mount,
    inode: &Arc<InodeState>,
    file: &Arc<FileState>,
    index: u64,
) -> bool {
    let Some(block) = file.find_block(index) else { return false };
    let sends = block.sends.load(Ordering::Acquire);
    if block.queued.swap(sends + 1, Ordering::AcqRel) != 0 {
        return false;
    }
    let inode = mount.table.pin(inode.ino);
    mount.write_behind.push(Job::new(inode, Arc::clone(file), index));
    true
}

#[cfg(test)]
#[path = "writers_test.rs"]
mod writers_test;
