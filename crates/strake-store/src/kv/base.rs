//! The base: a redb database in a region, as of the last checkpoint.
//!
//! Commits are durable. They use two phases and save the allocator's state ("quick repair"), so
//! opening after a crash reads a few pages and never walks the tree.
//!
//! **Two phases must stay.** With one phase, redb tells a torn commit from a whole one by the XXH3
//! checksums in its own pages. Our checksums (`pages.rs`) are CRCs. They lie beside the pages and
//! are written in the same barrier. After a power cut a page may be new and its CRC old, or the
//! other way round. It then reads as damaged. This is harmless for two reasons. No page that the
//! last durable commit names is written before the next commit is durable. And the header (unit 0,
//! which has no CRC) turns to the new commit after a barrier of its own. With one phase the header
//! could name pages whose CRCs were lost, and both commits would be gone.
//!
//! **Panics.** redb asserts on the contents of pages that it wrote itself, so false contents under
//! good checksums may make it panic. Every call of redb is guarded. After a panic nothing more is
//! read from the store or written to it until it is opened again ([`Trust`]). One case is not
//! covered: if pages name each other in a circle, redb descends until its stack ends.
//!
//! redb refuses everything after any storage error, even after a growth that found no space. The
//! base is then opened anew at what is durable (see `Kv::checkpoint`).

use super::overlay::Overlay;
use super::pages::{File, Pages};
use crate::journal::Lsn;
use crate::region::KvRegion;
use redb::{
    AccessGuard, Database, Durability, Range, ReadOnlyTable, ReadableDatabase, StorageError,
    TableDefinition, TableError,
};
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use strake_proto::{Error, ErrorKind, Result};

const PAIRS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("pairs");
const STATE: TableDefinition<&str, u64> = TableDefinition::new("state");
const APPLIED: &str = "applied";
/// The name of the entry for the weight of all pairs; see [`weight_of`]. Older bases lack it.
const WEIGHT: &str = "weight";
/// The name of the entry that says how long the file can become with the space kept for it. The
/// same amount is kept again after a restart. Older bases lack the entry.
const PROMISED: &str = "promised";
const PAGE_BYTES: u64 = 4096;
/// redb keeps this many bytes besides the bytes of a pair.
const PAIR_BYTES: u64 = 32;

/// The most bytes of pages that a pair of this many bytes takes. A page is half full after a split.
/// The page of a large pair is as long as the next power of two. A page of several units may not
/// fit if the free space is in pieces.
pub(super) fn weight_of(bytes: usize) -> u64 {
    let bytes = bytes as u64 + PAIR_BYTES;
    let pages = bytes.next_power_of_two().max(PAGE_BYTES);
    match pages {
        PAGE_BYTES if bytes <= PAGE_BYTES / 2 => 2 * bytes,
        pages if pages <= 2 * PAGE_BYTES => pages,
        pages => 2 * pages,
    }
}

/// Remembers if redb ever panicked over a store. Pages whose checksums agree are believed, and redb
/// asserts on some of their possible contents. After a panic its state in memory is unknown.
#[derive(Clone, Debug, Default)]
pub(super) struct Trust(Arc<AtomicBool>);

impl Trust {
    /// True if the store must not be used any more.
    pub(super) fn is_lost(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Runs a call of redb, so that a damaged disk leads to an error and not to the end of the
    /// process.
    fn guard<T>(
        &self,
        work: impl FnOnce() -> std::result::Result<T, StorageError>,
    ) -> std::result::Result<T, StorageError> {
        if self.is_lost() {
            return Err(not_trusted());
        }
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
            self.0.store(true, Ordering::Release);
            Err(not_trusted())
        })
    }

    /// Like `guard`, for calls that return errors of ours.
    fn guard_ours<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.guard(|| Ok(work())).unwrap_or_else(|error| Err(from_storage(error)))
    }
}

fn not_trusted() -> StorageError {
    StorageError::Corrupted("a damaged key-value store: no page of it is believed".to_owned())
}

type Pair = (AccessGuard<'static, &'static [u8]>, AccessGuard<'static, &'static [u8]>);

/// The pairs as of one checkpoint. Readers share the snapshot until the next checkpoint.
#[derive(Clone)]
pub(super) struct Snapshot {
    /// `None` only while the snapshot is dropped.
    table: Option<Arc<ReadOnlyTable<&'static [u8], &'static [u8]>>>,
    trust: Trust,
}

