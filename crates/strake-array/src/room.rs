//! Whether what is written will have room: `write` answers ENOSPC, never a later flush.
//!
//! A dirty block *claims* room ([`Claim`]) until it is on the NSDs. Claims are counted as if all of
//! them had to fit on the fullest NSD, so a block that was accepted from an application never finds
//! an NSD full. If the last known free space does not suffice, the NSDs are asked again. If that
//! does not suffice either, the client makes everything durable (`make_room.rs` of the client).
//! After that nothing is claimed, and everything that was replaced is free.
//!
//! **What replaces something.** Every write goes to new space, also where a block is already
//! stored. The old space is freed once the new version is durable. A *reserve* is therefore kept
//! from every write that makes the file system fuller, so that a full file system can still be
//! written anew. Writes that only replace something use the reserve one after the other.
//!
//! **Overwriting.** A block that is overwritten within its stored length does not make the file
//! system fuller. What it replaces is freed two rounds after it was sent ([`crate::round`]). Such a
//! block claims nothing while it is dirty ([`Claim::overwrites`]). It takes room when it is sent
//! ([`Room::take_off`]): up to what the claims of others leave, and at least the reserve. A sender
//! that finds no room has the rounds run, which free what earlier sends replaced.
//!
//! **After a crash** the next start writes blocks anew whose versions are unequal. It does so one
//! after the other if need be, so it needs room for one strip of a whole block. That much of the
//! reserve is left alone as long as some of what was sent may be unsettled.
//!
//! **Beside other mounts**, free space is what the NSDs *grant* this mount, and the mount's reserve
//! is its floor: `room/asking.rs` has the messages. There, all claims together with one overwritten
//! block fit into the grant. So whatever is dirty can be sent, in any order and whatever others do.

mod asking;

use crate::stripe_io::StripeIo;
use asking::Asked;
use std::sync::Arc;
use std::time::Duration;
use strake_env::sync::{Mutex, WatchedMutex, WatchedMutexGuard};
use strake_env::thread::ThreadId;
use strake_proto::limits::{SHORT_BLOCK_BYTES_MAX, UNIT_BYTES};
use strake_proto::{Code, ErrorKind, Geometry, Result};

/// Data never takes the last so many raw bytes of an NSD. They are room for its other records.
const MARGIN_PER_SLOT: u64 = 1 << 20;
/// The reserve of an NSD is one part in so many of its space.
const RESERVE_PART: u64 = 32;
/// The reserve has room for at least so many strips of a whole block.
const RESERVE_STRIPS: u64 = 2;
/// On a small NSD the reserve is at most one part in so many, even if it holds fewer strips then.
const RESERVE_PART_MAX: u64 = 8;
/// On a large NSD the reserve is at most so many bytes.
const RESERVE_MAX: u64 = 256 << 20;

/// A strip of more units takes more on an NSD, for its checksums.
const UNITS_WITHOUT_TRAILER: u64 = 16;
/// The bytes of checksums before the first of them.
const TRAILER_HEADER_BYTES: u64 = 64;

/// An NSD keeps space for the metadata only while at least one part in so many is free.
const LEFT_PART: u64 = 8;

/// The room that a dirty block claims until it is sent. Callers count bytes of data. Within
/// [`Room`] a claim counts bytes of strips on one NSD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    pub bytes: u64,
    /// The part of `bytes` that does not make the file system fuller: as much is freed once the
    /// block is durable.
    pub replaces: u64,
    /// The block replaces a settled version of the same length. It claims nothing before it is
    /// sent. From then on it takes room until the rounds have settled it.
    pub overwrites: bool,
}

impl Claim {
    fn growth(self) -> u64 {
        self.bytes - self.replaces
    }

    fn plus(self, other: Claim) -> Claim {
        let (bytes, replaces) = (self.bytes + other.bytes, self.replaces + other.replaces);
        Claim { bytes, replaces, overwrites: false }
    }

