//! From a block in memory to the NSDs: completes the block, sends it, and hands it to the next
//! round.

use crate::block_io::accepted::AcceptedBlock;
use crate::block_io::load::{load, load_stable, stored_length};
use crate::inode::core::InodeState;
use crate::memory::block::{Block, BlockData, Changed};
use crate::memory::file::{Content, FileState};
use crate::memory::page_pool::Fill;
use crate::mount::Mount;
use crate::settings::Patches;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use strake_array::room::{Claim, Flight};
use strake_array::stripe_io::{Access, Patch, Patched, SmallBlock, on_disk, padded_bytes, rows_of};
use strake_env::AlignedBuffer;
use strake_env::cause;
use strake_env::sync::{WatchedReadGuard, WatchedUpgradableGuard, WatchedWriteGuard};
use strake_proto::limits::UNIT_BYTES;
use strake_proto::{BlockIndex, Error, ErrorKind, Geometry, ObjectLayout, Result, Version};

/// How many commits to try for one block. Each commit makes accepted versions stable unless NSDs
/// fail.
const STABLE_ATTEMPTS: u32 = 8;
/// A block is sent as a patch if at most one in this many units of its stripe, parity included,
/// must be sent.
const PATCH_PART: usize = 2;
/// No strip gets more units than this from one patch. The NSDs note at most twice as many for each
/// strip before they straighten it.
const PATCH_ROWS_MAX: usize = 512;

/// Sends a block if it is dirty: reads its missing units, encodes it, and writes it. The block is
/// then accepted, and a round ([`strake_array::round`]) makes it stable.
///
/// Holds `content` shared and the block's lock (shared while the strips are sent) across NSD I/O.
///
/// **One version at a time.** While an accepted version of a block is not yet stable, the block is
/// not sent again. Otherwise a commit could find the newer version on some NSDs, where it has
/// replaced the older one, and only the older one on the others. The commit would report the older
/// version as stable, but after a power cut both versions would be gone.
///
/// **Other threads may send the block too.** A send that another thread begins after this call
/// includes all bytes that this call was asked to send, because they were written before it
/// started. So this call returns as soon as another thread has sent the block once, even if a
/// writer dirties the block without pause.
pub(crate) fn flush_block(
    mount: &Mount,
    inode: &Arc<InodeState>,
    file: &Arc<FileState>,
    block: &Arc<Block>,
) -> Result<()> {
    flush_block_with(mount, inode, file, block, None, &mut || {})
}

/// Like [`flush_block`]. With `since`, returns early if the block's send count has passed `since`:
/// another thread has already sent what we were asked to send. `after_round` runs where other
/// threads may send in between.
pub(crate) fn flush_block_with(
    mount: &Mount,
    inode: &Arc<InodeState>,
    file: &Arc<FileState>,
    block: &Arc<Block>,
    since: Option<u64>,
    after_round: &mut dyn FnMut(),
) -> Result<()> {
    let _cause = cause::take_file(inode.ino.0);
    let sends = block.sends.load(Ordering::Acquire);
    let nsds = mount.array.io.nsds();
    let (mut unstable, mut had_no_room, mut has_buffer) = (0, None, false);
    while unstable < STABLE_ATTEMPTS {
        let restarts = nsds.restarts();
        let attempt = Attempt { since, alone: had_no_room.is_some(), has_buffer };
        match send_block(mount, inode, file, block, &attempt)? {
            Sending::Done => return Ok(()),
            Sending::NotBase => {}
            Sending::NoBuffer => {
                // The sender does not wait until the pool has room, because other blocks give room
                // back only once they are sent. But a round can free the blocks that are already
                // accepted.
                if !mount.page_pool.make_room_for_block() {
                    let _ = mount.array.rounds.run(false);
                    mount.page_pool.make_room_for_block();
                }
                has_buffer = true;
            }
            Sending::Unstable => {
                // If the round fails for some blocks, they are dirty again; ours may be one of
                // them.
                let _ = mount.array.rounds.run(false);
                // An attempt during which an NSD was restarted does not count.
                unstable += u32::from(nsds.restarts() == restarts);
            }
            Sending::NoRoom => {
                // Other threads that overwrite may take the room that this frees. But they send it
                // and finish, too.
                let now = mount.array.clock.monotonic();
                let since = *had_no_room.get_or_insert(now);
                if now.saturating_sub(since) > mount.settings.standstill_max {
                    let detail = "what is overwritten cannot be made durable";
                    return Err(Error::new(ErrorKind::Io, detail));
                }
                free_overwritten(mount);
            }
        }
        after_round();
        if block.sends.load(Ordering::Acquire) != sends {
            return Ok(());
        }
    }
    let detail = format!("block {} of inode {} does not become stable", block.index, inode.ino);
    Err(Error::new(ErrorKind::Retry, detail))
}

