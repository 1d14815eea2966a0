//! Whether what is written will have room: ENOSPC belongs to `write`, not to a later flush.
//!
//! Each block that is dirty holds room until it is on the NSDs, as if all that is held had to fit
//! on the one that is fullest. So no block that was accepted finds an NSD full. Where the estimate
//! does not suffice the NSDs are asked again; where that does not, all is made durable, after which
//! nothing is held, and nothing kept that has been replaced ([`with_room`]).
//!
//! **What replaces something.** Every write goes to new space, also where a block is stored
//! already: what is stored is freed once the new version is durable. So that a full file system can
//! still be written to where it holds something, a *reserve* is kept from whatever makes it fuller.
//! What only replaces something takes its turns in there.

use crate::commit::sync_inodes;
use crate::ranges::Ranges;
use crate::shared::Shared;
use crate::stripe_io::StripeIo;
use parking_lot::{Mutex, MutexGuard};
use std::thread::ThreadId;
use strake_proto::limits::{SHORT_BLOCK_BYTES_MAX, UNIT_BYTES};
use strake_proto::{Code, Error, ErrorKind, Geometry, Result};

/// Raw bytes per NSD that data never takes: room for what else an NSD notes.
const MARGIN_PER_SLOT: u64 = 1 << 20;
/// The reserve of an NSD: such a part of it,
const RESERVE_PART: u64 = 32;
/// at least so many strips of a whole block, though no more than
const RESERVE_STRIPS: u64 = 2;
/// this part of a small one,
const RESERVE_PART_MAX: u64 = 8;
/// and so many bytes of a large one.
const RESERVE_MAX: u64 = 256 << 20;

/// Longer strips take one more unit on an NSD.
const UNITS_WITHOUT_TRAILER: u64 = 16;

/// An NSD keeps nothing for the metadata where less than such a part of the whole is free.
const LEFT_PART: u64 = 8;

/// How often room is made for one operation: the largest write has five blocks of the smallest
/// size, and the reserve has room for one at least.
const FREEING_MAX: usize = 8;

/// What a dirty block holds until it is sent: in bytes of data; within [`Space`], in bytes of
/// strips on one NSD, of which a short block takes as many as it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) bytes: u64,
    /// Of these, what makes the file system no fuller: once it is durable, as much is freed.
    pub(crate) replaces: u64,
}

impl Held {
    fn growth(self) -> u64 {
        self.bytes - self.replaces
    }

    fn plus(self, other: Held) -> Held {
        Held { bytes: self.bytes + other.bytes, replaces: self.replaces + other.replaces }
    }

    fn minus(self, other: Held) -> Held {
        Held { bytes: self.bytes - other.bytes, replaces: self.replaces - other.replaces }
    }
}

#[derive(Default)]
struct State {
    /// Raw bytes free on the fullest NSD as last told, less the margin and what was sent since.
    free: u64,
    /// Raw bytes of an NSD for data, used or free.
    total: u64,
    /// Raw bytes per NSD; see the file's head.
    reserve: u64,
    /// By all blocks together.
    held: Held,
    /// As much was sent so far.
    sent: u64,
    /// Of these, those that replace nothing any more that is not free: they are durable.
    freed: u64,
    /// Whose turn it is: nobody else finds room.
    turn: Option<ThreadId>,
    /// Nothing is refused: what is written was acknowledged before a crash.
    owing: bool,
}

impl State {
    /// The most that may be held. Of what an NSD tells is free it may keep half for the metadata,
    /// as long as a part of the whole is left (`keep_more` of its allocator).
    fn holdable(&self) -> u64 {
        self.free.min((self.free / 2).max(self.total / LEFT_PART))
    }
}

/// See the file's head.
pub(crate) struct Space {
    code: Code,
    slots: u64,
    block_size: u64,
    state: Mutex<State>,
    /// Held by whose turn it is.
    turns: Mutex<()>,
}

