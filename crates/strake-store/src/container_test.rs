//! Tests containers through formatting, growth, damage and power cuts.

use super::*;
use crate::region::UnusedChunks;
use strake_env::{Rng, SimDisk};

fn options() -> FormatOptions {
    let cluster = ClusterId([9; 16]);
    FormatOptions { cluster, nsd: NsdId(4), fs: FsId(1), failure_group: 2, seed: 5 }
}

#[test]
fn regions_do_not_overlap_and_fit_whatever_the_length() {
    let mut rng = Rng::new(1);
    for length in (0..300)
        .map(|_| {
            let bits = 25 + rng.below(20);
            CONTAINER_BYTES_MIN + rng.below(1 << bits)
        })
        .chain([CONTAINER_BYTES_MIN, 64 << 20, 1 << 40, 20 << 40])
    {
        let length = length / 4096 * 4096;
        let geometry = Geometry::of(length).unwrap();
        assert!(COPY_OFFSETS[1] + SUPERBLOCK_BYTES as u64 <= MIB);
        assert_eq!(geometry.log_bytes % 4096, 0);
        assert_eq!(geometry.chunks_offset, MIB + 2 * geometry.log_bytes);
        assert!(geometry.chunk_bytes.is_power_of_two());
        assert!((MIB..=1024 * MIB).contains(&geometry.chunk_bytes));
        assert!(geometry.chunk_count >= 16, "length {length}");
        assert!(geometry.chunk_range(geometry.chunk_count - 1).end <= length);
    }
    assert_eq!(Geometry::of(CONTAINER_BYTES_MIN - 4096), None);
}

#[test]
fn a_container_is_found_as_it_was_made() {
    let disk = SimDisk::new(64 << 20);
    assert_eq!(Container::open(disk.clone()).err().unwrap().kind(), ErrorKind::NotFound);
    let made = Container::format(disk.clone(), &options()).unwrap();
    let found = Container::open(disk).unwrap();
    assert_eq!(made.superblock(), found.superblock());
    let superblock = found.superblock();
    assert_eq!((superblock.nsd, superblock.failure_group), (NsdId(4), 2));
    let owned = superblock.index_kv.chunks.len() as u32;
    assert_eq!(found.data_chunks().len() as u32, found.geometry().chunk_count - owned);
    assert_ne!(superblock.index_log_seed, superblock.metadata_log_seed);
}

#[test]
fn formatting_anew_wins_over_any_older_container() {
    let disk = SimDisk::new(64 << 20);
    let old = Container::format(disk.clone(), &options()).unwrap();
    for generation in 1..8 {
        old.update_superblock(|superblock| superblock.metadata_generation = generation).unwrap();
    }
    Container::format(disk.clone(), &FormatOptions { nsd: NsdId(5), ..options() }).unwrap();
    assert_eq!(Container::open(disk).unwrap().superblock().nsd, NsdId(5));
}

