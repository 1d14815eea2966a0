//! Which of an NSD's free space is granted to which client (R29, decision 0038). Pure: no clock,
//! lock, disk or socket. `store/grants.rs` asks here, under the lock of the allocator.
//!
//! A client accepts bytes from applications only within what every NSD grants it. So what it sends
//! later finds space, and no write needs a message. All sizes are units.
//!
//! For each client:
//! - *granted*: what it may still write. A write takes it off, also one that replaces something:
//!   what it replaces becomes free for everybody.
//! - *target*: what it was granted last. A commit tops `granted` up to it, while there is enough.
//! - *floor*: how much of the target is always given back to it, if need be, as soon as what it
//!   replaced is free. With its floor a client can write a full file system anew.
//! - *need*: what it said it needs. The rest, it may give back.
//!
//! **Safety.** The sum of all `granted` is at most the free space. A client has what it was granted
//! whatever others do: nobody writes beyond an own grant into what others were granted.
//!
//! **Liveness.** Nobody is granted what another client's floor lacks. Some space is kept from all
//! growth: the *pool*, from which a client that comes when all is full gets its floor; and a
//! *margin* for versions that no client counts, as those of repair.
//!
//! **A restart.** Each entry of the journal brings with it what has changed here, so what a restart
//! finds fits the writes that it finds: if a write is gone, its space is granted again. There,
//! space that was allocated for a write counts as granted until the write has its entry
//! ([`Grants::land`]). What a client is told is durable before. So it never believes more than what
//! a restart finds.

use std::collections::{BTreeMap, BTreeSet};
use strake_proto::{ClientId, Epoch};
use thiserror::Error;

/// At most this many clients can hold grants: as many as a manager's list may have.
const CLIENTS_MAX: usize = crate::admission::CLIENTS_MAX;
/// The pool and the floors together are one part in so many of the space.
const POOL_PART: u64 = 32;
/// On a large NSD the pool is at most so many units: 256 MiB.
const POOL_MAX: u64 = 1 << 16;
/// On a small NSD the pool is at most one part in so many, even if one floor is larger.
const POOL_PART_MAX: u64 = 8;
/// The margin: 1 MiB.
const MARGIN: u64 = 1 << 8;
/// On a small NSD the margin is at most one part in so many.
const MARGIN_PART_MAX: u64 = 64;
/// With less free than one part in so many, the NSD is short of space.
const SHORT_PART: u64 = 8;
/// No grant, and no need that is told, has more units: 2^48 bytes.
pub const GRANT_MAX: u64 = 1 << 36;
/// Beyond its need, a client gets one part in so many of what nobody holds.
const AHEAD_PART: u64 = 8;

/// A client's life.
pub type Holder = (ClientId, Epoch);

/// The space of an NSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supply {
    /// Free units, granted or not. Units that the next commit frees count.
    pub free: u64,
    /// Units for data, used or free.
    pub total: u64,
}

/// What a client asks for; see [`strake_proto::nsd::SpaceAsk`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Its number.
    pub number: u64,
    /// See the file's head.
    pub floor: u64,
    /// See the file's head.
    pub need: u64,
    /// More that would be of use.
    pub ahead: u64,
}

/// What a client holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// The number of its last ask.
    pub number: u64,
    /// See the file's head.
    pub floor: u64,
    /// See the file's head.
    pub need: u64,
    /// See the file's head.
    pub target: u64,
    /// See the file's head.
    pub granted: u64,
    /// What was taken off `granted` for writes that have no entry in the journal yet.
    pub flying: u64,
}

impl Grant {
    /// As the journal has it.
    fn to_keep(self) -> Grant {
        let granted = self.granted + self.flying;
        Grant { granted, flying: 0, target: self.target.max(granted), ..self }
    }

    /// What must be given to the client before anybody grows into it.
    fn lacking(&self) -> u64 {
        (self.target - self.granted).min(self.floor)
    }

    fn beyond_need(&self) -> u64 {
        self.granted.saturating_sub(self.need)
    }
}

/// An answer; see [`strake_proto::nsd::SpaceGrant`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// What the client may write now.
    pub granted: u64,
    /// What it is topped up to.
    pub target: u64,
    /// Whether the NSD is short of space.
    pub is_short: bool,
    /// What others hold beyond their needs.
    pub elsewhere: u64,
}

/// There are too many clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("more than {CLIENTS_MAX} clients hold grants of space")]
pub struct TooMany;

/// Sums over all clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    granted: u64,
    lacking: u64,
    floors: u64,
    beyond_need: u64,
    floor_max: u64,
}

