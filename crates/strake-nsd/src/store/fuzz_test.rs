//! Damaged disks whose checksums agree, as another program, faulty memory or malice may leave them.
//! The test takes a real container with a base, a journal and strips. It changes a few bytes of the
//! superblocks, the journal or the pages. For superblocks and journal it mostly makes the checksum
//! anew, so that the code behind the checksum is reached. The disk opens or it does not. Nothing
//! panics or goes on for ever, and an opened store is used. `STRAKE_SIM_SCALE` multiplies the
//! number of inputs.

use super::store_test::*;
use super::*;
use crate::grants::{Ask, Grants};
use crate::keys::grant_key;
use strake_env::rng::{test_scale, test_seeds};
use strake_env::{AlignedBuffer, Rng, SimDisk};
use strake_proto::limits::UNIT_BYTES;
use strake_proto::{ClientId, Epoch, FsId, StripIndex};
use strake_store::superblock::{COPY_OFFSETS, SUPERBLOCK_BYTES};

/// The number of inputs of one seed.
const INPUTS: u64 = 40;
/// The place of the CRC32C in a superblock and in a chunk of the journal.
const CRC: std::ops::Range<usize> = 8..12;
/// The place of the length in a chunk of the journal.
const CHUNK_LENGTH: std::ops::Range<usize> = 12..16;
const CHUNK_BYTES_MAX: usize = 1 << 20;
/// The beginning of the index's journal.
const JOURNAL: u64 = 1 << 20;

/// A disk with something of every kind, and the blocks of its journal that begin a chunk.
fn base() -> (Arc<SimDisk>, Vec<u64>) {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    let commit = || call(&store, &NsdRequest::Commit { settled: Vec::new() }, &[]).expect("commit");
    let fill = |object: u64, counter: u64| {
        for (at, units) in [1, 3, 17, 40].into_iter().enumerate() {
            let strip = AlignedBuffer::from_slice(&vec![counter as u8; units * UNIT_BYTES]);
            write(&store, key(object, at as u64), version(counter), &strip).expect("room");
        }
    };
    (1..4).for_each(|object| fill(object, 1));
    commit();
    let patch_some = |object: u64, counter: u64| {
        for (at, units) in [(1, &[0u32, 2][..]), (2, &[]), (3, &[7, 8, 39])] {
            let (base, bytes) = read(&store, key(object, at)).expect("held");
            let data = vec![counter as u8; units.len() * UNIT_BYTES];
            let base = Strip { version: base, bytes };
            patch(&store, key(object, at), (&base, version(counter)), units, &data).expect("room");
        }
        commit();
    };
    patch_some(2, 2);
    patch_some(3, 2);
    patch_some(3, 3);
    let grant = |client: u64| {
        let (holder, ask) =
            ((ClientId(client), Epoch(1)), Ask { number: 1, need: 9, ..Ask::default() });
        let asked = |grants: &mut Grants, supply| grants.ask(holder, ask, supply);
        store.space.change_grants(&store.reclaim, asked).expect("few clients");
        let held = *store.space.grants().of(holder).expect("just granted");
        let key = grant_key(holder);
        let mut edits = Edits::default();
        edits.put(&key, record::encode_grant(&key, &held));
        store.publish(&Ticket::OWN, |_| edits.into()).expect("room");
    };
    grant(1);
    store.checkpoint().expect("written");
    grant(2);
    patch_some(2, 3);
    fill(1, 2);
    fill(4, 2);
    commit();
    let (fs, object, version) = (FsId(1), ObjectId(2), version(7));
    let (from, to) = (BlockIndex(1), BlockIndex(2));
    let request = NsdRequest::DeleteRange { fs, object, from, to, version };
    call(&store, &request, &[]).expect("deleted");
    call(&store, &NsdRequest::Refuse { key: key(9, 0), version }, &[]).expect("promised");
    commit();
    drop(store);
    let log = Container::open(disk.copy()).expect("good").geometry().log_bytes;
    let mut block = AlignedBuffer::zeroed(UNIT_BYTES);
    let mut chunks = Vec::new();
    for offset in (JOURNAL..JOURNAL + log).step_by(UNIT_BYTES) {
        disk.read_at(offset, &mut block).expect("there");
        if block.starts_with(b"STRAKEjl") {
            chunks.push(offset);
        }
    }
    assert!(chunks.len() > 3, "a journal with entries");
    (disk.copy(), chunks)
}

/// Writes `bytes` at `offset`, with at most four of its words below `limit` changed.
fn change(rng: &mut Rng, bytes: &mut [u8], limit: usize) {
    for _ in 0..=rng.below(4) {
        // Headers are small, and false values are most dangerous there.
        let limit = if rng.one_in(2) { limit.min(256) } else { limit };
        let at = rng.index(limit / 4) * 4;
        let word = u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let changed = match rng.below(5) {
            0 => rng.next_u64() as u32,
            1 => word ^ (1 << rng.below(32)),
            2 => word.wrapping_add(1),
            3 => word.wrapping_sub(1),
            _ => [0, u32::MAX, 1 << 31, 256][rng.index(4)],
        };
        bytes[at..at + 4].copy_from_slice(&changed.to_le_bytes());
    }
}

