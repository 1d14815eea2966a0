//! Whether what is written will have room: ENOSPC belongs to `write`, not to a later flush.
//!
//! Each block that is dirty holds room until it is on the NSDs, as if all that is held had to fit
//! on the one that is fullest. So no block that was accepted finds an NSD full. Where the estimate
//! does not suffice the NSDs are asked again; where that does not, all is made durable, after which
//! nothing is held, and nothing kept that has been replaced (`make_room.rs` of the client).
//!
//! **What replaces something.** Every write goes to new space, also where a block is stored
//! already: what is stored is freed once the new version is durable. So that a full file system can
//! still be written to where it holds something, a *reserve* is kept from whatever makes it fuller.
//! What only replaces something takes its turns in there.
//!
//! **Overwriting.** A block that is overwritten within its stored length makes the file system no
//! fuller, and what it replaces is freed two rounds after it was sent ([`crate::round`]). Such a
//! block holds nothing while it is dirty (`Held::overwrites`). It takes room off when it is sent
//! ([`Room::take_off`]): as much as is left beside what others hold, and the reserve at least. A
//! sender that finds none has the rounds run, which free what was sent before.

use crate::stripe_io::StripeIo;
use std::sync::Arc;
use std::time::Duration;
use strake_env::sync::{Mutex, MutexGuard};
use strake_env::thread::ThreadId;
use strake_proto::limits::{SHORT_BLOCK_BYTES_MAX, UNIT_BYTES};
use strake_proto::{Code, ErrorKind, Geometry, Result};

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

/// What a dirty block holds until it is sent: in bytes of data; within [`Room`], in bytes of
/// strips on one NSD, of which a short block takes as many as it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub bytes: u64,
    /// Of these, what makes the file system no fuller: once it is durable, as much is freed.
    pub replaces: u64,
    /// It replaces a settled version of the same length, so that it needs room from when it is sent
    /// until the rounds have settled it, and holds none before.
    pub overwrites: bool,
}

impl Held {
    fn growth(self) -> u64 {
        self.bytes - self.replaces
    }

    fn plus(self, other: Held) -> Held {
        let (bytes, replaces) = (self.bytes + other.bytes, self.replaces + other.replaces);
        Held { bytes, replaces, overwrites: false }
    }

    fn minus(self, other: Held) -> Held {
        let (bytes, replaces) = (self.bytes - other.bytes, self.replaces - other.replaces);
        Held { bytes, replaces, overwrites: false }
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
    /// By all blocks together, without those that overwrite.
    held: Held,
    /// Bytes of strips that overwrite and are being sent: neither held nor taken off `free` yet.
    flying: u64,
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

    /// Whether so much may be held. The reserve is kept for what overwrites; what flies beyond it
    /// is in the way until it has landed and the rounds have settled it.
    fn fits(&self, held: Held) -> bool {
        held.bytes <= self.holdable() && held.growth() + self.reserve.max(self.flying) <= self.free
    }
}

/// See the file's head.
pub struct Room {
    io: Arc<StripeIo>,
    code: Code,
    slots: u64,
    block_size: u64,
    state: Mutex<State>,
    /// Held by whose turn it is.
    turns: Mutex<()>,
}

impl Room {
    /// Asks the NSDs.
    pub fn new(code: Code, block_size: u32, io: &Arc<StripeIo>) -> Room {
        let room = Room {
            io: Arc::clone(io),
            code,
            slots: (io.nsds().slots().count() as u64).max(1),
            block_size: block_size.into(),
            state: Mutex::default(),
            turns: Mutex::default(),
        };
        room.learn(0);
        room
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
        if of_data.overwrites {
            return Held::default();
        }
        let bytes = self.strip(of_data.bytes);
        let strips = if of_data.bytes > SHORT_BLOCK_BYTES_MAX { self.code.data.into() } else { 1 };
        let growth = of_data.growth().div_ceil(strips).next_multiple_of(UNIT_BYTES as u64);
        let replaces = if of_data.replaces == 0 { 0 } else { bytes.saturating_sub(growth) };
        Held { bytes, replaces, overwrites: false }
    }

    /// Asks the NSDs again.
    pub fn refresh(&self) {
        let sent = self.state.lock().sent;
        self.io.nsds().refresh_space();
        self.learn(sent);
    }