/// The result of an attempt to send a block.
pub(super) enum Sending {
    /// The block is accepted, or there was nothing to send.
    Done,
    /// An accepted version of the block must become stable first.
    Unstable,
    /// The NSDs have no room for the block beside the version that it replaces.
    NoRoom,
    /// The complete block needs a whole buffer, for which the pool must make room.
    NoBuffer,
    /// The block could not be sent as a patch, and must be sent as a whole.
    NotBase,
}

/// How a block is sent.
#[derive(Default)]
pub(super) struct Attempt {
    /// See [`flush_block_with`].
    since: Option<u64>,
    /// Room was made for the block: see [`strake_array::room::Room::take_off`].
    alone: bool,
    /// Room was made for a whole buffer.
    has_buffer: bool,
}

/// See [`flush_block`].
fn send_block(
    mount: &Mount,
    inode: &Arc<InodeState>,
    file: &Arc<FileState>,
    block: &Arc<Block>,
    attempt: &Attempt,
) -> Result<Sending> {
    let content = durable_content(mount, file)?;
    let data = block.data.write();
    match Outgoing::prepare(mount, (inode, file, block), attempt, content, data)? {
        Ok(outgoing) => {
            let sent = send_bytes(&outgoing);
            outgoing.finish(sent)
        }
        Err(reason) => Ok(reason),
    }
}

/// A block that is being sent. It is pinned, and its lock is held shared.
pub(super) struct Outgoing<'a> {
    mount: &'a Mount,
    inode: &'a Arc<InodeState>,
    file: &'a Arc<FileState>,
    block: &'a Arc<Block>,
    pub(super) layout: ObjectLayout,
    pub(super) data: WatchedUpgradableGuard<'a, BlockData>,
    _content: WatchedReadGuard<'a, Content>,
    flight: Flight<'a>,
    /// The version to patch, if it is sent as a patch.
    base: Option<Version>,
    /// The length with which it was stored.
    before: u32,
    has_holes: bool,
    in_parts: bool,
    in_place: bool,
    is_tracked: bool,
    taken: Taken,
    /// The restart count of the NSDs from before it was sent.
    restarts: u64,
}

impl<'a> Outgoing<'a> {
    /// Makes a block ready to be sent, if it is dirty. `Err` inside says why it is not sent now.
    pub(super) fn prepare(
        mount: &'a Mount,
        (inode, file, block): (&'a Arc<InodeState>, &'a Arc<FileState>, &'a Arc<Block>),
        attempt: &Attempt,
        content: WatchedReadGuard<'a, Content>,
        mut data: WatchedWriteGuard<'a, BlockData>,
    ) -> Result<std::result::Result<Outgoing<'a>, Sending>> {
        let Content::Object(layout) = *content else { return Ok(Err(Sending::Done)) };
        if let Some(reason) = why_not_sent(block, &data, attempt.since) {
            return Ok(Err(reason));
        }
        let (base, flight) = match take_off(mount, file, &layout, block, &data, attempt)? {
            Ok(found) => found,
            Err(reason) => return Ok(Err(reason)),
        };
        let (has_holes, in_parts) = (data.has_holes(), data.is_written_in_parts());
        let before = match base {
            Some(_) => data.length,
            None => complete(mount, inode, file, &layout, block, &mut data)?,
        };
        // Checks again, because reading missing units may have had to write the block anew.
        if block.pinned.load(Ordering::Acquire) > 0 {
            return Ok(Err(Sending::Unstable));
        }
        let in_place = before == data.length && file.is_settled(block);
        block.in_place.store(in_place, Ordering::Release);
        let is_tracked = file.note_sending(block, &data, in_place);
        let taken = Taken::of(mount, block, &mut data, base.is_some());
        block.pinned.fetch_add(1, Ordering::AcqRel);

        let data = data.downgrade_to_upgradable();
        let restarts = mount.array.io.nsds().restarts();
        Ok(Ok(Outgoing {
            mount,
            inode,
            file,
            block,
            layout,
            data,
            _content: content,
            flight,
            base,
            before,
            has_holes,
            in_parts,
            in_place,
            is_tracked,
            taken,
            restarts,
        }))
    }