impl Sums {
    fn add(&mut self, grant: &Grant) {
        self.granted += grant.granted;
        self.lacking += grant.lacking();
        self.floors += grant.floor;
        self.beyond_need += grant.beyond_need();
    }

    fn take_off(&mut self, grant: &Grant) {
        self.granted -= grant.granted;
        self.lacking -= grant.lacking();
        self.floors -= grant.floor;
        self.beyond_need -= grant.beyond_need();
    }
}

/// See the file's head.
#[derive(Clone, Debug, Default)]
pub struct Grants {
    clients: BTreeMap<Holder, Grant>,
    sums: Sums,
    /// The clients whose grants have changed since [`Grants::take_changes`].
    changed: BTreeSet<Holder>,
}

impl Grants {
    /// True if nobody holds anything. A single mount never asks.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// The sum of all that is granted.
    pub fn granted(&self) -> u64 {
        self.sums.granted
    }

    /// What a client holds.
    pub fn of(&self, holder: Holder) -> Option<&Grant> {
        self.clients.get(&holder)
    }

    /// The units by which the floors of clients exceed the pool. They cannot be filled.
    pub fn beyond_pool(&self, total: u64) -> u64 {
        self.sums.floors.saturating_sub(self.pool(total))
    }

    /// Puts back what a client held, as the journal had it.
    ///
    /// # Errors
    /// [`TooMany`].
    pub fn restore(&mut self, holder: Holder, grant: Grant) -> Result<(), TooMany> {
        self.put(holder, grant)
    }

    /// What has changed since the last call, as it goes into the journal. `None` for a client that
    /// holds nothing any more.
    pub fn take_changes(&mut self) -> Vec<(Holder, Option<Grant>)> {
        let changed = std::mem::take(&mut self.changed);
        let grant = |holder: &Holder| self.clients.get(holder).map(|held| held.to_keep());
        changed.into_iter().map(|holder| (holder, grant(&holder))).collect()
    }

    /// Notes that these changes did not get into the journal.
    pub fn return_changes(&mut self, changes: &[(Holder, Option<Grant>)]) {
        self.changed.extend(changes.iter().map(|(holder, _)| *holder));
    }

    /// Notes that a write that took so many units gets its entry in the journal. Returns how many
    /// of them were flying.
    pub fn land(&mut self, holder: Option<Holder>, units: u64) -> u64 {
        let mut landed = 0;
        self.change(holder, |held| {
            landed = units.min(held.flying);
            held.flying -= landed;
        });
        landed
    }

    /// Notes that the entry did not get into the journal.
    pub fn fly_on(&mut self, holder: Option<Holder>, landed: u64) {
        self.change(holder, |held| held.flying += landed);
    }

    /// Takes what a client asks for as what it has to say now, and grants what can be granted. What
    /// it holds and does not ask for is given back.
    ///
    /// # Errors
    /// [`TooMany`]. Nothing has changed then.
    pub fn ask(&mut self, holder: Holder, ask: Ask, supply: Supply) -> Result<Answer, TooMany> {
        let held = self.clients.get(&holder).copied().unwrap_or_default();
        if ask.number <= held.number {
            return Ok(self.answer(holder, supply));
        }
        if (ask.floor, ask.need, ask.ahead) == (0, 0, 0) {
            self.remove(holder);
            return Ok(self.answer(holder, supply));
        }
        let need = ask.need.min(GRANT_MAX / 2);
        let floor = ask.floor.min(need).min(supply.total / POOL_PART_MAX);
        let asked = Grant { number: ask.number, floor, need, ..held };
        self.put(holder, asked)?;
        let common = self.common(supply);
        let wanted = need + ask.ahead.min(GRANT_MAX / 2).min(common / AHEAD_PART);
        let more = wanted.saturating_sub(held.granted);
        let gift = more.min(self.spare(supply.free)).min(held.lacking() + common);
        let granted = held.granted.min(wanted) + gift;
        let target = granted.max(held.target.min(wanted));
        self.put(holder, Grant { granted, target, ..asked })?;
        Ok(self.answer(holder, supply))
    }

    /// Gives a client back what it used, up to its target. While the NSD is short of space the
    /// client gets only what its floor lacks, and asks for the rest. Called when a commit has freed
    /// what was replaced.
    pub fn top_up(&mut self, holder: Holder, supply: Supply) -> Answer {
        if let Some(held) = self.clients.get(&holder).copied() {
            let common = if self.is_short(supply) { 0 } else { self.common(supply) };
            let more = held.target - held.granted;
            let gift = more.min(self.spare(supply.free)).min(held.lacking() + common);
            let put = self.put(holder, Grant { granted: held.granted + gift, ..held });
            put.expect("invariant: the client is there");
        }
        self.answer(holder, supply)
    }