    /// Takes over what the NSDs told last, which may lack what was sent after the first `sent`
    /// bytes.
    fn learn(&self, sent: u64) {
        let (total, free) = self.io.nsds().space();
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
    pub fn try_hold(&self, old: Held, new: Held) -> bool {
        let (old, new) = (self.strips(old), self.strips(new));
        let mut state = self.state.lock();
        let held = state.held.minus(old).plus(new);
        let grows = new.growth() > old.growth();
        let is_less = new.bytes <= old.bytes && !grows;
        let waits = state.turn.is_some_and(|thread| thread != strake_env::thread::current().id());
        let fits = is_less
            || !waits && if grows { state.fits(held) } else { held.bytes <= state.holdable() };
        if fits || state.owing {
            state.held = held;
            return true;
        }
        false
    }

    /// Whether a block of up to `bytes` could grow by all of them, and half of the room would be
    /// left: then it need not be known what is stored of it.
    pub fn is_plentiful(&self, bytes: u64) -> bool {
        let strip = self.strip(bytes);
        let state = self.state.lock();
        let room = state.holdable().saturating_sub(state.reserve.max(state.flying));
        state.held.bytes + strip <= room / 2
    }

    /// Finds room for a block that is about to be sent, if it overwrites; `None` if there is none
    /// now. With `alone` there is if nothing else flies: the reserve has room for one once all is
    /// settled.
    pub fn take_off(&self, held: Held, alone: bool) -> Option<Flight<'_>> {
        if !held.overwrites {
            return Some(Flight { room: self, held });
        }
        let strip = self.strip(held.bytes);
        let mut state = self.state.lock();
        // In a turn somebody looks for room to grow: beside the reserve nothing takes any.
        let kept = if state.turn.is_some() { state.reserve } else { 0 };
        let taken = state.held.growth() + state.flying + strip + kept;
        if taken <= state.holdable() || alone && state.flying == 0 {
            state.flying += strip;
            return Some(Flight { room: self, held });
        }
        None
    }

    /// The same; asks the NSDs again if there is none.
    ///
    /// # Errors
    /// `NoSpace`; it holds `old` then.
    pub fn hold(&self, old: Held, new: Held) -> Result<()> {
        if self.try_hold(old, new) {
            return Ok(());
        }
        self.refresh();
        if self.try_hold(old, new) { Ok(()) } else { Err(ErrorKind::NoSpace.into()) }
    }

    /// Gives back what was held for data that was dropped.
    pub fn release(&self, held: Held) {
        let mut state = self.state.lock();
        state.held = state.held.minus(self.strips(held));
    }

    /// Holds room for data that was on the NSDs, and is dirty again.
    pub fn owe(&self, held: Held) {
        let mut state = self.state.lock();
        state.held = state.held.plus(self.strips(held));
    }

    /// While `owing`, [`Room::hold`] refuses nothing.
    pub fn set_owing(&self, owing: bool) {
        self.state.lock().owing = owing;
    }

    /// What was held is on the NSDs.
    fn sent(&self, held: Held) {
        self.release(held);
        let bytes = self.strip(held.bytes);
        let mut state = self.state.lock();
        state.sent += bytes;
        state.free = state.free.saturating_sub(bytes);
    }

    /// Whether `bytes` more would fit.
    pub fn would_fit(&self, bytes: u64) -> bool {
        // Spread over all NSDs, as so much will be.
        let on_all = u128::from(bytes) * self.code.width() as u128 / u128::from(self.code.data);
        let fits = || {
            let state = self.state.lock();
            let needed = state.held.growth() + state.reserve;
            on_all <= u128::from(state.free.saturating_sub(needed)) * u128::from(self.slots)
        };
        fits() || {
            self.refresh();
            fits()
        }
    }

    /// Held by all blocks.
    pub fn held(&self) -> Held {
        self.state.lock().held
    }

    /// Total and free bytes for data, as the NSDs tell, without what data never takes and the
    /// reserve.
    pub fn usable(&self) -> (u64, u64) {
        self.refresh();
        let (total, free) = self.io.nsds().space();
        let state = self.state.lock();
        let data = |raw: u64| {
            (u128::from(raw) * u128::from(self.code.data) / self.code.width() as u128) as u64
        };
        let kept = (state.reserve + MARGIN_PER_SLOT) * self.slots;
        let (total, free) = (total.saturating_sub(kept), free.saturating_sub(kept));
        let growth = state.held.growth() * u64::from(self.code.data);
        (data(total), data(free).saturating_sub(growth))
    }

    /// Takes a turn in which nobody else finds room; `None` if it takes longer than `limit` until
    /// those of others have ended.
    pub fn take_turn(&self, limit: Duration) -> Option<Turn<'_>> {
        let _alone = self.turns.try_lock_for(limit)?;
        self.state.lock().turn = Some(strake_env::thread::current().id());
        Some(Turn { room: self, _alone })
    }

    /// Begins to make durable all that was sent, so that what it replaced is freed. False if there
    /// is nothing that could be. In the caller's turn.
    pub fn begin_freeing(&self) -> bool {
        let mut state = self.state.lock();
        if state.held.bytes == 0 && state.sent == state.freed {
            return false;
        }
        state.freed = state.sent;
        true
    }
}

/// A block on its way to the NSDs, and the room that it needs there.
pub struct Flight<'a> {
    room: &'a Room,
    held: Held,
}

impl Flight<'_> {
    /// The block is on the NSDs; what was held for it is not held any more.
    pub fn sent(self) {
        self.room.sent(self.held);
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if self.held.overwrites {
            self.room.state.lock().flying -= self.room.strip(self.held.bytes);
        }
    }
}

/// While it lives nobody else finds room.
pub struct Turn<'a> {
    room: &'a Room,
    _alone: MutexGuard<'a, ()>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.room.state.lock().turn = None;
    }
}