#[test]
fn identity_cannot_be_changed_and_bad_lists_are_refused() {
    let disk = SimDisk::new(64 << 20);
    let container = Container::format(disk, &options()).unwrap();
    container
        .update_superblock(|superblock| {
            superblock.nsd = NsdId(99);
            superblock.length = 1;
            superblock.metadata_holders = vec![NsdId(1), NsdId(2)];
        })
        .unwrap();
    let superblock = container.superblock();
    assert_eq!((superblock.nsd, superblock.length), (NsdId(4), 64 << 20));
    assert_eq!(superblock.metadata_holders.len(), 2);
    let twice = container.superblock().index_kv.chunks[0];
    for change in [vec![twice], vec![1_000_000], vec![1; 2]] {
        let error = container
            .update_superblock(|superblock| superblock.metadata_kv.chunks = change.clone())
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let holders = vec![NsdId(1); 17];
    let error = container
        .update_superblock(|superblock| superblock.metadata_holders = holders)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn after_any_crash_the_old_or_the_new_superblock_is_there() {
    let mut rng = Rng::new(3);
    let disk = SimDisk::new(64 << 20);
    let container = Container::format(disk.clone(), &options()).unwrap();
    disk.forget_log();
    let mut acknowledged = vec![(disk.position(), 0)];
    for generation in 1..20 {
        container
            .update_superblock(|superblock| superblock.metadata_generation = generation)
            .unwrap();
        acknowledged.push((disk.position(), generation));
    }
    let mut cuts = disk.power_cuts();
    for position in acknowledged[0].0..=disk.position() {
        cuts.advance(position);
        let least = acknowledged.iter().rfind(|(at, _)| *at <= position).unwrap().1;
        for _ in 0..20 {
            let found = Container::open(cuts.crash(&mut rng)).unwrap().superblock();
            let generation = found.metadata_generation;
            assert!((least..=least + 1).contains(&generation), "{generation} after {least}");
        }
    }
}

#[test]
fn a_damaged_copy_is_replaced_by_the_other() {
    let disk = SimDisk::new(64 << 20);
    let container = Container::format(disk.clone(), &options()).unwrap();
    container.update_superblock(|superblock| superblock.metadata_generation = 8).unwrap();
    // Sequence 3 lies in copy B.
    disk.flip(COPY_OFFSETS[1] + 100, 1);
    assert_eq!(Container::open(disk.clone()).unwrap().superblock().metadata_generation, 0);
    disk.flip(COPY_OFFSETS[0] + 100, 1);
    assert_eq!(Container::open(disk).err().unwrap().kind(), ErrorKind::Corrupt);
}

#[test]
fn resetting_the_metadata_empties_its_log_and_store() {
    let disk = SimDisk::new(64 << 20);
    let container = Container::format(disk, &options()).unwrap();
    let source = UnusedChunks::shared();
    container.set_chunk_source(&source);
    let kv = crate::Kv::open(container.kv_region(KvRole::Metadata), 1 << 20).unwrap();
    let (journal, _) = crate::Journal::open(container.metadata_log()).unwrap();
    let lsn = journal.append(b"entry").unwrap();
    let mut batch = crate::Batch::new();
    batch.put(&b"key"[..], &b"value"[..]);
    kv.apply(batch, lsn);
    journal.sync().unwrap();
    kv.checkpoint().unwrap();
    drop((kv, journal));
    container.reset_metadata().unwrap();
    assert!(crate::Journal::open(container.metadata_log()).unwrap().1.is_empty());
    let kv = crate::Kv::open(container.kv_region(KvRole::Metadata), 1 << 20).unwrap();
    assert_eq!(crate::KvRead::get(&kv, b"key").unwrap(), None);
    assert_eq!(kv.applied_in_base(), crate::Lsn(0));
}

/// Whoever keeps a journal of another form there meets nothing of before, and no neighbour.
#[test]
fn a_cleared_metadata_log_is_a_disk_of_zeros_of_its_own() {
    let disk = SimDisk::new(64 << 20);
    let container = Container::format(disk.clone(), &options()).unwrap();
    let log = container.metadata_log().into_disk();
    assert_eq!(log.len(), container.geometry().log_bytes);
    let filled = AlignedBuffer::from_slice(&vec![7; log.len() as usize]);
    log.write_at(0, &filled).unwrap();
    assert!(log.write_at(4096, &filled).is_err(), "beyond the end");
    assert!(log.read_at(log.len(), &mut AlignedBuffer::zeroed(4096)).is_err());
    container.clear_metadata().unwrap();
    let found = Container::open(disk.crash(disk.position(), &mut Rng::new(3))).unwrap();
    let mut bytes = AlignedBuffer::zeroed(log.len() as usize);
    bytes.fill(1);
    found.metadata_log().into_disk().read_at(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "it is durable");
    let owned = found.superblock().index_kv.chunks.clone();
    assert_eq!(owned, container.superblock().index_kv.chunks, "the index stays");
    Journal::open(found.index_log()).unwrap();
}

#[test]
fn a_container_without_a_source_cannot_grow_its_stores() {
    let disk = SimDisk::new(64 << 20);
    let container = Container::format(disk, &options()).unwrap();
    // The index KV has space from the start. The metadata KV must claim its space.
    assert!(crate::Kv::open(container.kv_region(KvRole::Index), 1 << 20).is_ok());
    let error = crate::Kv::open(container.kv_region(KvRole::Metadata), 1 << 20).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
}

#[test]
fn a_host_that_is_full_refuses_to_format() {
    let disk = SimDisk::new(64 << 20);
    disk.set_faults(|faults| faults.host_bytes_left = Some(5 << 20));
    let error = Container::format(disk, &options()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
}

/// A disk on a host; it counts the bytes written for the first time to a range.
struct Hosted {
    disk: Arc<SimDisk>,
    range: std::ops::Range<u64>,
    written: Mutex<std::collections::BTreeSet<u64>>,
}

impl Disk for Hosted {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        self.disk.read_at(offset, bytes)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        let pages = (offset..offset + bytes.len() as u64).step_by(4096);
        self.written.lock().extend(pages.filter(|page| self.range.contains(page)));
        self.disk.write_at(offset, bytes)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.disk.sync()
    }
    fn len(&self) -> u64 {
        self.disk.len()
    }
    fn discard(&self, offset: u64, length: u64) {
        self.disk.discard(offset, length);
    }
    fn is_hosted(&self) -> bool {
        true
    }
}

#[test]
fn on_a_host_the_log_of_a_copy_of_the_metadata_is_written_before_it_is_used() {
    let length = 300 << 20;
    let geometry = Geometry::of(length).unwrap();
    let start = MIB + geometry.log_bytes;
    let disk = Arc::new(Hosted {
        disk: SimDisk::new(length),
        range: start..start + geometry.log_bytes,
        written: Mutex::default(),
    });
    let container = Container::format(disk.clone(), &options()).unwrap();
    assert!(disk.written.lock().len() < 10, "not every disk has a copy");
    container.reset_metadata().unwrap();
    assert_eq!(disk.written.lock().len() as u64, geometry.log_bytes / 4096);
    let (journal, entries) = Journal::open(container.metadata_log()).unwrap();
    assert!(entries.is_empty());
    journal.append(b"an entry").unwrap();
    journal.sync().unwrap();
    drop(journal);
    let again = Container::open(disk).unwrap();
    assert_eq!(Journal::open(again.metadata_log()).unwrap().1.len(), 1);
}