    /// Takes note of what became of it: it is accepted, or dirty again.
    pub(super) fn finish(self, sent: Result<Patched>) -> Result<Sending> {
        let Outgoing { mount, inode, file, block, layout, .. } = self;
        match sent {
            Ok(Patched::Accepted(written)) => {
                let length = self.data.length;
                self.flight.sent();
                block.stored.store(length, Ordering::Release);
                let block_size = layout.block_size;
                let is_whole = self.data.capacity() == block_size as usize && self.base.is_none();
                let is_new = self.before == 0 && length == block_size;
                let accepted = AcceptedBlock {
                    array: Arc::downgrade(&mount.array),
                    inode: Arc::clone(inode),
                    file: Arc::clone(file),
                    block: Arc::clone(block),
                    charge: self.taken.dirtied,
                    claimed: self.taken.claim.bytes as usize,
                    gained: note_gain(inode, block, (self.before, length), self.taken.fresh),
                    in_parts: self.in_parts,
                    in_place: self.in_place,
                    is_tracked: self.is_tracked,
                    reusable: is_whole && (self.has_holes || is_new),
                };
                accepted.hand_over(&layout, written, self.restarts);
                // Only now, and still under the block's lock: at any time a commit must find the
                // block among the dirty blocks or among the accepted ones.
                file.remove_dirty(block.index);
                block.sends.fetch_add(1, Ordering::AcqRel);
                Ok(Sending::Done)
            }
            failed => {
                // The lock is kept. Otherwise another sender would find the block clean and call
                // it stable.
                let mut data = block.data.upgrade(self.data);
                self.taken.give_back(file, block, &mut data);
                file.note_sent(block, self.is_tracked, false);
                failed.map(|_| Sending::NotBase)
            }
        }
    }

    /// The block as it is written whole: its length, and its bytes padded to whole data strips.
    pub(super) fn whole(&self) -> SmallBlock<'_> {
        let buffer = self.data.buffer.as_ref().expect("invariant: what is dirty has a buffer");
        let block_bytes = self.data.length;
        SmallBlock {
            layout: &self.layout,
            block: BlockIndex(self.block.index),
            block_bytes,
            bytes: &buffer[..padded_bytes(self.layout.code, block_bytes)],
            stable: self.block.stable(),
        }
    }
}

/// Finds room to send the block. `Ok` has the version to patch, if the block is sent as a patch,
/// and the room. `Err` says why the block cannot be sent yet. The caller holds the block's lock,
/// and no version of the block is pinned.
fn take_off<'a>(
    mount: &'a Mount,
    file: &FileState,
    layout: &ObjectLayout,
    block: &Block,
    data: &BlockData,
    attempt: &Attempt,
) -> Result<std::result::Result<(Option<Version>, Flight<'a>), Sending>> {
    let (room, claim) = (&mount.array.room, data.claim());
    if let Some(base) = base_of_patch(mount, file, layout, block, data)?
        && let Some(flight) = room.take_off(claim, Some(patch_bytes(layout, data)), false)
    {
        return Ok(Ok((Some(base), flight)));
    }
    if data.is_sparse() && !attempt.has_buffer {
        return Ok(Err(Sending::NoBuffer));
    }
    let flight = room.take_off(claim, None, attempt.alone);
    Ok(flight.map(|flight| (None, flight)).ok_or(Sending::NoRoom))
}

/// The version that the block can be sent as a patch of; `None` if it must be sent whole. The
/// caller holds the block's lock, and no version of the block is pinned.
fn base_of_patch(
    mount: &Mount,
    file: &FileState,
    layout: &ObjectLayout,
    block: &Block,
    data: &BlockData,
) -> Result<Option<Version>> {
    let (changed, units) = (&data.changed.units, (data.length as usize).div_ceil(UNIT_BYTES));
    let is_wanted = match mount.settings.patches {
        Patches::Off => false,
        Patches::Always => true,
        Patches::Auto => {
            let rows = rows_of(layout.code, data.length, changed.iter());
            let strip_units = units.div_ceil(usize::from(layout.code.data));
            let parity = usize::from(layout.code.parity);
            let (sent, all) = (changed.count() + parity * rows, units + parity * strip_units);
            sent <= all / PATCH_PART && rows <= PATCH_ROWS_MAX
        }
    };
    if !is_wanted || changed.is_empty() || data.changed.whole || data.has_stale_end() {
        return Ok(None);
    }
    // If the stored length is not known yet, this call also learns the stored version.
    let is_same_length = stored_length(mount, layout, block)? == data.length;
    let (base, index) = (block.stable(), BlockIndex(block.index));
    let counts = base > mount.array.floors.floor(layout.object, index);
    let fits = is_same_length && counts && !block.is_unsure() && file.is_settled(block);
    Ok(fits.then_some(base))
}

