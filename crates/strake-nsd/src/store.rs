//! The block store of one NSD. It carries out the decisions of the pure parts on the disk, the
//! journal and the index.
//!
//! **A write.** Units are allocated and the data is written to them, outside all locks. Then, under
//! the object's lock, `rules` decide. Under the order lock the change gets its number. It goes into
//! the journal (in memory) and into the index (visible at once). It is now *accepted*.
//!
//! **A patch** goes the same way, but with only the units that change. The record then says where
//! these (*displaced*) units are. Readers lay them over the contents of the strip's extents. Later
//! a worker writes them back into the extents (`straighten`).
//!
//! **A commit.** Syncing the journal makes the data durable first and the entries after it (see
//! `Container::index_log`). They are now *stable*. Callers at the same time share the barriers. A
//! crash leaves a prefix of the entries, each with its data. So each strip has either the old or
//! the new version.
//!
//! **Freed units** are reused after the entry that freed them is durable and every read that may
//! have seen them has ended (`reclaim`). A worker tells the host of them later, a bounded piece at
//! a time, and slowly while others use the disk (`space`, [`crate::discards`]). Only a writer that
//! finds the disk or the host full waits for that.
//!
//! **A checkpoint** writes the index's changes to its base and trims the journal. A worker makes it
//! when either is large. A writer that finds the journal full makes it itself.
//!
//! **Damage.** If a record is not what was written, its strip is lost. Reading the strip is then an
//! error, never "there is none", until it is written anew or deleted. Readers rebuild it from the
//! other disks. The strip's space belongs to nobody and is used again. If something below the
//! records is damaged (a page of the index, the journal), the whole disk is lost.
//!
//! **Who may use it.** A store of one process serves everybody there. A store under a manager
//! serves whom the manager allows, while it has a lease (`door`).
//!
//! Locks, in this order: `checkpointing`; one of `objects`; `order`; `audit`; then `space`,
//! `unsettled`, `crooked`, `trailers`, `reclaim`'s and `door`'s (leaves, for memory only). No I/O
//! is done under `order` or a leaf, with one exception: while a check counts, records of changed
//! strips are looked up again.

mod check;
mod commit;
mod door;
mod grants;
mod mend;
mod open;
mod range;
mod read;
mod scrub;
mod space;
mod straighten;
mod worker;
mod write;

use crate::edits::Edits;
use crate::extent::Extent;
use crate::keys::{Table, strip_key, tombstone_end, tombstone_key};
use crate::reclaim::Reclaim;
use crate::record::{self, Damaged, StripRecord};
use check::Audit;
use door::{Door, Ticket};
use mend::Right;
use read::TrailerCache;
use space::Space;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use straighten::Crooked;
use strake_env::sync::{Mutex, WatchedMutex, WatchedMutexGuard};
use strake_env::{Clock, Disk};
use strake_observe::{Observe, Operation};
use strake_proto::nsd::{NsdContext, NsdPort, NsdReply, NsdRequest, NsdStatusReply};
use strake_proto::{
    BlockIndex, ClusterId, Error, ErrorKind, NsdId, ObjectId, Result, StripKey, Version,
};
use strake_store::{Batch, Container, Journal, Kv, KvRead, Lsn};
use worker::Worker;

pub use open::{BlockStoreOptions, Service};
use tracing::error;

/// Objects are spread over this many locks, so writers of different objects seldom meet.
const OBJECT_LOCKS: usize = 64;

/// A step that a test inserts in the middle of an operation.
#[cfg(test)]
type Step = Box<dyn FnOnce(&BlockStore) + Send>;

/// The place of a change in the order of changes.
#[derive(Clone, Copy)]
struct Moment {
    /// The number of the change.
    lsn: Lsn,
    /// The last change that a commit has begun to cover.
    committing: Lsn,
}

strake_env::lock_names! {
    /// Held while a change is decided. The index may have to be read from the disk for that.
    ObjectLock = "NSD object";
    /// Held across I/O only while a check counts.
    OrderLock = "NSD order of changes";
    /// Held while a checkpoint is made.
    Checkpointing = "NSD checkpoint";
    /// Held while the host is told of what is free.
    Releasing = "NSD release of space";
    /// Held by a check from its beginning to its end.
    Checking = "NSD check";
}

