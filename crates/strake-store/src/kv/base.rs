//! The base: a redb database in a region, as of the last checkpoint.
//!
//! Commits are durable, in two phases and with the allocator's state saved ("quick repair"), so
//! that opening after a crash reads a few pages and never walks the tree.
//!
//! **Two phases must stay.** With one phase redb tells a torn commit from a whole one by the XXH3
//! checksums in its own pages. Ours (`pages.rs`) are CRCs kept beside the pages and written in the
//! same barrier: after a power cut between them a page may be new and its CRC old, or the other way
//! round, and reads as damaged. That is harmless only because no page that the last durable commit
//! names is written before the next one is durable, and the header (unit 0, not covered by a CRC)
//! turns to the new commit after a barrier of its own. With one phase the header could name pages
//! whose CRCs were lost, and both commits would be gone.
//!
//! redb refuses everything after any storage error, even after a growth that found no space; then
//! the base is opened anew on what is durable (see `Kv::checkpoint`).

use super::overlay::Overlay;
use super::pages::Pages;
use crate::journal::Lsn;
use crate::region::KvRegion;
use redb::{
    Database, Durability, ReadOnlyTable, ReadableDatabase, StorageError, TableDefinition,
    TableError,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use strake_proto::{Error, ErrorKind, Result};

const PAIRS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("pairs");
const STATE: TableDefinition<&str, u64> = TableDefinition::new("state");
const APPLIED: &str = "applied";

/// The pairs as of one checkpoint; readers share it until the next.
pub(super) type Snapshot = Arc<ReadOnlyTable<&'static [u8], &'static [u8]>>;

/// The base of one store.
pub(super) struct Base {
    database: Database,
}

impl Base {
    /// Opens the base, or makes an empty one in an empty region.
    pub(super) fn open(region: KvRegion, cache_bytes: usize) -> Result<Base> {
        let pages = Pages::open(region);
        // redb asserts on some damage that a checksum of ours cannot rule out (a header of another
        // life); a damaged disk must be an error, not the end of the process.
        let opened = catch_unwind(AssertUnwindSafe(|| {
            redb::Builder::new().set_cache_size(cache_bytes).create_with_backend(pages)
        }));
        let database = match opened {
            Ok(opened) => opened.map_err(from_redb)?,
            Err(_) => return Err(Error::new(ErrorKind::Corrupt, "a damaged key-value store")),
        };
        let base = Base { database };
        if base.snapshot_if_any()?.is_none() {
            base.write(&Overlay::default(), Lsn(0))?;
        }
        Ok(base)
    }

    fn snapshot_if_any(&self) -> Result<Option<Snapshot>> {
        let transaction = self.database.begin_read().map_err(from_redb)?;
        match transaction.open_table(PAIRS) {
            Ok(table) => Ok(Some(Arc::new(table))),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(from_redb(error)),
        }
    }

    /// The pairs as of the last checkpoint.
    pub(super) fn snapshot(&self) -> Result<Snapshot> {
        self.snapshot_if_any()?
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "a key-value store without its table"))
    }

    /// The entry up to which everything is here.
    pub(super) fn applied(&self) -> Result<Lsn> {
        let transaction = self.database.begin_read().map_err(from_redb)?;
        let state = transaction.open_table(STATE).map_err(from_redb)?;
        let applied = state.get(APPLIED).map_err(from_redb)?;
        Ok(Lsn(applied.map_or(0, |value| value.value())))
    }

    /// Writes changes and the entry they reach to, in one durable commit.
    pub(super) fn write(&self, changes: &Overlay, applied: Lsn) -> Result<()> {
        let mut transaction = self.database.begin_write().map_err(from_redb)?;
        transaction.set_durability(Durability::Immediate).map_err(from_redb)?;
        transaction.set_two_phase_commit(true);
        transaction.set_quick_repair(true);
        {
            let mut pairs = transaction.open_table(PAIRS).map_err(from_redb)?;
            for (key, change) in changes.iter() {
                match change {
                    Some(value) => pairs.insert(key, &value[..]).map_err(from_redb)?,
                    None => pairs.remove(key).map_err(from_redb)?,
                };
            }
            let mut state = transaction.open_table(STATE).map_err(from_redb)?;
            state.insert(APPLIED, applied.0).map_err(from_redb)?;
        }
        transaction.commit().map_err(from_redb)
    }
}

/// What an error of redb means to us.
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

/// The same for what reads return.
pub(super) fn from_storage(error: StorageError) -> Error {
    from_redb(redb::Error::from(error))
}