    fn minus(self, other: Claim) -> Claim {
        let (bytes, replaces) = (self.bytes - other.bytes, self.replaces - other.replaces);
        Claim { bytes, replaces, overwrites: false }
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
    /// The claims of all blocks together, without those that overwrite.
    claimed: Claim,
    /// Bytes of strips that overwrite and are being sent. They are neither claimed nor taken off
    /// `free` yet.
    flying: u64,
    /// Bytes of strips sent so far.
    sent: u64,
    /// Of `sent`, the bytes that are durable: what they replaced is free.
    freed: u64,
    /// Of `sent`, the bytes that `free` certainly takes into account.
    told: u64,
    /// Bytes of the reserve that are left for the start after a crash.
    kept: u64,
    /// The thread whose turn it is. No other thread finds room.
    turn: Option<ThreadId>,
    /// Nothing is refused, because what is written was acknowledged before a crash.
    owing: bool,
    /// Beside other mounts: the bytes of a strip of a whole block. 0 for a single mount.
    shared_strip: u64,
}

impl State {
    /// The most that may be claimed. An NSD may keep half of its free space for the metadata, as
    /// long as a part of the whole is left (`keep_more` of its allocator).
    fn claimable(&self) -> u64 {
        if self.shared_strip > 0 {
            // The metadata gets nothing of what is granted. One block can always be overwritten.
            return self.free.saturating_sub(self.flying.max(self.shared_strip));
        }
        let left = (self.free / 2).max(self.total / LEFT_PART);
        self.free.saturating_sub(self.kept).min(left)
    }

    /// Whether so much may be claimed. The reserve is kept for what overwrites. Overwriting strips
    /// in flight beyond the reserve take room until the rounds have settled them.
    fn fits(&self, claim: Claim) -> bool {
        claim.bytes <= self.claimable()
            && claim.growth() + self.reserve.max(self.flying) <= self.free
    }
}

strake_env::lock_names! {
    /// Held by the thread whose turn it is, while it makes what is dirty durable.
    Turns = "turn to find space";
    /// Held across the calls of all NSDs.
    Asking = "ask for space";
}

/// See the file's head.
pub struct Room {
    io: Arc<StripeIo>,
    code: Code,
    block_size: u64,
    state: Mutex<State>,
    /// Held by the thread whose turn it is.
    turns: WatchedMutex<Turns>,
    /// Held by the thread that asks the NSDs for space.
    asked: WatchedMutex<Asking, Asked>,
}

impl Room {
    /// Asks the NSDs how much room there is. Beside other mounts, has some of it granted.
    pub fn new(code: Code, block_size: u32, io: &Arc<StripeIo>) -> Room {
        let room = Room {
            io: Arc::clone(io),
            code,
            block_size: block_size.into(),
            state: Mutex::default(),
            turns: WatchedMutex::default(),
            asked: WatchedMutex::default(),
        };
        room.learn(0);
        room.ask_ahead();
        room
    }

    /// The NSDs that [`crate::nsds::NsdSet::space`] counts.
    fn slots(&self) -> u64 {
        self.io.nsds().live_count().max(1)
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
        // The checksums of a long strip stand behind it.
        let checksums = TRAILER_HEADER_BYTES + strip / unit * 4;
        strip
            + if strip > UNITS_WITHOUT_TRAILER * unit {
                checksums.next_multiple_of(unit)
            } else {
                0
            }
    }

    /// What a block claims of one NSD.
    fn strips(&self, of_data: Claim) -> Claim {
        if of_data.overwrites {
            return Claim::default();
        }
        let bytes = self.strip(of_data.bytes);
        let strips = if of_data.bytes > SHORT_BLOCK_BYTES_MAX { self.code.data.into() } else { 1 };
        let growth = of_data.growth().div_ceil(strips).next_multiple_of(UNIT_BYTES as u64);
        let replaces = if of_data.replaces == 0 { 0 } else { bytes.saturating_sub(growth) };
        Claim { bytes, replaces, overwrites: false }
    }

    /// Asks the NSDs again.
    pub fn refresh(&self) {
        if self.io.nsds().holdings().is_some() { self.ask_ahead() } else { self.ask_space() }
    }

    /// Asks the NSDs how much is free.
    fn ask_space(&self) {
        let sent = self.state.lock().sent;
        self.io.nsds().refresh_space();
        self.learn(sent);
    }

    /// Takes over what the NSDs told last. Their numbers may lack what was sent after the first
    /// `sent` bytes.
    fn learn(&self, sent: u64) {
        let (total, free) = self.io.nsds().space();
        let (total, free) = (total / self.slots(), free / self.slots());
        let reserve = self.reserve_of(total);
        let mut state = self.state.lock();
        state.total = total;
        if self.io.nsds().holdings().is_some() {
            let strip = self.strip(self.block_size);
            state.shared_strip = strip;
            state.reserve = (RESERVE_STRIPS * strip).min(total / RESERVE_PART_MAX).max(strip);
            return;
        }
        state.reserve = reserve;
        // A reserve of fewer strips is used up: what it is for comes first.
        let strip = self.strip(self.block_size);
        state.kept = if reserve >= RESERVE_STRIPS * strip { strip } else { 0 };
        state.told = sent;
        let since = state.sent - sent;
        state.free = free.saturating_sub(MARGIN_PER_SLOT + since);
    }