/// The block store of one NSD; see the module.
pub struct BlockStore {
    /// Keeps the other users of the chunk source alive.
    container: Container,
    disk: Arc<dyn Disk>,
    cluster: ClusterId,
    nsd: NsdId,
    boot: u64,
    observe: Arc<Observe>,
    options: BlockStoreOptions,
    journal: Journal,
    index: Kv,
    space: Arc<Space>,
    reclaim: Reclaim,
    objects: [WatchedMutex<ObjectLock>; OBJECT_LOCKS],
    order: WatchedMutex<OrderLock>,
    checkpointing: WatchedMutex<Checkpointing>,
    /// Strips whose current version is not known to be stable everywhere.
    unsettled: Mutex<BTreeSet<StripKey>>,
    trailers: Mutex<TrailerCache>,
    strips: AtomicU64,
    promises: AtomicU64,
    /// Range deletions under way.
    deletions: AtomicU64,
    /// A thread holds this while it gives released units back.
    releasing: WatchedMutex<Releasing>,
    /// The number of reads and writes of strips since the start, and that number at the last
    /// discard.
    ios: AtomicU64,
    ios_seen: AtomicU64,
    /// The count of a check under way.
    audit: Mutex<Option<Audit>>,
    /// Held by a check, so that only one runs at a time.
    checking: WatchedMutex<Checking>,
    /// The last entry that a commit has begun to cover. Changed under `order`.
    committing: AtomicU64,
    /// The last entry that is durable.
    durable: AtomicU64,
    /// The last entry with which the store was opened; 0 if the store is doubted.
    recovered: AtomicU64,
    /// The reason why nothing more is accepted. The first failed write or sync sets it.
    failure: Mutex<Option<Error>>,
    /// `None` in a store of one process.
    door: Option<Door>,
    /// Makes checkpoints.
    checkpointer: Mutex<Option<Worker>>,
    /// Tells the host what is free.
    discarder: Mutex<Option<Worker>>,
    /// Writes displaced units back into their places.
    straightener: Mutex<Option<Worker>>,
    crooked: Mutex<Crooked>,
    clock: Arc<dyn Clock>,
    /// Counts patches. Failures are refused patches. Bytes are those of displaced units.
    patches: Arc<Operation>,
    /// Counts strips straightened, and the bytes that were moved.
    straightenings: Arc<Operation>,
    /// Runs once: after a write has looked at the versions held, and before it has its place in the
    /// order; or before a request is answered.
    #[cfg(test)]
    before_publish: Mutex<Option<Step>>,
}

/// The index's contents for a strip.
enum Held {
    Nothing,
    Record(StripRecord),
    Damaged(Damaged),
}

/// A change that has been decided.
#[derive(Default)]
struct Decided {
    edits: Edits,
    /// Units that no record names any more.
    freed: Vec<Extent>,
    /// The number of a writer's units that a record names from now on.
    taken: u64,
}

impl From<Edits> for Decided {
    fn from(edits: Edits) -> Decided {
        Decided { edits, ..Decided::default() }
    }
}

impl BlockStore {
    /// The NSD of this store.
    pub fn nsd(&self) -> NsdId {
        self.nsd
    }

    /// The boot number. It changes with every start; see [`NsdReply::Accepted`].
    pub fn boot(&self) -> u64 {
        self.boot
    }

    /// The reason why the store takes no more writes. `None` while it takes them.
    pub fn failure(&self) -> Option<Error> {
        self.failure.lock().clone()
    }

    /// Makes the store say from now on that it cannot vouch for its contents. Its disk may not be
    /// the one that was there before.
    pub fn doubt(&self) {
        self.recovered.store(0, SeqCst);
    }

    fn refuse_if_failed(&self) -> Result<()> {
        self.failure.lock().clone().map_or(Ok(()), Err)
    }

    /// Notes a failed write or sync. Afterwards nothing on this disk is sure to become durable.
    fn fail(&self, error: Error) -> Error {
        let mut failure = self.failure.lock();
        failure
            .get_or_insert_with(|| {
                let error = error.context(format!("NSD {} failed and takes no writes", self.nsd));
                error!(target: "nsd", "{error}");
                error
            })
            .clone()
    }

