//! Makes the dirty data of one file or of many files durable.
//!
//! 1. Note the size, and send all dirty blocks. They are then accepted.
//! 2. Commit the NSDs. The blocks are then stable. In a cluster the times are told before, if the
//!    metadata lacks nothing else: its replicas write them while the NSDs commit.
//! 3. Tell the metadata the size, the times and where the bytes are (`MetaOp::Update`). The size
//!    is the one noted in step 1, or less if the file was cut since: what was written later may not
//!    be stable.
//! 4. Make the metadata durable. Only then are the stripes settled.

use crate::block_io::send::flush_block;
use crate::block_io::send_many::{Small, TOGETHER_MAX, send_together};
use crate::flush::folding::forget_stored;
use crate::flush::harden::{fold, harden};
use crate::flush::settling::Settling;
use crate::flush::told::{Told, lacking, took};
use crate::inode::core::InodeState;
use crate::inode::open_table::Pinned;
use crate::memory::file::FileState;
use crate::mount::{Mount, TOLD_TOGETHER};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use strake_array::reaper;
use strake_env::sync::Mutex;
use strake_proto::{Error, ErrorKind, Result};

/// How often steps 1 and 2 are tried if an NSD was lost meanwhile. An attempt during which an NSD
/// was restarted does not count. There is no endless loop, because NSDs that keep dying are not
/// restarted any more.
const ATTEMPTS: u32 = 4;

/// The files that are sent or told of in one job of the threads. With more of them, the blocks of a
/// file that a program waits for would come after them.
const SIDE_BY_SIDE: usize = 64;

/// How a file is made durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Saving {
    /// By all of the steps.
    Whole,
    /// By hardening, if there is little to save.
    Hardened,
    /// What was hardened and is in stripes by now is forgotten. What was written since may be
    /// hardened, if something of the file is.
    Often,
}

/// Makes one file durable: by hardening ([`crate::flush::harden`]) if there is little to save,
/// otherwise by all of the steps. All names and attributes that were changed before are durable,
/// too. If disks are away that may be back soon ([`Mount::may_pass`]), it waits for them as long as
/// writers wait while nothing can be written.
pub(crate) fn sync_inode(mount: &Mount, inode: &Arc<InodeState>) -> Result<()> {
    waiting_for_disks(mount, &format!("inode {}", inode.ino), || {
        mount.tell_kept().and_then(|()| sync_one(mount, inode, Saving::Hardened))
    })
}

/// Makes everything durable that this mount has, for a program. It waits as [`sync_inode`] does.
/// Returns how many bytes were sent by the attempt that succeeded.
pub(crate) fn sync_for_program(mount: &Mount) -> Result<u64> {
    waiting_for_disks(mount, "all files", || sync_all(mount))
}

fn waiting_for_disks<T>(
    mount: &Mount,
    concerned: &str,
    sync: impl FnMut() -> Result<T>,
) -> Result<T> {
    let clock = &mount.array.clock;
    let end = clock.monotonic() + mount.settings.standstill_max;
    mount.again_while(|| concerned.to_owned(), || clock.monotonic() < end, sync)
}

/// Makes one file durable by all of the steps.
pub(crate) fn sync_inode_whole(mount: &Mount, inode: &Arc<InodeState>) -> Result<()> {
    sync_one(mount, inode, Saving::Whole)
}

fn sync_one(mount: &Mount, inode: &Arc<InodeState>, how: Saving) -> Result<()> {
    let _settling = mount.array.rounds.begin_settling();
    let settling = make_durable(mount, inode, how)?;
    mount.array.meta.sync()?;
    settling.into_iter().for_each(|stripes| stripes.settle(&mount.array.rounds));
    mount.unregister_if_clean(inode);
    Ok(())
}

/// Makes many files durable with one commit of the NSDs and one sync of the metadata for all of
/// them. Returns how many bytes had to be sent. If a file fails, its error is latched unless it may
/// pass; the first error is also returned.
pub(crate) fn sync_inodes(mount: &Mount, inodes: &[Pinned]) -> Result<u64> {
    sync_many(mount, inodes, Saving::Whole)
}

/// Like [`sync_inodes`], for files that programs may be syncing all the time. Of those with
/// hardened units, what was written meanwhile may be hardened, so that programs do not wait for
/// more.
pub(crate) fn sync_often(mount: &Mount, inodes: &[Pinned]) -> Result<u64> {
    sync_many(mount, inodes, Saving::Often)
}

