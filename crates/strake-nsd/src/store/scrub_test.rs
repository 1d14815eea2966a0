//! Flips bits in everything that is not a strip. The damage is found and mended. The rest is
//! salvaged.

use crate::store::store_test::*;
use crate::store::*;
use strake_env::rng::test_seeds;
use strake_env::{AlignedBuffer, Rng, SimDisk};
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::ScrubPart;
use strake_store::superblock::COPY_OFFSETS;

const OBJECTS: u64 = 12;
const BLOCKS: u64 = 20;

fn strip(object: u64, block: u64) -> AlignedBuffer {
    AlignedBuffer::from_slice(&vec![(object * 7 + block) as u8; 20 * UNIT_BYTES])
}

/// A store whose records fill some pages, and whose log is not empty.
fn filled(disk: &Arc<SimDisk>) -> Arc<BlockStore> {
    let store = format(disk, 1);
    let commit = || call(&store, &NsdRequest::Commit { settled: Vec::new() }, &[]).expect("commit");
    for object in 0..OBJECTS {
        for block in 0..BLOCKS {
            write(&store, key(object, block), version(1), &strip(object, block)).expect("room");
        }
        if object == OBJECTS - 2 {
            commit();
            store.checkpoint().expect("room");
        }
    }
    commit();
    store
}

fn scrub(store: &BlockStore) -> ScrubPart {
    let mut sum = ScrubPart::default();
    let mut part = Some(0);
    while let Some(at) = part {
        let NsdReply::Scrubbed(found) =
            call(store, &NsdRequest::Scrub { part: at }, &[]).expect("scrubs")
        else {
            panic!("another reply")
        };
        part = found.next;
        sum.bytes += found.bytes;
        sum.bad += found.bad;
        sum.mended += found.mended;
        sum.is_lost |= found.is_lost;
        assert_eq!(found.bad > 0, found.fault.is_some());
    }
    sum
}

/// The number of strips that are there. Each of them has the right contents.
fn held(store: &BlockStore) -> usize {
    let all = (0..OBJECTS).flat_map(|object| (0..BLOCKS).map(move |block| (object, block)));
    all.filter(|&(object, block)| {
        let found = read(store, key(object, block));
        found.is_some_and(|(_, bytes)| {
            assert_eq!(bytes, strip(object, block)[..]);
            true
        })
    })
    .count()
}

/// The place of a written byte of an area: superblock, log or index.
fn place(rng: &mut Rng, disk: &SimDisk, area: u64) -> u64 {
    let container = Container::open(disk.copy() as Arc<dyn Disk>).expect("good");
    let (from, to) = match area {
        0 => {
            let offset = COPY_OFFSETS[rng.index(2)];
            (offset, offset + 4096)
        }
        1 => (1 << 20, (1 << 20) + 40 * 4096),
        _ => {
            // The first chunk is the one in use.
            let chunk = container.superblock().index_kv.chunks[0];
            let range = container.geometry().chunk_range(chunk);
            (range.start, range.end)
        }
    };
    let mut bytes = AlignedBuffer::zeroed((to - from) as usize);
    disk.read_at(from, &mut bytes).expect("there");
    assert!(bytes.iter().any(|byte| *byte != 0), "area {area} holds something");
    loop {
        let at = rng.index(bytes.len());
        // Zeros may be bytes that were never written.
        if bytes[at] != 0 {
            return from + at as u64;
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_is_found_and_mended_while_in_use() {
    let (mut salvaged, mut mended) = (0, 0);
    for seed in test_seeds(0, 40) {
        let mut rng = Rng::new(seed);
        let disk = SimDisk::new(DISK_BYTES);
        let mut store = filled(&disk);
        if seed / 5 % 2 == 1 {
            store.index.forget_caches();
        }
        let sound = scrub(&store);
        assert!(sound.bad == 0 && sound.bytes > 0, "seed {seed}: {sound:?}");
        let place = place(&mut rng, &disk, (seed % 5).min(2));
        disk.flip(place, 1 << rng.below(8));
        let found = scrub(&store);
        let context = format!("seed {seed}, byte {place}: {found:?}");
        if found.is_lost {
            call(&store, &NsdRequest::Salvage, &[]).expect("salvaged");
            assert!(store.failure().is_some(), "{context}: it is to be opened again");
            drop(store);
            store = open(&disk);
            let left = held(&store);
            let all = (OBJECTS * BLOCKS) as usize;
            assert!(left < all && left + 80 > all, "{context}: {left} of {all} are left");
            salvaged += 1;
        } else {
            // A trimmed chunk of the log, or a page that was never written, holds nothing.
            assert_eq!(found.bad, found.mended, "{context}");
            assert_eq!(held(&store), (OBJECTS * BLOCKS) as usize, "{context}");
            mended += found.mended;
        }
        assert_eq!(scrub(&store).bad, 0, "{context}");
        check(&store);
        // The disk gives the same answers when it is opened again.
        let before = held(&store);
        drop(store);
        let store = open(&disk);
        check(&store);
        assert_eq!(held(&store), before, "{context}");
        write(&store, key(50, 1), version(2), &strip(1, 1)).expect("it goes on");
    }
    println!("{mended} pages mended, {salvaged} indexes salvaged");
    assert!(mended > 8 && salvaged > 0, "{mended} mended, {salvaged} salvaged");
}