impl Snapshot {
    fn table(&self) -> &ReadOnlyTable<&'static [u8], &'static [u8]> {
        self.table.as_ref().expect("invariant: there until it is dropped")
    }

    /// True if both are of the same opening and the same checkpoint.
    pub(super) fn is_same(&self, other: &Snapshot) -> bool {
        std::ptr::eq(self.table(), other.table())
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &[u8]) -> std::result::Result<Option<Arc<[u8]>>, StorageError> {
        self.trust.guard(|| Ok(self.table().get(key)?.map(|value| value.value().into())))
    }

    /// The pairs of a range, readable from both ends.
    pub(super) fn range(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> std::result::Result<Pairs, StorageError> {
        let range = self.trust.guard(|| self.table().range::<&[u8]>(range))?;
        Ok(Pairs { range, trust: self.trust.clone() })
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        drop_guarded(self.table.take());
    }
}

/// Pairs of a range.
pub(super) struct Pairs {
    range: Range<'static, &'static [u8], &'static [u8]>,
    trust: Trust,
}

impl Pairs {
    /// The next pair from the front or the back.
    pub(super) fn next(
        &mut self,
        is_back: bool,
    ) -> Option<std::result::Result<Pair, StorageError>> {
        let Pairs { range, trust } = self;
        let next = trust.guard(|| {
            let pair = if is_back { range.next_back() } else { range.next() };
            let Some((key, value)) = pair.transpose()? else { return Ok(None) };
            // The places of key and value are looked up here, while the page is believed. They are
            // not looked up again later.
            let _ = (key.value(), value.value());
            Ok(Some((key, value)))
        });
        next.transpose()
    }
}

/// Drops a value of redb's. The drop itself may panic over what an earlier panic left.
fn drop_guarded<T>(what: T) {
    // A value that cannot be dropped is ignored.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(what)));
}

/// The base of one store.
pub(super) struct Base {
    /// `None` only while the base is dropped.
    database: Option<Database>,
    pages: Arc<Pages>,
    trust: Trust,
    /// The weight of all pairs.
    weight: AtomicU64,
    /// The length that the file was promised; see [`PROMISED`].
    promised: AtomicU64,
}

impl Drop for Base {
    fn drop(&mut self) {
        if self.trust.is_lost() {
            self.pages.refuse_writes();
        }
        drop_guarded(self.database.take());
    }
}

impl Base {
    /// Opens the base of a region. Makes an empty base in an empty region.
    pub(super) fn open(region: KvRegion, cache_bytes: usize, trust: &Trust) -> Result<Base> {
        let pages = Arc::new(Pages::open(region));
        let file = File(Arc::clone(&pages));
        // The guard is needed for the header too: it may be of another life and has no checksum of
        // ours, and redb asserts on it.
        let database = trust.guard_ours(|| {
            let opened = redb::Builder::new().set_cache_size(cache_bytes).create_with_backend(file);
            opened.map_err(from_redb)
        })?;
        let (database, trust) = (Some(database), trust.clone());
        let base = Base { database, pages, trust, weight: 0.into(), promised: 0.into() };
        match base.snapshot_if_any()? {
            None => base.write(&Overlay::default(), Lsn(0), 0)?,
            Some(snapshot) => {
                let weight = base.state(WEIGHT)?.map_or_else(|| weigh(&snapshot), Ok)?;
                base.weight.store(weight, Ordering::Release);
                base.promised.store(base.state(PROMISED)?.unwrap_or(0), Ordering::Release);
            }
        }
        Ok(base)
    }

    /// The length in bytes that the file was promised it can reach.
    pub(super) fn promised(&self) -> u64 {
        self.promised.load(Ordering::Acquire)
    }

    /// The weight of all pairs, in bytes of pages.
    pub(super) fn weight(&self) -> u64 {
        self.weight.load(Ordering::Acquire)
    }

    fn database(&self) -> &Database {
        self.database.as_ref().expect("invariant: there until it is dropped")
    }

    /// The base's file.
    pub(super) fn pages(&self) -> &Arc<Pages> {
        &self.pages
    }