    fn object_lock(&self, object: ObjectId) -> WatchedMutexGuard<'_, ()> {
        // Object ids ascend, and neighbouring objects are often in use at the same time.
        self.objects[(object.0 % OBJECT_LOCKS as u64) as usize].lock()
    }

    /// Looks up the versions held of a strip.
    fn look_up(&self, key: &StripKey) -> Result<Held> {
        let encoded = strip_key(Table::Strip, key);
        Ok(match self.index.get(&encoded)? {
            None => Held::Nothing,
            Some(value) => match record::decode_strip(&encoded, &value) {
                Ok(record) => Held::Record(record),
                Err(damage) => Held::Damaged(damage),
            },
        })
    }

    /// The record of a strip. A damaged record is an error.
    fn record(&self, key: &StripKey) -> Result<Option<StripRecord>> {
        match self.look_up(key)? {
            Held::Nothing => Ok(None),
            Held::Record(record) => Ok(Some(record)),
            Held::Damaged(damage) => Err(self.damaged(key, damage)),
        }
    }

    fn damaged(&self, key: &StripKey, Damaged(what): Damaged) -> Error {
        Error::new(ErrorKind::Corrupt, format!("NSD {}, strip {key}: damaged {what}", self.nsd))
    }

    /// The highest version refused by a tombstone over the block or by a promise for the key. All
    /// lower versions are refused too. Damaged tombstones and promises refuse nothing. Then one
    /// disk forgets too much. The code tolerates that, and `check` reports it.
    fn floor(&self, key: &StripKey) -> Result<Version> {
        let encoded = strip_key(Table::Promise, key);
        let mut floor = match self.index.get(&encoded)? {
            None => Version::NONE,
            Some(value) => record::decode_promise(&encoded, &value).unwrap_or(Version::NONE),
        };
        let after = BlockIndex(key.block.0.saturating_add(1));
        let from = tombstone_key(key.fs, key.object, after);
        self.index.scan(&from, &tombstone_end(key.fs, key.object), &mut |found, value| {
            if let Ok(tombstone) = record::decode_tombstone(found, value)
                && tombstone.from <= key.block
            {
                floor = floor.max(tombstone.version);
            }
            false
        })?;
        Ok(floor)
    }

    /// Numbers, journals and applies a change, unless the request that makes it may not do so any
    /// more. What has changed of the grants of space goes into the same entry. `decide` gets the
    /// number of the change and the last entry that commits cover at that moment. If the journal is
    /// full, nothing is done and `NoSpace` is returned. The caller then releases its locks, calls
    /// [`BlockStore::make_room`] and decides anew.
    fn publish(&self, ticket: &Ticket<'_>, decide: impl FnOnce(Moment) -> Decided) -> Result<()> {
        self.refuse_if_failed()?;
        let _order = self.order.lock();
        ticket.test()?;
        let lsn = Lsn(self.journal.last().0 + 1);
        // A commit moves this under the same lock. So if no commit has begun to cover an entry when
        // this change is decided, that is still true when the change gets its place.
        let committing = Lsn(self.committing.load(SeqCst));
        let Decided { mut edits, freed, taken } = decide(Moment { lsn, committing });
        let changes = self.add_changes(ticket, taken, &mut edits);
        if edits.is_empty() {
            return Ok(());
        }
        let given = self.journal.append(&edits.encode());
        let given = given.inspect_err(|_| self.take_back_changes(ticket, &changes))?;
        assert_eq!(given, lsn, "entries are numbered under the order lock only");
        self.note_for_check(&edits);
        self.index.apply(batch(edits), lsn);
        if taken > 0 {
            self.space.named(taken);
        }
        self.reclaim.freed(lsn, freed);
        Ok(())
    }

    /// The store's space and identity.
    fn status(&self) -> NsdStatusReply {
        let unit = strake_proto::limits::UNIT_BYTES as u64;
        let mut allocator = self.space.allocator.lock();
        let total = allocator.total_for_data();
        // Units that wait for a commit count as free: a writer that needs them makes that commit.
        // Units that the host does not know to be free yet count as free too.
        let free = allocator.tell_free(self.reclaim.units()).min(total);
        let free = match self.space.is_granting() {
            true => free.saturating_sub(self.space.grants().beyond_pool(total)),
            false => free,
        };
        NsdStatusReply {
            cluster: self.cluster,
            nsd: self.nsd,
            boot: self.boot,
            recovered: self.recovered.load(SeqCst),
            total: total * unit,
            free: free * unit,
            strips: self.strips.load(SeqCst),
        }
    }
}