    /// What nothing may use that makes the file system fuller, of an NSD with so many bytes.
    fn reserve_of(&self, total: u64) -> u64 {
        let least = RESERVE_STRIPS * self.strip(self.block_size);
        let reserve = (total / RESERVE_PART).min(RESERVE_MAX).max(least);
        reserve.min(total / RESERVE_PART_MAX)
    }

    /// Changes a block's claim from `old` to `new`, if there is room as far as is known.
    pub fn try_claim(&self, old: Claim, new: Claim) -> bool {
        let (old, new) = (self.strips(old), self.strips(new));
        let mut state = self.state.lock();
        self.look(&mut state);
        let claimed = state.claimed.minus(old).plus(new);
        let grows = new.growth() > old.growth();
        let is_less = new.bytes <= old.bytes && !grows;
        let waits = state.turn.is_some_and(|thread| thread != strake_env::thread::current().id());
        let fits = is_less
            || !waits
                && if grows { state.fits(claimed) } else { claimed.bytes <= state.claimable() };
        if fits || state.owing {
            state.claimed = claimed;
            return true;
        }
        false
    }

    /// Whether half of the room would be left if a block of `bytes` were wholly new. If so, the
    /// caller need not find out how much of the block is already stored.
    pub fn is_plentiful(&self, bytes: u64) -> bool {
        let strip = self.strip(bytes);
        let mut state = self.state.lock();
        self.look(&mut state);
        let room = state.claimable().saturating_sub(state.reserve.max(state.flying));
        state.claimed.bytes + strip <= room / 2
    }

    /// Takes room for a block that is about to be sent, if it overwrites. `None` if there is none
    /// now. With `alone` there is always room if nothing else was sent since the rounds ran: the
    /// reserve has room for one block once everything is settled. A block that is sent as a
    /// patch of so many `patched` bytes on an NSD leaves the reserve alone: an NSD does not free
    /// what a patch replaces as soon as it is settled. Beside others, the NSDs are asked for it.
    pub fn take_off(&self, claim: Claim, patched: Option<u64>, alone: bool) -> Option<Flight<'_>> {
        let flight = self.try_take_off(claim, patched, alone);
        let (None, Some(bytes)) = (&flight, patched) else { return flight };
        let mut asked = self.begin_asking()?;
        // Another thread may have asked while this one waited for its turn to ask.
        let flight = self.try_take_off(claim, patched, alone);
        if flight.is_some() || !self.ask_to_patch(&mut asked, bytes) {
            return flight;
        }
        let flight = self.try_take_off(claim, patched, alone);
        if flight.is_some() {
            asked.in_vain = 0;
        }
        flight
    }