impl Space {
    /// Asks the NSDs.
    pub(crate) fn new(code: Code, block_size: u32, io: &StripeIo) -> Space {
        let space = Space {
            code,
            slots: (io.nsds().slots().count() as u64).max(1),
            block_size: block_size.into(),
            state: Mutex::default(),
            turns: Mutex::default(),
        };
        space.learn(io, 0);
        space
    }

    /// The most that a block of up to so many bytes takes on an NSD.
    fn strip(&self, block_bytes: u64) -> u64 {
        if block_bytes == 0 {
            return 0;
        }
        // A short block has longer strips than one that is a little longer.
        let short = Geometry::of(self.code, block_bytes.min(SHORT_BLOCK_BYTES_MAX)).strip_bytes;
        let strip = Geometry::of(self.code, block_bytes).strip_bytes.max(short) as u64;
        let unit = UNIT_BYTES as u64;
        // The checksums of a long one stand behind it.
        strip + if strip > UNITS_WITHOUT_TRAILER * unit { unit } else { 0 }
    }

    /// What a block holds of an NSD.
    fn strips(&self, of_data: Held) -> Held {
        let bytes = self.strip(of_data.bytes);
        let strips = if of_data.bytes > SHORT_BLOCK_BYTES_MAX { self.code.data.into() } else { 1 };
        let growth = of_data.growth().div_ceil(strips).next_multiple_of(UNIT_BYTES as u64);
        let replaces = if of_data.replaces == 0 { 0 } else { bytes.saturating_sub(growth) };
        Held { bytes, replaces }
    }

    /// Asks the NSDs again.
    pub(crate) fn refresh(&self, io: &StripeIo) {
        let sent = self.state.lock().sent;
        io.nsds().refresh_space();
        self.learn(io, sent);
    }

    /// Takes over what the NSDs told last, which may lack what was sent after the first `sent`
    /// bytes.
    fn learn(&self, io: &StripeIo, sent: u64) {
        let (total, free) = io.nsds().space();
        let (total, free) = (total / self.slots, free / self.slots);
        let least = RESERVE_STRIPS * self.strip(self.block_size);
        let reserve = (total / RESERVE_PART).min(RESERVE_MAX).max(least);
        let mut state = self.state.lock();
        state.total = total;
        state.reserve = reserve.min(total / RESERVE_PART_MAX);
        let since = state.sent - sent;
        state.free = free.saturating_sub(MARGIN_PER_SLOT + since);
    }

    /// Holds room for a block that held `old` so far, if there is as far as is known.
    pub(crate) fn try_hold(&self, old: Held, new: Held) -> bool {
        let (old, new) = (self.strips(old), self.strips(new));
        let mut state = self.state.lock();
        let held = state.held.minus(old).plus(new);
        let grows = new.growth() > old.growth();
        let waits = state.turn.is_some_and(|thread| thread != std::thread::current().id());
        let fits = !waits
            && held.bytes <= state.holdable()
            && (!grows || held.growth() + state.reserve <= state.free);
        if fits || state.owing {
            state.held = held;
            return true;
        }
        false
    }

    /// The same; asks the NSDs again if there is none.
    ///
    /// # Errors
    /// `NoSpace`; it holds `old` then.
    pub(crate) fn hold(&self, old: Held, new: Held, io: &StripeIo) -> Result<()> {
        if self.try_hold(old, new) {
            return Ok(());
        }
        self.refresh(io);
        if self.try_hold(old, new) { Ok(()) } else { Err(ErrorKind::NoSpace.into()) }
    }

    /// Gives back what was held for data that was dropped.
    pub(crate) fn release(&self, held: Held) {
        let mut state = self.state.lock();
        state.held = state.held.minus(self.strips(held));
    }

    /// Holds room for data that was on the NSDs, and is dirty again.
    pub(crate) fn owe(&self, held: Held) {
        let mut state = self.state.lock();
        state.held = state.held.plus(self.strips(held));
    }

    /// While `owing`, [`Space::hold`] refuses nothing.
    pub(crate) fn set_owing(&self, owing: bool) {
        self.state.lock().owing = owing;
    }