    /// Whether a client, or a sender without a grant (`None`), may take so many free units: its own
    /// grant first, then what nobody holds and no other floor lacks.
    /// `free` is as in [`Supply`].
    pub fn may_take(&self, holder: Option<Holder>, units: u64, free: u64) -> bool {
        let held = holder.and_then(|holder| self.clients.get(&holder));
        let (own, lacking) = held.map_or((0, 0), |held| (held.granted, held.lacking()));
        let others_lack = self.sums.lacking - lacking;
        units.saturating_sub(own) <= self.spare(free).saturating_sub(others_lack)
    }

    /// Takes off what a client wrote. [`Grants::may_take`] has allowed it.
    pub fn take(&mut self, holder: Option<Holder>, units: u64) {
        self.change(holder, |held| {
            let own = units.min(held.granted);
            held.granted -= own;
            held.flying += own;
        });
    }

    /// Puts back what a client took and did not use. The units are free again.
    pub fn put_back(&mut self, holder: Option<Holder>, units: u64) {
        self.change(holder, |held| {
            let own = units.min(held.flying);
            held.flying -= own;
            held.granted = held.target.min(held.granted + own);
        });
    }

    /// Frees all that a client holds.
    pub fn remove(&mut self, holder: Holder) {
        if let Some(held) = self.clients.remove(&holder) {
            self.sums.take_off(&held);
            self.changed.insert(holder);
            self.find_largest_floor();
        }
    }

    /// Frees what all clients hold but those for which `stays` is true.
    pub fn retain(&mut self, stays: impl Fn(Holder) -> bool) {
        let gone: Vec<Holder> =
            self.clients.keys().copied().filter(|holder| !stays(*holder)).collect();
        gone.into_iter().for_each(|holder| self.remove(holder));
    }

    /// Asserts the invariants: the sums are right, and nobody holds more than its target.
    pub fn check(&self) {
        let mut sums = Sums { floor_max: self.sums.floor_max, ..Sums::default() };
        for held in self.clients.values() {
            assert!(held.granted <= held.target, "more is granted than the target");
            assert!(held.floor <= held.need, "a floor is not part of the need");
            sums.add(held);
        }
        assert_eq!(sums, self.sums, "the sums are not those of the clients");
        let largest = self.clients.values().map(|held| held.floor).max().unwrap_or(0);
        assert_eq!(largest, self.sums.floor_max, "the largest floor is another");
    }

    fn put(&mut self, holder: Holder, grant: Grant) -> Result<(), TooMany> {
        if self.clients.len() >= CLIENTS_MAX && !self.clients.contains_key(&holder) {
            return Err(TooMany);
        }
        let before = self.clients.insert(holder, grant).unwrap_or_default();
        self.sums.take_off(&before);
        self.sums.add(&grant);
        if before != grant {
            self.changed.insert(holder);
        }
        if before.floor != grant.floor {
            self.find_largest_floor();
        }
        Ok(())
    }

    fn change(&mut self, holder: Option<Holder>, change: impl FnOnce(&mut Grant)) {
        if let Some(held) = holder.and_then(|holder| self.clients.get_mut(&holder)) {
            self.sums.take_off(held);
            change(held);
            self.sums.add(held);
            self.changed.extend(holder);
        }
    }

    fn find_largest_floor(&mut self) {
        self.sums.floor_max = self.clients.values().map(|held| held.floor).max().unwrap_or(0);
    }

    fn pool(&self, total: u64) -> u64 {
        let least = (total / POOL_PART).min(POOL_MAX);
        least.max(self.sums.floor_max).min(total / POOL_PART_MAX)
    }

    /// What nobody holds.
    fn spare(&self, free: u64) -> u64 {
        free.saturating_sub(self.sums.granted)
    }

    /// What anybody may grow into.
    fn common(&self, supply: Supply) -> u64 {
        let Supply { free, total } = supply;
        let pool = self.pool(total).saturating_sub(self.sums.floors);
        let margin = MARGIN.min(total / MARGIN_PART_MAX);
        free.saturating_sub(self.sums.granted + self.sums.lacking + pool + margin)
    }

    fn is_short(&self, supply: Supply) -> bool {
        self.common(supply) < supply.total / SHORT_PART
    }

    fn answer(&self, holder: Holder, supply: Supply) -> Answer {
        let held = self.clients.get(&holder).copied().unwrap_or_default();
        Answer {
            granted: held.granted,
            target: held.target,
            is_short: self.is_short(supply),
            elsewhere: self.sums.beyond_need - held.beyond_need(),
        }
    }
}

#[cfg(test)]
#[path = "grants_test.rs"]
mod grants_test;