fn sync_many(mount: &Mount, inodes: &[Pinned], how: Saving) -> Result<u64> {
    let _settling = mount.array.rounds.begin_settling();
    let (bytes, failure) = (AtomicU64::new(send_small(mount, inodes)), Mutex::new(None));
    side_by_side(mount, inodes, &|inode| {
        let Some(file) = inode.core.lock().file.clone() else { return };
        let result = send_blocks(mount, inode, &file);
        bytes.fetch_add(result.as_ref().map_or(0, |sent| *sent), Ordering::AcqRel);
        latch(mount, inode, result, &failure);
    });
    // If a block did not become stable, its own file's sync below finds it dirty.
    let _ = mount.array.rounds.run(false);
    // A lone mount's metadata is a call away.
    if mount.tokens.is_some() {
        inodes.chunks(TOLD_TOGETHER).for_each(|some| update_together(mount, some));
    }
    let settling = Mutex::new(Vec::new());
    side_by_side(mount, inodes, &|inode| {
        let result = make_durable(mount, inode, how);
        let stripes = latch(mount, inode, result, &failure).flatten();
        settling.lock().extend(stripes);
    });
    let settling = settling.into_inner();
    mount.array.meta.sync()?;
    settling.into_iter().for_each(|stripes| stripes.settle(&mount.array.rounds));
    inodes.iter().for_each(|inode| mount.unregister_if_clean(inode));
    failure.into_inner().map_or(Ok(bytes.into_inner()), Err)
}

/// Sends small files of these, several at a time. Returns how many bytes that is. The rest is
/// sent file by file.
fn send_small(mount: &Mount, inodes: &[Pinned]) -> u64 {
    let small = |inode: &Pinned| {
        let file = inode.core.lock().file.clone()?;
        Small::of(inode, &file, file.first_dirty_block(0)?)
    };
    let small: Vec<Small> = inodes.iter().filter_map(small).collect();
    let groups: Vec<&[Small]> =
        small.chunks(TOGETHER_MAX).filter(|group| group.len() > 1).collect();
    let bytes = AtomicU64::new(0);
    mount.flush_fan.run(groups.len(), &|at| {
        bytes.fetch_add(send_together(mount, groups[at]), Ordering::AcqRel);
        if mount.is_round_due() {
            // If it fails for some blocks, they are dirty again.
            let _ = mount.array.rounds.run(false);
        }
    });
    bytes.into_inner()
}

/// Does the same for many files, some at a time. Many files are small: one after the other, each
/// would wait for the disks or for the metadata by itself.
fn side_by_side(mount: &Mount, inodes: &[Pinned], work: &(dyn Fn(&Pinned) + Sync)) {
    for some in inodes.chunks(SIDE_BY_SIDE) {
        mount.flush_fan.run(some.len(), &|at| work(&some[at]));
    }
}

fn latch<T>(
    mount: &Mount,
    inode: &InodeState,
    result: Result<T>,
    failure: &Mutex<Option<Error>>,
) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            if !mount.may_pass(&error) {
                inode.core.lock().latch.set(error.clone());
            }
            failure.lock().get_or_insert(error);
            None
        }
    }
}

/// Runs steps 1 to 3 for one file, or hardens it. Returns the stripes that must be settled after
/// step 4. If a step fails, the stripes stay with the file.
fn make_durable(mount: &Mount, inode: &Arc<InodeState>, how: Saving) -> Result<Option<Settling>> {
    // Held before the contents are looked up: see `InodeState::syncing`.
    let _one_at_a_time = inode.syncing.lock();
    // Contents that cannot be saved take no attributes with them.
    mount.tell_attributes(inode)?;
    let file = inode.core.lock().file.clone();
    file.map(|file| save_contents(mount, inode, &file, how)).transpose()
}

fn save_contents(
    mount: &Mount,
    inode: &Arc<InodeState>,
    file: &Arc<FileState>,
    how: Saving,
) -> Result<Settling> {
    let may_harden = match how {
        Saving::Whole => false,
        Saving::Hardened => true,
        Saving::Often => file.is_hardened(),
    };
    if how == Saving::Often && may_harden {
        forget_stored(mount, inode, file)?;
    }
    if may_harden && harden(mount, inode, file)? {
        return Ok(Settling::take(file));
    }
    let settled = loop {
        let moves = file.moves.load(Ordering::Acquire);
        inode.core.lock().size_target = Some(file.size());
        make_stable(mount, inode, file)?;
        let settled = Settling::take(file);
        // If the bytes moved meanwhile, the stable bytes are not where the file has them now.
        if update(mount, inode, file, moves)? {
            break settled;
        }
    };
    fold(mount, inode, file)?;
    Ok(settled)
}

