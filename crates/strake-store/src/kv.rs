//! An ordered key-value store: changes in memory over a base on disk.
//!
//! ```text
//! active overlay   changes since the last freeze; apply() writes here
//! frozen overlay   changes that a checkpoint is writing to the base right now
//! base             redb in the container, as of the last checkpoint (kv/base.rs, kv/pages.rs)
//! ```
//! The uppermost layer that knows a key gives its value. Nothing here is a log. After a crash the
//! store is as the last checkpoint left it, and the owner applies its journal's later entries
//! again.
//!
//! **Locks.** `layers` is held for memory operations only, never across disk I/O or a caller's
//! function. `checkpointing` serialises checkpoints and owns the base's writer.
//!
//! **Reads during a checkpoint.** The frozen overlay leaves in the same instant in which the base's
//! new snapshot arrives. A reader takes the overlays' changes and then the snapshot in one hold of
//! the lock, so it misses nothing that moves from one to the other.
//!
//! **Views.** [`Kv::view`] is the store as of one moment, for readers that take long. It costs
//! nobody a lock. Its snapshot keeps old pages of the base from being used again, and no view may
//! outlive the opening of the base that it reads. So views can be cut: their reads fail from then
//! on.

mod ahead;
mod base;
mod key;
mod overlay;
mod pages;
mod renew;
mod scan;

use crate::journal::Lsn;
use crate::region::{KvRegion, KvRole};
use base::{Base, Snapshot, Trust};
use key::Key;
use overlay::{Change, Overlay};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use strake_env::sync::{Mutex, RwLock, WatchedMutex, WatchedRwLock};
use strake_proto::{Error, ErrorKind, Result};

use pages::Pages;

pub use pages::Verified;
pub(crate) use pages::{capacity_bytes, clear_chunk};
pub use renew::Renewed;

/// The base's file must be able to grow to this many times the size of its pairs. A page is changed
/// by writing it elsewhere, and the old page is free one checkpoint later.
const SPACE_FACTOR: u64 = 2;
/// While data has plenty of space, space for this many times the present pairs is kept.
const GROWTH_FACTOR: u64 = 2;
/// A checkpoint is due when it would write one part in this many of what the file can become. Two
/// checkpoints do not exceed that space, even if each is late.
const DUE_PART: u64 = 12;
/// For each change, a checkpoint writes at most this much besides the pair: the pair's page, and
/// one more page if the first is split.
const CHANGE_BYTES: u64 = 8 << 10;

/// A set of changes that become visible together.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    changes: Vec<(Key, Change)>,
}

impl Batch {
    /// No changes.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Sets a key. A later change of the same key wins.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl Into<Arc<[u8]>>) {
        self.changes.push((key.as_ref().into(), Some(value.into())));
    }

    /// Removes a key, if it is there.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) {
        self.changes.push((key.as_ref().into(), None));
    }

    /// True if there are no changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The number of changes.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// The changes in order. `None` removes a key.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&Arc<[u8]>>)> {
        self.changes.iter().map(|(key, value)| (key.bytes(), value.as_ref()))
    }
}

/// The questions that a pure state machine may ask of a store.
pub trait KvRead {
    /// The value of a key.
    ///
    /// # Errors
    /// The disk's errors.
    fn get(&self, key: &[u8]) -> Result<Option<Arc<[u8]>>>;

    /// Visits the pairs with `from` ≤ key < `to` in ascending order until `visit` returns false.
    /// Changes applied meanwhile may or may not be seen. `visit` may use the store.
    ///
    /// # Errors
    /// The disk's errors.
    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()>;

    /// Like `scan`, in descending order.
    ///
    /// # Errors
    /// The disk's errors.
    fn scan_back(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()>;
}

/// Figures for listings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvStats {
    /// Keys and values in memory that are not in the base yet.
    pub overlay_bytes: u64,
    /// Checkpoints since opening.
    pub checkpoints: u64,
    /// Bytes of the base on disk.
    pub base_bytes: u64,
}

/// An ordered key-value store.
pub struct Kv {
    layers: RwLock<Layers>,
    /// The base's writer. `None` for a store in memory only.
    checkpointing: WatchedMutex<Checkpointing, Option<Writer>>,
    /// The place of the base. `None` for a store in memory only.
    region: Option<KvRegion>,
    checkpoints: AtomicU64,
    /// The weight of the base's pairs.
    base_weight: AtomicU64,
    /// The most bytes that the base's file could have at the last look.
    length_max: AtomicU64,
    /// How many of these bytes the base promises, or will promise once the present write is done.
    promised: AtomicU64,
    /// Of the views made now. Of a view: its own.
    gate: Mutex<Gate>,
    is_view: bool,
}

