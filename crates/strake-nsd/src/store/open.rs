//! Starts a block store. It recovers the index, and rebuilds from it everything that is only in
//! memory.

use super::door::{Door, Ticket};
use super::space::Space;
use super::straighten::Crooked;
use super::worker::Worker;
use super::{BlockStore, OBJECT_LOCKS, batch};
use crate::admission::Admission;
use crate::allocator::{Allocator, ChunkGeometry};
use crate::edits::Edits;
use crate::extent::Extent;
use crate::grants::Grants;
use crate::keys::{BOOT_KEY, Table, grant_table, parse_grant_key, parse_strip_key, table_end};
use crate::reclaim::Reclaim;
use crate::record::{Damaged, StripRecord, decode_grant, decode_strip, encode_given_up};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use strake_env::sync::{Mutex, WatchedMutex};
use strake_env::{Clock, RealClock};
use strake_observe::Observe;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::{Error, ErrorKind, Result, StripKey, Term};
use strake_store::superblock::Superblock;
use strake_store::{ChunkSource, Container, Journal, Kv, KvRead, KvRole};
use tracing::error;

/// One chunk in this many is kept from data, so deleting works on a full disk.
const CHUNKS_PER_RESERVED: u32 = 64;
/// At least this many chunks are kept from data, because the index grows by doubling at first.
const RESERVED_CHUNKS_MIN: u32 = 2;

/// One journal entry notes at most this many damaged records.
const REPAIRS_PER_ENTRY: usize = 256;

/// Whom a store serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Everybody in this process, who are one client.
    OneProcess,
    /// Those whom a manager allows, while it gives leases (decision 0034).
    UnderManager,
}

/// The options that may differ between two runs of one block store.
#[derive(Clone)]
pub struct BlockStoreOptions {
    /// The size of the page cache of the index's base.
    pub cache_bytes: usize,
    /// A checkpoint begins when the index has this many bytes of changes in memory.
    pub overlay_bytes_max: u64,
    /// The limit of a wait for another thread's barrier, for space in the journal, or for a reader.
    /// A longer wait is an error, because a disk that takes longer hangs.
    pub wait_limit: Duration,
    /// Freed space may be used again for this long before the host is told of it.
    pub discard_delay: Duration,
    /// If the host must be told of at most this many bytes altogether, the commit itself does it.
    /// Otherwise the worker does it after the delay.
    pub discard_at_once_bytes_max: u64,
    /// Strips with displaced units are straightened when the disk has been idle for this long.
    /// `Duration::MAX` means never.
    pub straighten_delay: Duration,
    /// Records I/Os and lists waits.
    pub observe: Arc<Observe>,
    /// Whom the store serves.
    pub service: Service,
    /// The clock of the lease, and of the pauses of workers.
    pub clock: Arc<dyn Clock>,
}

impl BlockStoreOptions {
    /// The usual values.
    pub fn new(observe: &Arc<Observe>) -> BlockStoreOptions {
        BlockStoreOptions {
            cache_bytes: 16 << 20,
            overlay_bytes_max: 16 << 20,
            wait_limit: Duration::from_secs(60),
            discard_delay: Duration::from_secs(1),
            discard_at_once_bytes_max: 64 << 20,
            straighten_delay: Duration::from_secs(5),
            observe: Arc::clone(observe),
            service: Service::OneProcess,
            clock: RealClock::shared(),
        }
    }
}

/// The results of a walk over the index.
struct Walk {
    allocator: Allocator,
    grants: Grants,
    unsettled: BTreeSet<StripKey>,
    crooked: Crooked,
    strips: u64,
    promises: u64,
    /// Strips that are lost because their record is damaged.
    damaged: u64,
    /// Records to write, so that damage found now still counts as damage next time.
    repairs: Vec<Edits>,
    /// Grants that cannot be read.
    forgotten: Edits,
}