/// The bytes that an NSD needs for a patch, including a little for its records.
fn patch_bytes(layout: &ObjectLayout, data: &BlockData) -> u64 {
    let rows = rows_of(layout.code, data.length, data.changed.units.iter());
    ((rows + 1) * UNIT_BYTES) as u64
}

/// Sends a complete block, or its changed units as a patch of its base.
fn send_bytes(outgoing: &Outgoing<'_>) -> Result<Patched> {
    let (mount, layout, data) = (outgoing.mount, &outgoing.layout, &outgoing.data);
    let io = &mount.array.io;
    let Some(base) = outgoing.base else {
        let SmallBlock { block, block_bytes, bytes, stable, .. } = outgoing.whole();
        let start = mount.timings.block_write.begin();
        let sent = io.write_block(layout, block, block_bytes, bytes, stable);
        mount.timings.block_write.end(start, bytes.len() as u64, sent.is_ok());
        return sent.map(Patched::Accepted);
    };
    let buffer = data.buffer.as_ref().expect("invariant: what is dirty has a buffer");
    let bytes = |unit: usize| &buffer[unit * UNIT_BYTES..(unit + 1) * UNIT_BYTES];
    let units: Vec<(u32, &[u8])> =
        outgoing.taken.changed.units.iter().map(|unit| (unit as u32, bytes(unit))).collect();
    let start = mount.timings.block_patch.begin();
    let patch = Patch { base, block_bytes: data.length, units: &units };
    let sent = io.patch_block(layout, BlockIndex(outgoing.block.index), &patch);
    let is_accepted = matches!(sent, Ok(Patched::Accepted(_)));
    mount.timings.block_patch.end(start, (units.len() * UNIT_BYTES) as u64, is_accepted);
    sent
}

/// What a block gives up while it is sent.
struct Taken {
    changed: Changed,
    claim: Claim,
    /// The bytes that count as dirty in the pool until the block is stable.
    dirtied: usize,
    fresh: u32,
}

impl Taken {
    /// Takes these from the block. If the block is sent as a whole, all of it counts as dirty in
    /// the pool from now on.
    fn of(mount: &Mount, block: &Block, data: &mut BlockData, is_patch: bool) -> Taken {
        data.dirty = false;
        data.set_saved();
        let (changed, claim) = (std::mem::take(&mut data.changed), data.claim());
        let counted = std::mem::take(&mut data.dirtied);
        let dirtied = if is_patch { counted } else { data.charge };
        mount.page_pool.add_dirty(dirtied - counted);
        data.set_claim(Claim::default());
        // A block that is sent as a patch is clean afterwards, with the units that it has.
        block.enter(data, &mount.page_pool);
        Taken { changed, claim, dirtied, fresh: std::mem::take(&mut data.fresh) }
    }