/// Views read under it. True once they are cut.
type Gate = Arc<WatchedRwLock<Views, bool>>;

strake_env::lock_names! {
    /// Held while a checkpoint writes the base.
    Checkpointing = "checkpoint of a key-value store";
    /// Held shared by a view across one read of the base.
    Views = "view of a key-value store";
}

struct Layers {
    active: Overlay,
    frozen: Option<Arc<Overlay>>,
    snapshot: Option<Snapshot>,
    /// The base's file.
    pages: Option<Arc<Pages>>,
    /// The last entry in `active`, or in the layers below if `active` is empty.
    applied: Lsn,
    applied_in_base: Lsn,
}

struct Writer {
    region: KvRegion,
    cache_bytes: usize,
    trust: Trust,
    /// Set if the base must never be opened again.
    is_closed: bool,
    /// `None` after the base could not be opened again.
    base: Option<Base>,
}

impl Kv {
    /// Opens the store of a region at its last checkpoint. `cache_bytes` bounds its page cache.
    ///
    /// # Errors
    /// The disk's errors. `Corrupt`. `NoSpace` if the first chunk cannot be claimed.
    pub fn open(region: KvRegion, cache_bytes: usize) -> Result<Kv> {
        let trust = Trust::default();
        let base = Base::open(region.clone(), cache_bytes, &trust)?;
        let applied = base.applied()?;
        let snapshot = Some(base.snapshot()?);
        let (weight, promised) = (base.weight(), base.promised());
        let writer = Writer { region, cache_bytes, trust, is_closed: false, base: Some(base) };
        let kv = Kv::with(snapshot, applied, Some(writer));
        kv.base_weight.store(weight, Ordering::Release);
        kv.promised.store(promised, Ordering::Release);
        kv.look_for_space();
        Ok(kv)
    }

    /// A store that is in memory only.
    pub fn in_memory() -> Kv {
        Kv::with(None, Lsn(0), None)
    }

    fn with(snapshot: Option<Snapshot>, applied: Lsn, writer: Option<Writer>) -> Kv {
        Kv {
            layers: RwLock::new(Layers {
                active: Overlay::default(),
                frozen: None,
                snapshot,
                pages: writer.as_ref().and_then(Writer::pages),
                applied,
                applied_in_base: applied,
            }),
            region: writer.as_ref().map(|writer| writer.region.clone()),
            checkpointing: WatchedMutex::new(writer),
            checkpoints: AtomicU64::new(0),
            base_weight: AtomicU64::new(0),
            length_max: AtomicU64::new(u64::MAX),
            promised: AtomicU64::new(0),
            gate: Mutex::default(),
            is_view: false,
        }
    }

    /// The store as it is now, to be read. Later changes do not show in it. It copies the changes
    /// since the last checkpoint. `visit` of its scans must not read it.
    pub fn view(&self) -> Kv {
        let layers = self.layers.read();
        let kv = Kv::with(layers.snapshot.clone(), layers.applied, None);
        {
            let mut own = kv.layers.write();
            own.active = layers.active.clone();
            own.frozen.clone_from(&layers.frozen);
        }
        let gate = Mutex::new(Arc::clone(&self.gate.lock()));
        Kv { gate, is_view: true, ..kv }
    }

    /// Has all reads of the views that were made until now fail with `Busy`. Waits for those that
    /// are under way, which are short.
    pub fn cut_views(&self) {
        let gate = std::mem::take(&mut *self.gate.lock());
        *gate.write() = true;
    }