impl BlockStore {
    /// Opens the block store on a container, at the last durable entry.
    ///
    /// The disk's errors. `Corrupt` if the journal or a page of the index is damaged: the disk must
    /// then be treated as lost, and rebuilt from the others. A damaged record is only one lost
    /// strip. `Invalid` for a disk under a manager that is to serve one process.
    pub fn open(container: Container, options: BlockStoreOptions) -> Result<Arc<BlockStore>> {
        let (journal, index) = replay(&container, &options)?;
        let walk = walk(&container, &index)?;
        let space = Arc::new(Space::new(walk.allocator, walk.grants));
        let source: Arc<dyn ChunkSource> = Arc::clone(&space) as Arc<dyn ChunkSource>;
        container.set_chunk_source(&source);
        let superblock = container.superblock();
        let boot = next_boot(&index)?;
        let door = door(&superblock, boot, options.service)?;
        let durable = journal.last().0;
        let store = Arc::new(BlockStore {
            disk: Arc::clone(container.disk()),
            container,
            cluster: superblock.cluster,
            nsd: superblock.nsd,
            boot,
            observe: Arc::clone(&options.observe),
            patches: options.observe.operations.operation("nsd patch"),
            straightenings: options.observe.operations.operation("nsd straighten"),
            clock: Arc::clone(&options.clock),
            options,
            journal,
            index,
            space,
            reclaim: Reclaim::default(),
            objects: [const { WatchedMutex::new(()) }; OBJECT_LOCKS],
            order: WatchedMutex::default(),
            checkpointing: WatchedMutex::default(),
            unsettled: Mutex::new(walk.unsettled),
            trailers: Mutex::default(),
            strips: AtomicU64::new(walk.strips),
            promises: AtomicU64::new(walk.promises),
            deletions: AtomicU64::new(0),
            releasing: WatchedMutex::default(),
            ios: AtomicU64::new(0),
            ios_seen: AtomicU64::new(0),
            audit: Mutex::new(None),
            checking: WatchedMutex::default(),
            committing: AtomicU64::new(durable),
            durable: AtomicU64::new(durable),
            recovered: AtomicU64::new(durable),
            failure: Mutex::new(None),
            door,
            checkpointer: Mutex::new(None),
            discarder: Mutex::new(None),
            straightener: Mutex::new(None),
            crooked: Mutex::new(walk.crooked),
            #[cfg(test)]
            before_publish: Mutex::new(None),
        });
        if walk.damaged > 0 {
            let (nsd, count) = (store.nsd, walk.damaged);
            error!(
                target: "nsd",
                "NSD {nsd}: the records of {count} strips are damaged: they are rebuilt from \
                 the other disks when they are read; `strake fs check` names them"
            );
        }
        if !walk.forgotten.is_empty() {
            store.publish_at_open(walk.forgotten)?;
        }
        walk.repairs.into_iter().try_for_each(|edits| store.publish_at_open(edits))?;
        store.note_boot()?;
        store.start_workers()?;
        Ok(store)
    }

    fn start_workers(self: &Arc<Self>) -> Result<()> {
        let checkpoint = |store: &BlockStore| {
            if let Err(error) = store.checkpoint() {
                error!(target: "nsd", "NSD {}: no checkpoint: {error}", store.nsd);
            }
            None
        };
        let worker = Worker::start(self, "checkpoint", Duration::ZERO, checkpoint)?;
        *self.checkpointer.lock() = Some(worker);
        let delay = self.options.discard_delay;
        let worker = Worker::start(self, "discard", delay, BlockStore::discard_some)?;
        *self.discarder.lock() = Some(worker);
        if self.options.straighten_delay < Duration::MAX {
            self.crooked.lock().note_use(self.clock.monotonic());
            let turn = BlockStore::straighten_some;
            let worker = Worker::start(self, "straighten", Duration::ZERO, turn)?;
            worker.wake();
            *self.straightener.lock() = Some(worker);
        }
        Ok(())
    }

    /// Makes the boot number durable before anybody learns it, so that it is never given again.
    fn note_boot(&self) -> Result<()> {
        let mut edits = Edits::default();
        edits.put(BOOT_KEY, self.boot.to_le_bytes().to_vec());
        self.publish_at_open(edits)?;
        self.make_durable()
    }

    fn publish_at_open(&self, edits: Edits) -> Result<()> {
        loop {
            match self.publish(&Ticket::OWN, |_| edits.clone().into()) {
                Err(error) if error.kind() == ErrorKind::NoSpace => self.make_room()?,
                other => return other,
            }
        }
    }
}

/// Opens the journal and the index. Applies to the index the changes that only the journal has.
fn replay(container: &Container, options: &BlockStoreOptions) -> Result<(Journal, Kv)> {
    let (journal, entries) = Journal::open(container.index_log())?;
    let index = Kv::open(container.kv_region(KvRole::Index), options.cache_bytes)?;
    let base = index.applied_in_base();
    for (lsn, bytes) in entries.into_iter().filter(|(lsn, _)| *lsn > base) {
        let edits = Edits::decode(&bytes).map_err(corrupt)?;
        index.apply(batch(edits), lsn);
    }
    journal.advance(base);
    Ok((journal, index))
}

