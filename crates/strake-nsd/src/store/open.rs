//! Starting a block store: recovers the index, and from it everything that is only in memory.

use super::commit::Worker;
use super::{BlockStore, OBJECT_LOCKS, Space, batch};
use crate::allocator::{Allocator, ChunkGeometry, NotFree};
use crate::edits::Edits;
use crate::extent::Extent;
use crate::keys::{BOOT_KEY, STRIP_KEY_BYTES, Table, parse_strip_key, table_end};
use crate::reclaim::Reclaim;
use crate::record::{Damaged, decode_strip};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use strake_observe::Observe;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::{Error, ErrorKind, Result, StripKey};
use strake_store::{ChunkSource, Container, Journal, Kv, KvRead, KvRole};

/// Of so many chunks one is kept from data, so that deleting works on a full disk.
const CHUNKS_PER_RESERVED: u32 = 64;
/// Chunks kept from data at least: the index grows by doubling at first.
const RESERVED_CHUNKS_MIN: u32 = 2;

/// What may differ between two runs of one block store.
#[derive(Clone)]
pub struct BlockStoreOptions {
    /// Page cache of the index's base.
    pub cache_bytes: usize,
    /// Changes of the index in memory at which a checkpoint begins.
    pub overlay_bytes_max: u64,
    /// Where I/Os are recorded and waits listed.
    pub observe: Arc<Observe>,
}

impl BlockStoreOptions {
    /// The usual values.
    pub fn new(observe: &Arc<Observe>) -> BlockStoreOptions {
        BlockStoreOptions {
            cache_bytes: 16 << 20,
            overlay_bytes_max: 16 << 20,
            observe: Arc::clone(observe),
        }
    }
}

/// What a walk over the index finds.
struct Walk {
    allocator: Allocator,
    unsettled: BTreeSet<StripKey>,
    strips: u64,
}

impl BlockStore {
    /// Opens the block store on a container, at the last durable entry.
    ///
    /// # Errors
    /// The disk's; `Corrupt` for a damaged journal or index: the disk is to be treated as lost
    /// then, and rebuilt from the others.
    pub fn open(container: Container, options: BlockStoreOptions) -> Result<Arc<BlockStore>> {
        let (journal, entries) = Journal::open(container.index_log())?;
        let index = Kv::open(container.kv_region(KvRole::Index), options.cache_bytes)?;
        let base = index.applied_in_base();
        for (lsn, bytes) in entries.into_iter().filter(|(lsn, _)| *lsn > base) {
            let edits = Edits::decode(&bytes).map_err(corrupt)?;
            index.apply(batch(edits), lsn);
        }
        journal.advance(base);
        let walk = walk(&container, &index)?;
        let space = Arc::new(Space { allocator: Mutex::new(walk.allocator) });
        let source: Arc<dyn ChunkSource> = Arc::clone(&space) as Arc<dyn ChunkSource>;
        container.set_chunk_source(&source);
        let superblock = container.superblock();
        let boot = next_boot(&index)?;
        let durable = journal.last().0;
        let store = Arc::new(BlockStore {
            disk: Arc::clone(container.disk()),
            _container: container,
            cluster: superblock.cluster,
            nsd: superblock.nsd,
            boot,
            observe: Arc::clone(&options.observe),
            options,
            journal,
            index,
            space,
            reclaim: Reclaim::default(),
            objects: [const { Mutex::new(()) }; OBJECT_LOCKS],
            order: Mutex::new(()),
            checkpointing: Mutex::new(()),
            unsettled: Mutex::new(walk.unsettled),
            trailers: Mutex::default(),
            strips: AtomicU64::new(walk.strips),
            committing: AtomicU64::new(durable),
            durable: AtomicU64::new(durable),
            failure: Mutex::new(None),
            epoch_min: AtomicU64::new(0),
            map_min: AtomicU64::new(0),
            worker: Mutex::new(None),
            #[cfg(test)]
            before_publish: Mutex::new(None),
        });
        store.note_boot()?;
        *store.worker.lock() = Some(Worker::start(&store)?);
        Ok(store)
    }

    /// Makes the boot number durable before anybody hears it, so that it is never given again.
    fn note_boot(&self) -> Result<()> {
        let mut edits = Edits::default();
        edits.put(BOOT_KEY, self.boot.to_le_bytes().to_vec());
        loop {
            match self.publish(|_| (edits.clone(), Vec::new())) {
                Err(error) if error.kind() == ErrorKind::NoSpace => self.make_room()?,
                other => break other?,
            }
        }
        self.make_durable()
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

/// Finds what is used, unsettled and how many strips there are.
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
        unsettled: BTreeSet::new(),
        strips: 0,
    };
    let mut damage = None;
    let from = [Table::Strip as u8; 1];
    index.scan(&from, &table_end(Table::Strip), &mut |key, value| {
        damage = visit(&mut walk, key, value).err();
        damage.is_none()
    })?;
    damage.map_or(Ok(walk), |damage| Err(corrupt(damage)))
}

fn visit(walk: &mut Walk, encoded: &[u8], value: &[u8]) -> std::result::Result<(), Damaged> {
    assert!(encoded.len() <= STRIP_KEY_BYTES, "no other keys are in the table");
    let key = parse_strip_key(Table::Strip, encoded).ok_or(Damaged("key of a strip"))?;
    let record = decode_strip(encoded, value)?;
    let twice = |NotFree(Extent { .. })| Damaged("space: two strips claim one unit");
    record.extents().try_for_each(|extent| walk.allocator.mark_used(extent).map_err(twice))?;
    if !record.current().settled {
        walk.unsettled.insert(key);
    }
    walk.strips += 1;
    Ok(())
}