    /// Reads the base with `work`. Fails if this is a view that was cut. A view is not cut
    /// meanwhile, so `work` must not read the view in another way.
    fn uncut<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.is_view {
            return work();
        }
        let gate = Arc::clone(&self.gate.lock());
        let is_cut = gate.read();
        if *is_cut {
            let detail = "the metadata was opened anew, or needs its space: start again";
            return Err(Error::new(ErrorKind::Busy, detail));
        }
        work()
    }

    /// Applies changes in memory. They become visible at once and together. `lsn` is the journal
    /// entry they come from, and never goes back.
    pub fn apply(&self, batch: Batch, lsn: Lsn) {
        let mut layers = self.layers.write();
        for (key, change) in batch.changes {
            if self.region.is_none() && change.is_none() {
                layers.active.forget(key.bytes());
            } else {
                layers.active.set(key, change);
            }
        }
        layers.applied = layers.applied.max(lsn);
    }

    /// Writes all changes applied so far to the base, durably, while readers and appliers go on.
    /// Returns the entry up to which the base now holds everything. The journal must be synced up
    /// to there before this call; otherwise the base would be ahead of it.
    ///
    /// # Errors
    /// `NoSpace` if no chunk is free. Nothing is lost then: the changes stay in memory, and another
    /// try may succeed. The disk's errors.
    pub fn checkpoint(&self) -> Result<Lsn> {
        let mut writer = self.checkpointing.lock();
        let Some(writer) = &mut *writer else {
            let mut layers = self.layers.write();
            layers.applied_in_base = layers.applied;
            return Ok(layers.applied);
        };
        let (frozen, applied) = {
            let mut layers = self.layers.write();
            let is_same = layers.active.is_empty() && layers.applied == layers.applied_in_base;
            if is_same && !self.promises_too_much() {
                return Ok(layers.applied);
            }
            let frozen = Arc::new(std::mem::take(&mut layers.active));
            layers.frozen = Some(frozen.clone());
            (frozen, layers.applied)
        };
        let written = match &writer.base {
            Some(base) => {
                base.write(&frozen, applied, self.promise()).and_then(|()| base.snapshot())
            }
            None => Err(Error::new(ErrorKind::Io, "the key-value store's disk failed")),
        };
        match written {
            Ok(snapshot) => {
                self.note_weight(writer);
                let mut layers = self.layers.write();
                layers.snapshot = Some(snapshot);
                layers.frozen = None;
                layers.applied_in_base = applied;
                self.checkpoints.fetch_add(1, Ordering::Relaxed);
                Ok(applied)
            }
            Err(error) => {
                self.undo_freeze(writer, frozen);
                Err(error)
            }
        }
    }

    fn note_weight(&self, writer: &Writer) {
        if let Some(base) = &writer.base {
            self.base_weight.store(base.weight(), Ordering::Release);
            self.promised.store(base.promised(), Ordering::Release);
        }
        self.look_for_space();
    }

    /// Mends the store after a failed checkpoint. The frozen changes go back below the active ones.
    /// The base refuses everything now, so it is opened anew at what is durable.
    fn undo_freeze(&self, writer: &mut Writer, frozen: Arc<Overlay>) {
        let mut layers = self.layers.write();
        layers.frozen = None;
        self.cut_views();
        let frozen = Arc::try_unwrap(frozen).unwrap_or_else(|shared| Overlay::clone(&shared));
        layers.active.add_older(frozen);
        reopen(writer, &mut layers);
    }

    /// Mends the store after a failed read. redb answers nothing more once one page was unreadable.
    /// After it is opened anew, it answers for all other pages. So one bad page costs only its own
    /// keys.
    fn revive(&self, snapshot: Snapshot) {
        let mut writer = self.checkpointing.lock();
        if let Some(writer) = &mut *writer
            && !self.is_outdated(&snapshot)
        {
            drop(snapshot);
            self.cut_views();
            reopen(writer, &mut self.layers.write());
        }
    }

    /// The entry up to which the base holds everything.
    pub fn applied_in_base(&self) -> Lsn {
        self.layers.read().applied_in_base
    }

    /// Bytes of changes in memory that are not in the base yet. 0 for a store in memory only.
    pub fn overlay_bytes(&self) -> u64 {
        if self.region.is_none() {
            return 0;
        }
        let layers = self.layers.read();
        layers.active.bytes() + layers.frozen.as_ref().map_or(0, |frozen| frozen.bytes())
    }

    /// The most bytes of pages that the whole contents take after a checkpoint.
    pub fn weight(&self) -> u64 {
        let (_, overlay) = self.changes();
        self.base_weight.load(Ordering::Acquire).saturating_add(overlay)
    }

    /// The number of pairs changed since the last checkpoint, and their weight.
    fn changes(&self) -> (u64, u64) {
        let layers = self.layers.read();
        let overlays = [Some(&layers.active), layers.frozen.as_deref()];
        let sum = |of: fn(&Overlay) -> u64| overlays.into_iter().flatten().map(of).sum();
        (sum(|overlay| overlay.len() as u64), sum(Overlay::weight))
    }

    /// The largest weight ([`Kv::weight`]) with which checkpoints are sure to find space after any
    /// changes. `u64::MAX` for a store in memory only.
    pub fn weight_max(&self) -> u64 {
        self.length_max.load(Ordering::Acquire) / SPACE_FACTOR
    }

    /// True if a checkpoint is due: if it had to write much more, it might not find space. `times`
    /// multiplies the threshold.
    pub fn is_due(&self, times: u64) -> bool {
        let due = self.length_max.load(Ordering::Acquire) / DUE_PART;
        let base = self.base_weight.load(Ordering::Acquire);
        // Only pages that exist can be changed, so a small base is never due.
        base > due && {
            let (pairs, weight) = self.changes();
            pairs * CHANGE_BYTES + weight > due.saturating_mul(times)
        }
    }

    /// Looks how far the base can grow. While there is space, makes data leave as much as the
    /// contents here need.
    pub fn look_for_space(&self) {
        let Some((region, wanted)) = self.wanted() else { return };
        let needed = self.promised.load(Ordering::Acquire);
        let length = region.container.keep_for_kv(region.role, needed, wanted.max(needed));
        self.length_max.store(length, Ordering::Release);
    }

    /// The length that the base's file must be able to reach while data has plenty. An index takes
    /// a small part of what data takes, so the reserve is enough for it.
    fn wanted(&self) -> Option<(&KvRegion, u64)> {
        let region = self.region.as_ref().filter(|region| region.role == KvRole::Metadata)?;
        let wanted = self.weight().saturating_mul(SPACE_FACTOR * GROWTH_FACTOR);
        Some((region, wanted.max(region.container.least_for_kv())))
    }

    /// The promise for a base that is written now. The space is kept from now on until the base has
    /// another promise.
    fn promise(&self) -> u64 {
        let Some((_, wanted)) = self.wanted() else { return 0 };
        let promised = wanted.min(self.length_max.load(Ordering::Acquire));
        self.promised.fetch_max(promised, Ordering::AcqRel);
        promised
    }

    /// True if less space is kept now than the base says. A checkpoint is then due, because after a
    /// restart the amount that the base says would be taken from data.
    pub fn promises_too_much(&self) -> bool {
        self.promised.load(Ordering::Acquire) > self.length_max.load(Ordering::Acquire)
    }

    /// Figures for listings.
    pub fn stats(&self) -> KvStats {
        KvStats {
            overlay_bytes: self.overlay_bytes(),
            checkpoints: self.checkpoints.load(Ordering::Relaxed),
            base_bytes: self
                .region
                .as_ref()
                .map_or(0, |region| region.container.superblock().kv_space(region.role).length),
        }
    }

    /// The snapshot of the base, if the store has a base.
    fn base_of(&self, layers: &Layers) -> Result<Option<Snapshot>> {
        if layers.snapshot.is_none() && self.region.is_some() {
            return Err(Error::new(ErrorKind::Io, "the key-value store's disk failed"));
        }
        Ok(layers.snapshot.clone())
    }

    /// True if the base was opened anew after `snapshot`, so that a failed read may be tried again.
    fn is_outdated(&self, snapshot: &Snapshot) -> bool {
        let layers = self.layers.read();
        layers.snapshot.as_ref().is_some_and(|current| !current.is_same(snapshot))
    }
}