/// The door of a store under a manager.
fn door(superblock: &Superblock, boot: u64, service: Service) -> Result<Option<Door>> {
    let Superblock { nsd, term, .. } = *superblock;
    match service {
        Service::UnderManager => Ok(Some(Door::new(Admission::new(boot, term)))),
        Service::OneProcess if term == Term(0) => Ok(None),
        Service::OneProcess => {
            let detail = format!(
                "NSD {nsd} belongs to a cluster (term {term}); a single mount cannot use it. \
                 Start this node's server instead"
            );
            Err(Error::new(ErrorKind::Invalid, detail))
        }
    }
}

fn next_boot(index: &Kv) -> Result<u64> {
    let last = match index.get(BOOT_KEY)? {
        None => 0,
        Some(value) => {
            u64::from_le_bytes(value[..].try_into().map_err(|_| corrupt(Damaged("boot counter")))?)
        }
    };
    Ok(last + 1)
}

fn corrupt(Damaged(what): Damaged) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the index is damaged: {what}"))
}

/// Finds the units in use, the unsettled strips, and the number of strips.
fn walk(container: &Container, index: &Kv) -> Result<Walk> {
    let geometry = container.geometry();
    let superblock = container.superblock();
    let unit = UNIT_BYTES as u64;
    let units =
        u32::try_from(geometry.chunk_bytes / unit).map_err(|_| corrupt(Damaged("chunk size")))?;
    let chunks = ChunkGeometry {
        first_unit: geometry.chunks_offset / unit,
        units,
        count: geometry.chunk_count,
    };
    let kv_chunks = superblock.index_kv.chunks.iter().chain(&superblock.metadata_kv.chunks);
    let reserve = (geometry.chunk_count / CHUNKS_PER_RESERVED).max(RESERVED_CHUNKS_MIN);
    let mut walk = Walk {
        allocator: Allocator::new(chunks, kv_chunks.copied(), reserve),
        grants: Grants::default(),
        unsettled: BTreeSet::new(),
        crooked: Crooked::default(),
        strips: 0,
        promises: 0,
        damaged: 0,
        repairs: Vec::new(),
        forgotten: Edits::default(),
    };
    index.scan(&[Table::Strip as u8], &table_end(Table::Strip), &mut |key, value| {
        walk.visit(key, value);
        true
    })?;
    index.scan(&[Table::Promise as u8], &table_end(Table::Promise), &mut |_, _| {
        walk.promises += 1;
        true
    })?;
    let (from, to) = grant_table();
    index.scan(&from, &to, &mut |key, value| {
        walk.visit_grant(key, value);
        true
    })?;
    walk.allocator.settle_reserve();
    Ok(walk)
}

impl Walk {
    fn visit(&mut self, encoded: &[u8], value: &[u8]) {
        let Some(key) = parse_strip_key(Table::Strip, encoded) else {
            // Nobody can ask for this strip or delete it.
            self.repair(|edits| edits.delete(encoded));
            return;
        };
        let Ok(record) = decode_strip(encoded, value) else {
            self.damaged += 1;
            return;
        };
        if !self.mark(&record) {
            // Of two records that claim a unit, one is wrong. If that is the one that stays, the
            // data's checksums reveal it. The other must not claim the unit again when that one is
            // gone.
            self.repair(|edits| edits.put(encoded, encode_given_up(encoded)));
            return;
        }
        if !record.current().settled {
            self.unsettled.insert(key);
        }
        self.crooked.note(key, &record);
        self.strips += 1;
    }

    /// A damaged grant grants nothing. Its client asks again.
    fn visit_grant(&mut self, encoded: &[u8], value: &[u8]) {
        let restored = match (parse_grant_key(encoded), decode_grant(encoded, value)) {
            (Some(holder), Ok(grant)) => self.grants.restore(holder, grant).is_ok(),
            _ => false,
        };
        if !restored {
            error!(target: "nsd", "what was granted to a client is damaged, and is forgotten");
            self.forgotten.delete(encoded);
        }
    }

    /// Marks the units of a record as used. If some are not free, marks nothing and returns false.
    fn mark(&mut self, record: &StripRecord) -> bool {
        let extents: Vec<Extent> = record.extents().collect();
        let marked = extents.iter().take_while(|one| self.allocator.mark_used(**one).is_ok());
        let count = marked.count();
        let is_whole = count == extents.len();
        if !is_whole {
            extents[..count].iter().for_each(|&extent| self.allocator.free(extent));
        }
        is_whole
    }

    fn repair(&mut self, add: impl FnOnce(&mut Edits)) {
        self.damaged += 1;
        if self.repairs.last().is_none_or(|edits| edits.0.len() >= REPAIRS_PER_ENTRY) {
            self.repairs.push(Edits::default());
        }
        add(self.repairs.last_mut().expect("invariant: just pushed"));
    }
}