    fn try_take_off(&self, claim: Claim, patched: Option<u64>, alone: bool) -> Option<Flight<'_>> {
        let strip = patched.unwrap_or_else(|| self.strip(claim.bytes));
        if !claim.overwrites {
            return Some(Flight { room: self, claim, strip });
        }
        let mut state = self.state.lock();
        self.look(&mut state);
        // The thread whose turn it is looks for room to grow, so the reserve is left alone.
        let kept = if patched.is_some() || state.turn.is_some() { state.reserve } else { 0 };
        let is_first = state.flying == 0 && (state.kept == 0 || state.sent == state.told);
        let alone = alone && patched.is_none() && is_first;
        let fits = if state.shared_strip > 0 {
            // All that is claimed has its room, whatever it replaces.
            let taken = state.claimed.bytes + state.flying + strip;
            taken + if alone { 0 } else { kept } <= state.free
        } else {
            let taken = state.claimed.growth() + state.flying + strip + kept;
            taken <= state.claimable() || alone
        };
        if fits {
            state.flying += strip;
            return Some(Flight { room: self, claim, strip });
        }
        None
    }

    /// Like [`Room::try_claim`], but asks the NSDs again if there is no room.
    ///
    /// # Errors
    /// `NoSpace`. The claim is `old` then.
    pub fn claim(&self, old: Claim, new: Claim) -> Result<()> {
        if self.try_claim(old, new) {
            return Ok(());
        }
        if let Some(mut asked) = self.begin_asking() {
            // Another thread may have asked while this one waited for its turn to ask.
            if self.try_claim(old, new) {
                return Ok(());
            }
            self.ask_for(&mut asked, old, new);
        } else {
            self.refresh();
        }
        if self.try_claim(old, new) { Ok(()) } else { Err(ErrorKind::NoSpace.into()) }
    }

    /// Gives back the claim of data that was dropped.
    pub fn release(&self, claim: Claim) {
        let mut state = self.state.lock();
        state.claimed = state.claimed.minus(self.strips(claim));
    }

    /// Claims room for data that was on the NSDs and is dirty again, whether there is room or not.
    pub fn owe(&self, claim: Claim) {
        let mut state = self.state.lock();
        state.claimed = state.claimed.plus(self.strips(claim));
    }

    /// While `owing`, [`Room::claim`] refuses nothing.
    pub fn set_owing(&self, owing: bool) {
        self.state.lock().owing = owing;
    }

    /// Notes that what was claimed is on the NSDs, of which each got so many bytes.
    fn sent(&self, claim: Claim, bytes: u64) {
        let strips = self.strips(claim);
        let mut state = self.state.lock();
        state.claimed = state.claimed.minus(strips);
        state.sent += bytes;
        state.free = state.free.saturating_sub(bytes);
        if let Some(holdings) = self.io.nsds().holdings() {
            holdings.note_sent(state.sent);
        }
    }

    /// Whether `bytes` more would fit.
    pub fn would_fit(&self, bytes: u64) -> bool {
        // So many bytes are spread over all NSDs.
        let on_all = u128::from(bytes) * self.code.width() as u128 / u128::from(self.code.data);
        let fits = || {
            let mut state = self.state.lock();
            if state.shared_strip > 0 {
                // What others do not need can be had.
                let (total, free) = self.io.nsds().space();
                let kept = self.reserve_of(total / self.slots()) + MARGIN_PER_SLOT;
                state.free = (free / self.slots()).saturating_sub(kept);
            }
            let needed = state.claimed.growth() + state.reserve;
            on_all <= u128::from(state.free.saturating_sub(needed)) * u128::from(self.slots())
        };
        fits() || {
            self.ask_space();
            fits()
        }
    }

    /// How many whole blocks the NSDs have room for, even if one NSD gets a strip of each. This is
    /// all that is free, the reserve too.
    pub fn whole_blocks_free(&self) -> u64 {
        self.io.nsds().refresh_space();
        let (_, free) = self.io.nsds().space();
        free / self.slots() / self.strip(self.block_size)
    }

    /// The claims of all blocks together.
    pub fn claimed(&self) -> Claim {
        self.state.lock().claimed
    }

    /// Total and free bytes for data: what the NSDs tell, less the reserve, the margin that data
    /// never takes, and what is claimed.
    pub fn usable(&self) -> (u64, u64) {
        self.ask_space();
        let (total, free) = self.io.nsds().space();
        let state = self.state.lock();
        let data = |raw: u64| {
            (u128::from(raw) * u128::from(self.code.data) / self.code.width() as u128) as u64
        };
        let kept = (self.reserve_of(total / self.slots()) + MARGIN_PER_SLOT) * self.slots();
        let (total, free) = (total.saturating_sub(kept), free.saturating_sub(kept));
        let growth = state.claimed.growth() * u64::from(self.code.data);
        (data(total), data(free).saturating_sub(growth))
    }

    /// Takes a turn, in which no other thread finds room. `None` if the turns of others have not
    /// ended within `limit`.
    pub fn take_turn(&self, limit: Duration) -> Option<Turn<'_>> {
        let _alone = self.turns.try_lock_for(limit)?;
        self.state.lock().turn = Some(strake_env::thread::current().id());
        Some(Turn { room: self, _alone })
    }

    /// Notes that the caller is about to make everything sent durable, which frees what it
    /// replaced. False if nothing can be freed. Called in the caller's turn.
    pub fn begin_freeing(&self) -> bool {
        let mut state = self.state.lock();
        if state.claimed.bytes == 0 && state.sent == state.freed {
            return false;
        }
        state.freed = state.sent;
        true
    }
}

/// A block on its way to the NSDs, and the room that it needs there.
pub struct Flight<'a> {
    room: &'a Room,
    claim: Claim,
    /// Bytes for one NSD.
    strip: u64,
}

impl Flight<'_> {
    /// Notes that the block is on the NSDs: its claim ends.
    pub fn sent(self) {
        self.room.sent(self.claim, self.strip);
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if self.claim.overwrites {
            self.room.state.lock().flying -= self.strip;
        }
    }
}

/// While a turn lives, no other thread finds room.
pub struct Turn<'a> {
    room: &'a Room,
    _alone: WatchedMutexGuard<'a, ()>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.room.state.lock().turn = None;
    }
}