fn make_stable(mount: &Mount, inode: &Arc<InodeState>, file: &Arc<FileState>) -> Result<()> {
    let nsds = mount.array.io.nsds();
    let mut attempts = 0;
    loop {
        let restarts = nsds.restarts();
        // Any thread's round may lose a block. The block is then dirty first, and counted in `lost`
        // after that.
        let lost = file.lost.load(Ordering::Acquire);
        let is_whole = || file.lost.load(Ordering::Acquire) == lost;
        send_blocks(mount, inode, file)?;
        if file.unstable.load(Ordering::Acquire) == 0 && is_whole() {
            return Ok(());
        }
        tell_times(mount, inode, file)?;
        let ran = mount.array.rounds.run(false);
        attempts += u32::from(nsds.restarts() == restarts);
        match ran {
            Ok(()) if is_whole() => return Ok(()),
            Ok(()) if attempts == ATTEMPTS => {
                let detail = format!("inode {} does not become stable", inode.ino);
                return Err(Error::new(ErrorKind::Retry, detail));
            }
            Err(error) if attempts == ATTEMPTS || error.kind() != ErrorKind::Retry => {
                return Err(error);
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// Sends all blocks of a file that are dirty now. Returns how many bytes that is. If there is no
/// space, it first frees the space of deleted data.
fn send_blocks(mount: &Mount, inode: &Arc<InodeState>, file: &Arc<FileState>) -> Result<u64> {
    let before = mount.array.meta.changes();
    match send_blocks_once(mount, inode, file) {
        Err(error)
            if error.kind() == ErrorKind::NoSpace && reaper::reclaim(&mount.array, before) =>
        {
            send_blocks_once(mount, inode, file)
        }
        result => result,
    }
}

fn send_blocks_once(mount: &Mount, inode: &Arc<InodeState>, file: &Arc<FileState>) -> Result<u64> {
    let indexes = file.dirty_blocks();
    let failure = Mutex::new(None);
    mount.flush_fan.run(indexes.len(), &|at| {
        // A block that is not in the map any more was dropped with its bytes, or is clean.
        let Some(block) = file.find_block(indexes[at]) else { return };
        if let Err(error) = flush_block(mount, inode, file, &block) {
            failure.lock().get_or_insert(error);
        }
        // If the commit failed for some blocks (`Retry`), they are dirty again; blocks of this file
        // may be among them.
        if mount.is_round_due()
            && let Err(error) = mount.array.rounds.run(false)
            && error.kind() != ErrorKind::Retry
        {
            failure.lock().get_or_insert(error);
        }
    });
    let sent = indexes.len() as u64 * u64::from(mount.array.block_size);
    failure.into_inner().map_or(Ok(sent.min(file.size())), Err)
}

/// Tells the metadata of a cluster the times of a file, if it lacks nothing else. If a crash leaves
/// them without the bytes, the file looks younger than it is, and nothing is lost by that.
fn tell_times(mount: &Mount, inode: &Arc<InodeState>, file: &Arc<FileState>) -> Result<()> {
    if mount.tokens.is_none() {
        return Ok(());
    }
    let content = file.content.read();
    let _serial = file.meta.lock();
    let Some(told) = Told::times(inode, file, &content) else { return Ok(()) };
    let result = mount.array.meta.apply_inode(told.update(inode.ino));
    took(inode, file, &content, &told, result)
}

/// Tells the metadata what it lacks of a file. Holds `content` shared across the metadata call, so
/// that inline data, size and place belong together. False if the bytes have moved since `moves`.
fn update(
    mount: &Mount,
    inode: &Arc<InodeState>,
    file: &Arc<FileState>,
    moves: u64,
) -> Result<bool> {
    let content = file.content.read();
    if file.moves.load(Ordering::Acquire) != moves {
        return Ok(false);
    }
    let _serial = file.meta.lock();
    let Some(told) = lacking(inode, file, &content) else { return Ok(true) };
    let result = mount.array.meta.apply_inode(told.update(inode.ino));
    took(inode, file, &content, &told, result).map(|()| true)
}

/// Tells the metadata with one message what it lacks of several files, as far as all of their bytes
/// are stable and nobody else is at work on them. What is left is told file by file.
fn update_together(mount: &Mount, inodes: &[Pinned]) {
    // Waits for no lock, because others may hold one of them and wait for one that is held here.
    let locked = inodes.iter().filter_map(|inode| {
        let syncing = inode.syncing.try_lock()?;
        let file = inode.core.lock().file.clone()?;
        Some((inode, file, syncing))
    });
    let locked: Vec<_> = locked.collect();
    let mut told = Vec::new();
    for (inode, file, _) in &locked {
        let moves = file.moves.load(Ordering::Acquire);
        let lost = file.lost.load(Ordering::Acquire);
        inode.core.lock().size_target = Some(file.size());
        let is_stable = !file.has_dirty_blocks() && file.unstable.load(Ordering::Acquire) == 0;
        // What was hardened has an order of its own.
        if !is_stable || file.lost.load(Ordering::Acquire) != lost || file.is_hardened() {
            continue;
        }
        let (Some(content), Some(serial)) = (file.content.try_read(), file.meta.try_lock()) else {
            continue;
        };
        if file.moves.load(Ordering::Acquire) == moves
            && let Some(lacks) = lacking(inode, file, &content)
        {
            told.push((inode, file, lacks, content, serial));
        }
    }
    let ops = told.iter().map(|(inode, _, lacks, ..)| lacks.update(inode.ino)).collect();
    let results = mount.array.meta.apply_inodes(ops);
    for ((inode, file, lacks, content, _), result) in told.iter().zip(results) {
        // After an error the file is told again by itself, and gets the error if there is one.
        let _ = took(inode, file, content, lacks, result);
    }
}

/// Makes everything durable, as `sync` does. Returns how many bytes had to be sent.
pub(crate) fn sync_all(mount: &Mount) -> Result<u64> {
    let bytes = sync_inodes(mount, &mount.dirty_inodes(None))?;
    Ok(bytes)
}