    /// What was held is on the NSDs.
    pub(crate) fn sent(&self, held: Held) {
        self.release(held);
        let bytes = self.strip(held.bytes);
        let mut state = self.state.lock();
        state.sent += bytes;
        state.free = state.free.saturating_sub(bytes);
    }

    /// Whether `bytes` more would fit.
    pub(crate) fn would_fit(&self, bytes: u64, io: &StripeIo) -> bool {
        // Spread over all NSDs, as so much will be.
        let on_all = u128::from(bytes) * self.code.width() as u128 / u128::from(self.code.data);
        let fits = || {
            let state = self.state.lock();
            let needed = state.held.growth() + state.reserve;
            on_all <= u128::from(state.free.saturating_sub(needed)) * u128::from(self.slots)
        };
        fits() || {
            self.refresh(io);
            fits()
        }
    }

    /// Held by all blocks.
    #[cfg(test)]
    pub(crate) fn held(&self) -> Held {
        self.state.lock().held
    }

    /// Total and free bytes for data, as the NSDs tell, without what data never takes and the
    /// reserve.
    pub(crate) fn usable(&self, io: &StripeIo) -> (u64, u64) {
        self.refresh(io);
        let (total, free) = io.nsds().space();
        let state = self.state.lock();
        let data = |raw: u64| {
            (u128::from(raw) * u128::from(self.code.data) / self.code.width() as u128) as u64
        };
        let kept = (state.reserve + MARGIN_PER_SLOT) * self.slots;
        let (total, free) = (total.saturating_sub(kept), free.saturating_sub(kept));
        let growth = state.held.growth() * u64::from(self.code.data);
        (data(total), data(free).saturating_sub(growth))
    }
}

/// Does what needs room, and does it again if there is none and something can be freed: what
/// deletions still hold, and what was replaced. The caller holds no block and no content.
pub(crate) fn with_room<T>(shared: &Shared, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    let before = shared.meta.changes();
    let is_full =
        |result: &Result<T>| matches!(result, Err(error) if error.kind() == ErrorKind::NoSpace);
    let mut result = work();
    if is_full(&result) && Ranges::reclaim(shared, before) {
        result = work();
    }
    if !is_full(&result) {
        return result;
    }
    let _turn = Turn::take(shared)?;
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

/// While it lives nobody else finds room.
struct Turn<'a> {
    space: &'a Space,
    _alone: MutexGuard<'a, ()>,
}

impl Turn<'_> {
    /// # Errors
    /// `Io` if another's takes too long: disks that do not answer hold it up.
    fn take(shared: &Shared) -> Result<Turn<'_>> {
        let space = &shared.space;
        let _wait = shared.observe.waiters.enter("turn to find space", "");
        let Some(_alone) = space.turns.try_lock_for(shared.settings.standstill_max) else {
            return Err(Error::new(ErrorKind::Io, "what is dirty cannot be made durable"));
        };
        space.state.lock().turn = Some(std::thread::current().id());
        Ok(Turn { space, _alone })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.space.state.lock().turn = None;
    }
}

/// Makes everything durable, so that nothing is held and what was replaced is freed. False if there
/// was nothing to be made durable. In the caller's turn.
fn free_replaced(shared: &Shared) -> bool {
    let Shared { space, committer, .. } = shared;
    let _wait = shared.observe.waiters.enter("space of what was written anew", "");
    {
        let mut state = space.state.lock();
        if state.held.bytes == 0 && state.sent == state.freed {
            return false;
        }
        state.freed = state.sent;
    }
    // Errors are latched at the files they concern.
    let _ = sync_inodes(shared, &shared.dirty_inodes(None));
    // Also what others are about to settle; if they take too long, less is freed.
    committer.wait_for_settling(shared.settings.standstill_max, &shared.observe.waiters);
    // The NSDs free what was settled; a block that is lost over it is dirty, and held for.
    let _ = committer.commit(shared, false);
    space.refresh(&shared.io);
    true
}