/// Changes `length` bytes that carry their own CRC32C. Makes the CRC anew if `is_mended`.
fn change_checked(rng: &mut Rng, disk: &SimDisk, offset: u64, length: usize, is_mended: bool) {
    let mut bytes = AlignedBuffer::zeroed(length);
    disk.read_at(offset, &mut bytes).expect("there");
    change(rng, &mut bytes, length);
    if is_mended {
        bytes[CRC].fill(0);
        let crc = crc32c::crc32c(&bytes);
        bytes[CRC].copy_from_slice(&crc.to_le_bytes());
    }
    disk.write_at(offset, &bytes).expect("written");
}

/// Changes a page of the index, or of its table of checksums. These inputs have no pages with a
/// checksum made anew, because the effects on the key-value engine are not bounded.
fn change_page(rng: &mut Rng, disk: &Arc<SimDisk>) {
    let container = Container::open(Arc::clone(disk) as Arc<dyn Disk>).expect("not yet changed");
    let chunks = container.superblock().index_kv.chunks.clone();
    let range = container.geometry().chunk_range(chunks[rng.index(chunks.len())]);
    let units = (range.end - range.start) / UNIT_BYTES as u64;
    // The first pages are the ones in use.
    let mut page = AlignedBuffer::zeroed(UNIT_BYTES);
    let at = range.start + rng.below(units.min(64)) * UNIT_BYTES as u64;
    disk.read_at(at, &mut page).expect("there");
    change(rng, &mut page, UNIT_BYTES);
    disk.write_at(at, &page).expect("written");
}

/// Opens the disk. If that succeeds, uses it. Returns whether it opened.
fn use_it(disk: &Arc<SimDisk>) -> bool {
    let Ok(container) = Container::open(Arc::clone(disk) as Arc<dyn Disk>) else { return false };
    let Ok(store) = BlockStore::open(container, BlockStoreOptions::new(&observe())) else {
        return false;
    };
    // It does not matter here whether any of this succeeds.
    for object in 1..5 {
        for block in 0..4 {
            let mut out = vec![0; 40 * UNIT_BYTES];
            let (key, length) = (key(object, block), out.len() as u32);
            let request = NsdRequest::Read { key, version: None, offset: 0, length };
            let _ = store.call(NsdContext::default(), &request, &[], &mut out);
        }
    }
    let (fs, object, block, strip) = (FsId(1), ObjectId(0), BlockIndex(0), StripIndex(0));
    let list = NsdRequest::List { fs, object, block, strip, until: ObjectId(u64::MAX), limit: 100 };
    let _ = call(&store, &list, &[]);
    let _ = call(&store, &NsdRequest::Check { data: true }, &[]);
    for (object, block, counter) in [(2, 3, 3), (3, 1, 3), (3, 3, 3)] {
        let base =
            Strip { version: version(counter), bytes: vec![0; [0, 3, 17, 40][block] * UNIT_BYTES] };
        let (key, data) = (key(object, block as u64), [6; UNIT_BYTES]);
        let _ = patch_after(&store, key, (&base, version(8)), &[2], &data, base.version);
    }
    let keys = store.crooked.lock().all();
    let _ = store.straighten(&keys);
    let strip = AlignedBuffer::from_slice(&[5; 2 * UNIT_BYTES]);
    let _ = write(&store, key(3, 1), version(9), &strip);
    let (from, to, version) = (BlockIndex(0), BlockIndex::END, version(9));
    let object = ObjectId(1);
    let _ = call(&store, &NsdRequest::DeleteRange { fs, object, from, to, version }, &[]);
    let _ = call(&store, &NsdRequest::Commit { settled: Vec::new() }, &[]);
    let _ = store.checkpoint();
    true
}

#[test]
fn disks_with_lies_under_good_checksums_never_panic() {
    let (disk, chunks) = base();
    assert!(use_it(&disk.copy()), "the disk is good before it is changed");
    let mut opened = 0;
    let mut inputs = 0;
    for seed in test_seeds(0, 5 * test_scale()) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        for _ in 0..INPUTS {
            let image = disk.copy();
            let is_mended = !rng.one_in(4);
            match rng.below(3) {
                0 => {
                    for offset in COPY_OFFSETS {
                        change_checked(&mut rng, &image, offset, SUPERBLOCK_BYTES, is_mended);
                    }
                }
                1 => {
                    let offset = chunks[rng.index(chunks.len())];
                    let mut head = AlignedBuffer::zeroed(UNIT_BYTES);
                    image.read_at(offset, &mut head).expect("there");
                    let length = head[CHUNK_LENGTH].try_into().map(u32::from_le_bytes);
                    let length = length.expect("four bytes") as usize;
                    assert!((UNIT_BYTES..=CHUNK_BYTES_MAX).contains(&length));
                    change_checked(&mut rng, &image, offset, length, is_mended);
                }
                _ => change_page(&mut rng, &image),
            }
            opened += u64::from(use_it(&image));
            inputs += 1;
        }
    }
    println!("{opened} of {inputs} could be opened");
    assert!(opened > inputs / 20 && opened < inputs, "{opened} of {inputs} were opened");
}
