//! The slots of the pool as one client knows them. Slots are only ever added: the metadata has
//! given NSDs new ones.
//!
//! A pool map is taken in after its slots are known ([`NsdSet::take_pool`]), so whoever finds a
//! layout in the map finds its slots, too. A new slot has no way to its NSD at first. It is looked
//! for before the first strip is placed there, and else by whoever looks after the NSDs.

use super::{NsdSet, NsdSlot};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use strake_proto::layout::{LayoutMap, Slot};
use strake_proto::limits::SLOTS_MAX;
use strake_proto::meta::{Configuration, MetaOp};
use strake_proto::nsd::NsdPort;
use strake_proto::{Error, ErrorKind, NsdId, Result, SlotIndex};
use tracing::info;

/// For a new NSD to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
const ANSWER_LOOK: Duration = Duration::from_millis(50);

/// See the file's head.
pub(super) struct Slots {
    entries: Box<[OnceLock<Box<NsdSlot>>]>,
    count: AtomicUsize,
}

impl Slots {
    pub(super) fn new(slots: &[Slot], now: Duration) -> Slots {
        let most = slots.len().max(SLOTS_MAX);
        let entries = (0..most).map(|_| OnceLock::new()).collect();
        let made = Slots { entries, count: AtomicUsize::new(0) };
        made.grow(slots, now);
        made
    }

    /// Adds those of `slots` that are beyond the known ones. Called by one thread at a time.
    fn grow(&self, slots: &[Slot], now: Duration) {
        for (entry, slot) in self.entries.iter().zip(slots).skip(self.len()) {
            entry.get_or_init(|| Box::new(NsdSlot::new(slot, now)));
        }
        self.count.fetch_max(slots.len().min(self.entries.len()), Ordering::AcqRel);
    }

    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(super) fn get(&self, slot: SlotIndex) -> Option<&NsdSlot> {
        self.entries.get(usize::from(slot.0))?.get().map(|entry| &**entry)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &NsdSlot> {
        self.entries[..self.len()].iter().filter_map(OnceLock::get).map(|entry| &**entry)
    }
}

impl NsdSet {
    /// Takes in a pool map, unless a newer one is known.
    pub(super) fn take_pool(&self, configuration: Configuration) {
        let mut pool = self.pool.write();
        if pool.version > configuration.pool.version {
            return;
        }
        let before = self.slots.len();
        self.slots.grow(&configuration.pool.slots, self.clock.monotonic());
        self.map.store(configuration.pool.version.0, Ordering::Relaxed);
        *pool = configuration.pool;
        drop(pool);
        for slot in (before..self.slots.len()).map(|at| SlotIndex(at as u16)) {
            if self.is_noted(slot) {
                self.missed().distrust(slot);
            }
            info!(target: "disks", "NSD {} is new", self.nsd(slot));
        }
    }

    /// Looks for the NSDs of a layout that this client has not met. One that it does not find
    /// counts as down.
    ///
    /// # Errors
    /// `Io` if the layout has a slot beyond those of the pool map.
    pub(super) fn meet(&self, layout: &LayoutMap) -> Result<()> {
        for (slot, _) in &layout.members {
            let entry = self.slots.get(*slot).ok_or_else(|| {
                let detail =
                    format!("layout {} has slot {slot}, which is not there", layout.version);
                Error::new(ErrorKind::Io, detail)
            })?;
            // One that was known at the start, and is away, is looked for by others.
            let has_way = || entry.route.read().port.is_some();
            if !has_way() && !self.deleted.read().contains(slot) {
                self.find_again(*slot);
                if has_way() {
                    self.probe(*slot);
                }
            }
        }
        Ok(())
    }

    /// Gives an empty NSD a slot of its own. New files are placed on it, too, from then on. If it
    /// has one already, nothing changes. The change is durable when this returns.
    ///
    /// # Errors
    /// `Unreachable` if it does not answer; the metadata's.
    pub fn add(&self, nsd: NsdId, failure_group: u32, port: Arc<dyn NsdPort>) -> Result<()> {
        *self.coming.lock() = Some((nsd, port));
        let added = self.change_pool(MetaOp::AddNsd { nsd, failure_group });
        if added.is_ok()
            && let Some(slot) = self.slot_of(nsd)
        {
            self.wait_for_answer(slot);
        }
        *self.coming.lock() = None;
        added
    }

    /// A server may begin to serve a new NSD a moment later, and what an administrator does next
    /// may need the NSD, such as the deletion of another one. An NSD that stays silent counts as
    /// down.
    fn wait_for_answer(&self, slot: SlotIndex) {
        let end = self.clock.monotonic() + ANSWER_MAX;
        let name = || self.nsd(slot).to_string();
        let waiters = self.observe.as_ref().map(|observe| &observe.waiters);
        let _wait = waiters.map(|waiters| waiters.enter("answer of a new NSD", name()));
        self.find_again(slot);
        while !self.probe(slot) && self.clock.monotonic() < end {
            self.clock.sleep(ANSWER_LOOK);
        }
    }
}

#[cfg(test)]
#[path = "slots_test.rs"]
mod slots_test;