    /// Gives everything back because the block could not be sent. The block is dirty as before; it
    /// never left the list of dirty blocks. Some NSDs may hold what was sent, so next time it is
    /// sent as a whole.
    fn give_back(self, file: &FileState, block: &Block, data: &mut BlockData) {
        assert!(!data.dirty, "nobody writes to a block while it is sent");
        data.whole = true;
        data.changed = Changed { whole: true, ..self.changed };
        block.set_unsure();
        file.insert_unsaved(block.index);
        data.dirty = true;
        data.set_claim(self.claim);
        data.dirtied = self.dirtied;
        data.fresh += self.fresh;
        block.pinned.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The reason why a block is not sent now; `None` if it can be sent. The caller holds the block's
/// lock, under which the reason can change.
fn why_not_sent(block: &Block, data: &BlockData, since: Option<u64>) -> Option<Sending> {
    let is_sent = since.is_some_and(|sends| block.sends.load(Ordering::Acquire) != sends);
    if data.detached || !data.dirty || data.length == 0 || is_sent {
        return Some(Sending::Done);
    }
    (block.pinned.load(Ordering::Acquire) > 0).then_some(Sending::Unstable)
}

/// Frees overwritten versions. The first round makes the new versions stable, the second settles
/// them.
pub(crate) fn free_overwritten(mount: &Mount) {
    let array = &*mount.array;
    let _wait = array.observe.waiters.enter("space of what was overwritten", "");
    for _ in 0..2 {
        // If a round fails for some blocks, they are dirty again.
        let _ = array.rounds.run(false);
    }
    array.room.refresh();
}

/// Notes what an accepted write gained on disks by changing the block's stored length. Returns the
/// gain that the inode gets when the write is stable.
fn note_gain(inode: &InodeState, block: &Block, (from, to): (u32, u32), fresh: u32) -> i64 {
    let more = i64::from(on_disk(to)) - i64::from(on_disk(from));
    let mut gain = block.gain.lock();
    let mut core = inode.core.lock();
    if gain.deleted.is_none() {
        gain.unstable += more;
        core.unstable_gain += more;
    }
    core.fresh -= u64::from(fresh).min(core.fresh);
    core.changes += u64::from(more != 0);
    more + std::mem::take(&mut gain.owed)
}

/// The content of a file, held shared. Before it returns, everything is durable that must be
/// durable before a block is sent.
fn durable_content<'a>(
    mount: &Mount,
    file: &'a FileState,
) -> Result<WatchedReadGuard<'a, Content>> {
    loop {
        let content = file.content.read();
        // The barrier is read under `content`, because raising it needs `content` exclusively.
        if mount.array.meta.is_durable(file.barrier.load(Ordering::Acquire)) {
            return Ok(content);
        }
        drop(content);
        mount.array.meta.sync()?;
    }
}

/// Makes a dirty block ready to be sent: every unit below its length is in the buffer, the block is
/// at least as long as it is stored, and zeros follow. Returns the stored length.
fn complete(
    mount: &Mount,
    inode: &Arc<InodeState>,
    file: &Arc<FileState>,
    layout: &ObjectLayout,
    block: &Block,
    data: &mut BlockData,
) -> Result<u32> {
    let limit = data.limit as usize;
    if data.is_missing(0, limit) {
        let touched = if data.is_sparse() { mount.page_pool.take_touched() } else { None };
        let load = |data: &mut BlockData| match load_stable(mount, layout, block, data) {
            true => Ok(()),
            false => load(mount, inode, file, layout, block, data, (0, limit), Access::Exclusive),
        };
        match touched {
            Some(buffer) => put_together(mount, data, buffer, load)?,
            None => load(data)?,
        }
    }
    let stored = stored_length(mount, layout, block)?;
    // Shapes only widen: see `stripe_io`.
    data.length = data.length.max(stored);
    if stored > 0 {
        let widened = Geometry::widened(layout.code, data.length.into(), stored.into());
        data.length = u32::try_from(widened).expect("invariant: at most a block");
    }
    let padded = padded_bytes(layout.code, data.length);
    block.grow(data, &mount.page_pool, padded, Fill::Whole);
    for unit in 0..(data.length as usize).div_ceil(UNIT_BYTES) {
        if !data.valid.contains(unit) {
            data.zero_unit(unit);
        }
    }
    let end = (data.length as usize).next_multiple_of(UNIT_BYTES);
    let buffer = data.buffer.as_mut().expect("invariant: just grown");
    if end < padded {
        buffer[end..padded].fill(0);
    }
    if buffer.is_sparse() {
        mount.page_pool.note_touched(buffer, usize::MAX);
    }
    block.enter(data, &mount.page_pool);
    Ok(stored)
}

/// Moves a block with only parts in memory to a buffer whose pages have been touched before, and
/// makes `load` read the other units there. In the block's own buffer each new page would be a
/// first touch.
fn put_together(
    mount: &Mount,
    data: &mut BlockData,
    buffer: AlignedBuffer,
    load: impl FnOnce(&mut BlockData) -> Result<()>,
) -> Result<()> {
    let parts = data.buffer.replace(buffer).expect("invariant: a sparse block has a buffer");
    let valid = std::mem::take(&mut data.valid);
    let loaded = load(data);
    let whole = data.buffer.as_mut().expect("invariant: just put there");
    for unit in valid.iter() {
        let bytes = unit * UNIT_BYTES..(unit + 1) * UNIT_BYTES;
        whole[bytes.clone()].copy_from_slice(&parts[bytes]);
        data.valid.insert(unit);
    }
    mount.page_pool.release(parts);
    loaded
}