impl NsdPort for BlockStore {
    fn call(
        &self,
        context: NsdContext,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        match request {
            // Whoever looks for the server must find it without a lease.
            NsdRequest::Status => return Ok(NsdReply::Status(self.status())),
            NsdRequest::Admission
            | NsdRequest::Lease { .. }
            | NsdRequest::Allow { .. }
            | NsdRequest::Fence { .. }
            | NsdRequest::RaiseFloor { .. } => return self.manage(context, request),
            _ => {}
        }
        let mut ticket = self.enter(context)?;
        if matches!(request, NsdRequest::Mend { .. }) {
            ticket.uses_no_grant();
        }
        let reply = self.carry_out(&ticket, request, send, receive);
        #[cfg(test)]
        self.run_before_publish();
        ticket.test()?;
        reply
    }
}

impl BlockStore {
    fn carry_out(
        &self,
        ticket: &Ticket<'_>,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        match request {
            NsdRequest::Write { key, header, checksums, copy, stable } => {
                self.write(ticket, (key, header, checksums), (*copy, *stable), send)
            }
            NsdRequest::WriteMany { strips, copy } => self.write_many(ticket, strips, *copy, send),
            NsdRequest::Patch { key, header, base, units, checksums, stable } => {
                self.patch(ticket, (key, header), (*base, *stable), (units, checksums), send)
            }
            NsdRequest::Mend { key, version, checksums } => {
                self.mend(ticket, &Right { key, version: *version, checksums, data: send })
            }
            NsdRequest::Read { key, version, offset, length } => {
                self.read(key, *version, *offset, *length, receive)
            }
            NsdRequest::Commit { settled } => self.commit(ticket, settled),
            NsdRequest::DeleteRange { fs, object, from, to, version } => {
                self.delete_range(ticket, (*fs, *object), *from..*to, *version)?;
                Ok(NsdReply::Accepted { boot: self.boot })
            }
            NsdRequest::ForgetTombstones { fs, object, version } => {
                self.forget_tombstones(ticket, *fs, *object, *version)
            }
            NsdRequest::ChangeRanges { fs, changes } => self.change_ranges(ticket, *fs, changes),
            NsdRequest::Refuse { key, version } => self.refuse(ticket, key, *version),
            NsdRequest::List { fs, object, block, strip, until, limit } => {
                let from = StripKey { fs: *fs, object: *object, block: *block, strip: *strip };
                self.list(&from, *until, *limit)
            }
            NsdRequest::GrantSpace(ask) => self.grant_space(ticket, ask),
            NsdRequest::ListUnsettled { after, limit } => self.list_unsettled(*after, *limit),
            NsdRequest::ListLacking { positions, after, limit } => {
                self.list_lacking(*positions, *after, *limit)
            }
            NsdRequest::Check { data } => self.check(*data),
            NsdRequest::CheckPart { data, from } => self.check_part(*data, from),
            NsdRequest::Scrub { part } => self.scrub(*part),
            NsdRequest::Salvage => self.salvage(),
            NsdRequest::Status
            | NsdRequest::Admission
            | NsdRequest::Lease { .. }
            | NsdRequest::Allow { .. }
            | NsdRequest::Fence { .. }
            | NsdRequest::RaiseFloor { .. } => {
                unreachable!("invariant: `call` answers these at the door")
            }
        }
    }
}

impl BlockStore {
    /// Ends the store's workers, and returns when their turns under way have ended.
    ///
    /// A turn keeps the store and its disk. So without this, the store may outlive the last
    /// reference that others drop: it still writes and frees while another store is opened on the
    /// disk. Whoever opens the disk again calls this before.
    pub fn end(&self) {
        for worker in [&self.checkpointer, &self.discarder, &self.straightener] {
            // The turn under way may wake a worker, so the lock is not held meanwhile.
            let taken = worker.lock().take();
            if let Some(worker) = taken {
                worker.stop();
            }
        }
    }
}

impl Drop for BlockStore {
    fn drop(&mut self) {
        self.end();
    }
}

fn batch(edits: Edits) -> Batch {
    let mut batch = Batch::new();
    for (key, value) in edits.0 {
        match value {
            Some(value) => batch.put(key, value),
            None => batch.delete(key),
        }
    }
    batch
}

#[cfg(test)]
#[path = "store_test.rs"]
mod store_test;

#[cfg(test)]
mod damage_test;

#[cfg(test)]
mod discard_test;

#[cfg(test)]
mod fuzz_test;

#[cfg(test)]
mod patch_test;