impl Writer {
    fn pages(&self) -> Option<Arc<Pages>> {
        self.base.as_ref().map(|base| Arc::clone(base.pages()))
    }
}

/// Closes the base. It may write until it is closed. The caller has cut the views.
fn close(writer: &mut Writer, layers: &mut Layers) {
    layers.snapshot = None;
    layers.pages = None;
    writer.base = None;
}

/// Closes the base and opens it again. Readers wait meanwhile, because the old base must end before
/// the new one begins. The caller has cut the views.
fn reopen(writer: &mut Writer, layers: &mut Layers) {
    close(writer, layers);
    if writer.trust.is_lost() || writer.is_closed {
        return;
    }
    let opened = Base::open(writer.region.clone(), writer.cache_bytes, &writer.trust);
    let opened = opened.and_then(|base| {
        let found = (base.snapshot()?, base.applied()?);
        Ok((base, found))
    });
    if let Ok((base, (snapshot, applied))) = opened {
        writer.base = Some(base);
        layers.pages = writer.pages();
        layers.snapshot = Some(snapshot);
        // A commit that reported an error may still have become durable. Its changes are in
        // `active` too, and writing them once more changes nothing.
        layers.applied_in_base = applied;
    }
}

impl KvRead for Kv {
    fn get(&self, key: &[u8]) -> Result<Option<Arc<[u8]>>> {
        loop {
            let snapshot = {
                let layers = self.layers.read();
                let frozen = || layers.frozen.as_ref().and_then(|frozen| frozen.get(key));
                if let Some(change) = layers.active.get(key).or_else(frozen) {
                    return Ok(change.clone());
                }
                self.base_of(&layers)?
            };
            let Some(snapshot) = snapshot else { return Ok(None) };
            match self.uncut(|| Ok(snapshot.get(key)))? {
                Ok(value) => return Ok(value),
                Err(_) if self.is_outdated(&snapshot) => {}
                Err(error) => {
                    self.revive(snapshot);
                    return Err(base::from_storage(error));
                }
            }
        }
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        self.scan_range(from, to, scan::Direction::Ascending, visit)
    }

    fn scan_back(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        self.scan_range(from, to, scan::Direction::Descending, visit)
    }
}

#[cfg(test)]
#[path = "kv_test.rs"]
mod kv_test;

#[cfg(test)]
mod damage_test;