    fn snapshot_if_any(&self) -> Result<Option<Snapshot>> {
        self.trust.guard_ours(|| {
            let transaction = self.database().begin_read().map_err(from_redb)?;
            match transaction.open_table(PAIRS) {
                Ok(table) => {
                    Ok(Some(Snapshot { table: Some(Arc::new(table)), trust: self.trust.clone() }))
                }
                Err(TableError::TableDoesNotExist(_)) => Ok(None),
                Err(error) => Err(from_redb(error)),
            }
        })
    }

    /// The pairs as of the last checkpoint.
    pub(super) fn snapshot(&self) -> Result<Snapshot> {
        self.snapshot_if_any()?
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "a key-value store without its table"))
    }

    /// The entry up to which the base holds everything.
    pub(super) fn applied(&self) -> Result<Lsn> {
        Ok(Lsn(self.state(APPLIED)?.unwrap_or(0)))
    }

    fn state(&self, key: &str) -> Result<Option<u64>> {
        self.trust.guard_ours(|| {
            let transaction = self.database().begin_read().map_err(from_redb)?;
            let state = transaction.open_table(STATE).map_err(from_redb)?;
            let found = state.get(key).map_err(from_redb)?;
            Ok(found.map(|value| value.value()))
        })
    }

    /// Writes changes, the last entry they include, and the length that the file is promised, in
    /// one durable commit.
    pub(super) fn write(&self, changes: &Overlay, applied: Lsn, promised: u64) -> Result<()> {
        self.trust.guard_ours(|| self.commit(changes, applied, promised))
    }

    fn commit(&self, changes: &Overlay, applied: Lsn, promised: u64) -> Result<()> {
        let mut transaction = self.database().begin_write().map_err(from_redb)?;
        transaction.set_durability(Durability::Immediate).map_err(from_redb)?;
        transaction.set_two_phase_commit(true);
        transaction.set_quick_repair(true);
        let mut weight = self.weight();
        {
            let mut pairs = transaction.open_table(PAIRS).map_err(from_redb)?;
            for (key, change) in changes.iter() {
                let old = match change {
                    Some(value) => pairs.insert(key, &value[..]).map_err(from_redb)?,
                    None => pairs.remove(key).map_err(from_redb)?,
                };
                let of = |bytes| weight_of(key.len() + bytes);
                // A sum that is wrong because of damage is no reason to fail.
                weight = weight.saturating_sub(old.map_or(0, |old| of(old.value().len())));
                weight = weight.saturating_add(change.as_ref().map_or(0, |new| of(new.len())));
            }
            let mut state = transaction.open_table(STATE).map_err(from_redb)?;
            state.insert(APPLIED, applied.0).map_err(from_redb)?;
            state.insert(WEIGHT, weight).map_err(from_redb)?;
            state.insert(PROMISED, promised).map_err(from_redb)?;
        }
        transaction.commit().map_err(from_redb)?;
        self.weight.store(weight, Ordering::Release);
        self.promised.store(promised, Ordering::Release);
        Ok(())
    }
}

/// The weight of all pairs of a snapshot.
fn weigh(snapshot: &Snapshot) -> Result<u64> {
    let mut pairs = snapshot.range((Bound::Unbounded, Bound::Unbounded)).map_err(from_storage)?;
    let mut weight = 0;
    while let Some(pair) = pairs.next(false) {
        let (key, value) = pair.map_err(from_storage)?;
        weight += weight_of(key.value().len() + value.value().len());
    }
    Ok(weight)
}

/// Translates an error of redb into one of ours.
pub(super) fn from_redb(error: impl Into<redb::Error>) -> Error {
    match error.into() {
        redb::Error::Io(error) => match error.kind() {
            std::io::ErrorKind::InvalidData => Error::new(ErrorKind::Corrupt, error.to_string()),
            _ => Error::from(error),
        },
        redb::Error::Corrupted(detail) => Error::new(ErrorKind::Corrupt, detail),
        redb::Error::ValueTooLarge(size) => {
            Error::new(ErrorKind::TooBig, format!("a value of {size} bytes"))
        }
        other @ (redb::Error::PreviousIo | redb::Error::DatabaseClosed) => {
            Error::new(ErrorKind::Io, other.to_string())
        }
        other => Error::new(ErrorKind::Internal, format!("key-value engine: {other}")),
    }
}

/// Like `from_redb`, for the errors that reads return.
pub(super) fn from_storage(error: StorageError) -> Error {
    from_redb(redb::Error::from(error))
}
