//! Damaged records, sums that do not add up, full disks, and disks that hang. The tests check what
//! the store reports, and that it goes on.

use super::store_test::*;
use super::*;
use crate::keys::STRIP_KEY_BYTES;
use crate::record::{Checksums, StripVersion, Whole, encode_strip};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use strake_env::disk::sim::SimDisk;
use strake_env::{AlignedBuffer, Rng};
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::{NsdCheckReply, SettledStripe};
use strake_proto::{FsId, StripIndex};

fn strip(seed: u64, units: usize) -> AlignedBuffer {
    let mut data = AlignedBuffer::zeroed(units * UNIT_BYTES);
    Rng::new(seed).fill(&mut data);
    data
}

fn commit(store: &BlockStore) -> Result<NsdReply> {
    call(store, &NsdRequest::Commit { settled: Vec::new() }, &[])
}

fn delete(store: &BlockStore, object: u64, blocks: std::ops::Range<u64>, counter: u64) {
    let request = NsdRequest::DeleteRange {
        fs: FsId(1),
        object: ObjectId(object),
        from: BlockIndex(blocks.start),
        to: BlockIndex(blocks.end),
        version: version(counter),
    };
    call(store, &request, &[]).expect("delete");
}

fn checked(store: &BlockStore) -> NsdCheckReply {
    match call(store, &NsdRequest::Check { data: true }, &[]).expect("check") {
        NsdReply::Checked(found) => found,
        other => panic!("{other:?}"),
    }
}

/// Puts a value under a key, as damage would.
fn plant(store: &BlockStore, key: &[u8], value: Vec<u8>) {
    let mut edits = Edits::default();
    edits.put(key, value);
    store.publish(&Ticket::OWN, |_| edits.into()).expect("journal");
    commit(store).expect("commit");
}

fn error_of_read(store: &BlockStore, key: StripKey) -> ErrorKind {
    let request = NsdRequest::Read { key, version: None, offset: 0, length: 0 };
    call(store, &request, &[]).expect_err("damaged").kind()
}

#[test]
fn a_damaged_record_is_one_lost_strip_and_not_a_lost_disk() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    for block in 0..6 {
        write(&store, key(1, block), version(1), &strip(block, 20)).expect("write");
    }
    commit(&store).expect("commit");
    let encoded = strip_key(Table::Strip, &key(1, 2));
    let mut value = store.index.get(&encoded).expect("index").expect("held").to_vec();
    value[20] ^= 1;
    plant(&store, &encoded, value);
    drop(store);
    for _ in 0..2 {
        let store = open(&disk);
        assert_eq!(error_of_read(&store, key(1, 2)), ErrorKind::Corrupt);
        assert!(read(&store, key(1, 1)).is_some());
        let found = checked(&store);
        assert_eq!((found.damaged, found.faults.len()), (1, 1), "{:?}", found.faults);
        assert_eq!(found.bad, [key(1, 2)]);
        // Commits, listings and deletions of other strips are not disturbed. Nothing is promised.
        let stripe = |block| SettledStripe {
            fs: FsId(1),
            object: ObjectId(1),
            block: BlockIndex(block),
            version: version(1),
            lacks: 0,
        };
        call(&store, &NsdRequest::Commit { settled: vec![stripe(1), stripe(2)] }, &[])
            .expect("commit");
        let refuse = NsdRequest::Refuse { key: key(1, 2), version: version(9) };
        assert_eq!(call(&store, &refuse, &[]).expect_err("unknown").kind(), ErrorKind::Corrupt);
    }
    let store = open(&disk);
    write(&store, key(1, 2), version(2), &strip(7, 3)).expect("mended");
    assert_eq!(read(&store, key(1, 2)).expect("there").1, strip(7, 3)[..]);
    check(&store);
}

#[test]
fn of_two_records_that_claim_a_unit_one_is_given_up_for_good() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    write(&store, key(1, 0), version(1), &strip(1, 20)).expect("write");
    write(&store, key(1, 1), version(1), &strip(2, 20)).expect("write");
    commit(&store).expect("commit");
    let first = store.record(&key(1, 0)).expect("index").expect("held");
    let encoded = strip_key(Table::Strip, &key(1, 1));
    plant(&store, &encoded, encode_strip(&encoded, &first));
    // Nobody can ask for this key.
    plant(&store, &[b'S'; STRIP_KEY_BYTES + 3], vec![1, 2, 3]);
    let found = checked(&store);
    assert_eq!(found.bad, [key(1, 1)], "the data is not its own: {:?}", found.faults);
    drop(store);
    let store = open(&disk);
    assert_eq!(error_of_read(&store, key(1, 1)), ErrorKind::Corrupt);
    let found = checked(&store);
    assert_eq!((found.damaged, found.faults.len()), (1, 1), "{:?}", found.faults);
    // When one strip is gone, the other must not claim units that by then belong to somebody else.
    delete(&store, 1, 0..1, 5);
    commit(&store).expect("commit");
    for block in 10..20 {
        write(&store, key(2, block), version(6), &strip(block, 20)).expect("write");
    }
    commit(&store).expect("commit");
    drop(store);
    let store = open(&disk);
    assert_eq!(error_of_read(&store, key(1, 1)), ErrorKind::Corrupt);
    for block in 10..20 {
        assert_eq!(read(&store, key(2, block)).expect("held").1, strip(block, 20)[..]);
    }
    delete(&store, 1, 1..2, 9);
    check(&store);
}

#[test]
fn space_that_leaks_and_space_used_twice_are_found() {
    let store = format(&SimDisk::new(DISK_BYTES), 1);
    write(&store, key(1, 0), version(1), &strip(1, 20)).expect("write");
    write(&store, key(1, 1), version(1), &strip(2, 3)).expect("write");
    let found = checked(&store);
    assert!(found.faults.is_empty(), "{:?}", found.faults);
    assert_eq!(found.allocated, (20 + 1 + 3) * UNIT_BYTES as u64);
    let leaked = store.space.allocator.lock().allocate(5).expect("space");
    assert_eq!(checked(&store).faults.len(), 1);
    leaked.iter().for_each(|&extent| store.space.allocator.lock().free(extent));
    assert!(checked(&store).faults.is_empty());
    let extent = store.record(&key(1, 1)).expect("index").expect("held").extents().next();
    let extent = extent.expect("units");
    store.space.allocator.lock().free(extent);
    assert_eq!(checked(&store).faults.len(), 2, "the sum, and the strip");
}

#[test]
fn tombstones_and_promises_are_checked() {
    let store = format(&SimDisk::new(DISK_BYTES), 1);
    delete(&store, 1, 0..10, 5);
    call(&store, &NsdRequest::Refuse { key: key(2, 0), version: version(3) }, &[])
        .expect("promise");
    let found = checked(&store);
    assert_eq!((found.tombstones, found.promises, found.faults.len()), (1, 1, 0));
    let held = StripVersion {
        header: strake_proto::nsd::StripHeader { version: version(4), block_bytes: 1, lacks: 0 },
        strip_bytes: UNIT_BYTES as u32,
        accepted: Lsn(1),
        settled: true,
        whole: Some(Whole {
            made: version(4),
            extents: store.space.allocator.lock().allocate(1).expect("space"),
            checksums: Checksums::Inline(vec![0]),
        }),
        displaced: Vec::new(),
    };
    let encoded = strip_key(Table::Strip, &key(1, 3));
    plant(&store, &encoded, encode_strip(&encoded, &StripRecord { versions: vec![held] }));
    plant(&store, &strip_key(Table::Promise, &key(2, 1)), vec![1]);
    let damaged = tombstone_key(FsId(1), ObjectId(3), BlockIndex(4));
    plant(&store, &damaged, vec![0; 29]);
    let faults = checked(&store).faults.join("; ");
    for part in ["below its tombstone", "promise", "tombstone of object 3"] {
        assert!(faults.contains(part), "{part} in {faults}");
    }
    // None of this stops writers. The next deletion replaces the damaged tombstone.
    write(&store, key(3, 1), version(7), &strip(1, 1)).expect("write");
    write(&store, key(2, 1), version(7), &strip(1, 1)).expect("write");
    delete(&store, 3, 0..9, 8);
    let faults = checked(&store).faults.join("; ");
    assert!(!faults.contains("object 3"), "{faults}");
}

#[test]
fn a_check_of_a_store_in_use_finds_no_faults() {
    let store = format(&SimDisk::new(DISK_BYTES), 1);
    let done = AtomicBool::new(false);
    strake_env::thread::scope(|scope| {
        for object in 1..4u64 {
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                let mut rng = Rng::new(object);
                let mut counter = 0;
                while !done.load(SeqCst) {
                    counter += 1;
                    let key = key(object, rng.below(400));
                    write(store, key, version(counter), &strip(1, 1 + rng.index(20)))
                        .expect("write");
                    if rng.one_in(20) {
                        let from = rng.below(400);
                        counter += 1;
                        delete(store, object, from..from + rng.below(100), counter);
                    }
                    if rng.one_in(10) {
                        commit(store).expect("commit");
                    }
                }
            });
        }
        let (mut checks, mut strips) = (0, 0);
        let mut faults = Vec::new();
        while faults.is_empty() && (checks < 40 || strips < 4000) {
            let found = checked(&store);
            faults = found.faults;
            strips += found.strips;
            checks += 1;
        }
        done.store(true, SeqCst);
        assert_eq!(faults, Vec::<String>::new());
    });
    check(&store);
}

#[test]
fn any_number_of_tombstones_is_laid_and_forgotten_in_entries_of_bounded_size() {
    const PIECES: u64 = 20_000;
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    // Every second block, so that no two are neighbours. Each costs at most three pieces.
    for piece in 0..PIECES {
        delete(&store, 1, 2 * piece..2 * piece + 1, 1 + piece);
    }
    assert_eq!(checked(&store).tombstones, PIECES);
    write(&store, key(1, 1), version(3), &strip(1, 1)).expect("between two");
    assert!(write(&store, key(1, 4), version(3), &strip(1, 1)).is_err());
    delete(&store, 1, 0..u64::MAX, PIECES + 1);
    assert_eq!(checked(&store).tombstones, 1, "neighbours of one version are one");
    assert_eq!(read(&store, key(1, 1)), None);
    for piece in 0..5000 {
        delete(&store, 1, 2 * piece..2 * piece + 1, PIECES + 2 + piece);
    }
    let forget = NsdRequest::ForgetTombstones {
        fs: FsId(1),
        object: ObjectId(1),
        version: version(2 * PIECES),
    };
    call(&store, &forget, &[]).expect("forget");
    assert_eq!(checked(&store).tombstones, 0);
    check(&store);
}

#[test]
fn promises_end_where_something_newer_refuses() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    let promise = |store: &BlockStore, key, counter| {
        let request = NsdRequest::Refuse { key, version: version(counter) };
        let reply = call(store, &request, &[]).expect("promise");
        assert_eq!(reply, NsdReply::Promise { refused: true });
    };
    for block in 0..4 {
        promise(&store, key(1, block), 5);
    }
    drop(store);
    let store = open(&disk);
    assert_eq!(store.promises.load(SeqCst), 4);
    // Block 0 is settled at a higher version, which refuses. Block 1 is not settled.
    write(&store, key(1, 0), version(6), &strip(1, 1)).expect("write");
    write(&store, key(1, 1), version(6), &strip(1, 1)).expect("write");
    let stripe = SettledStripe {
        fs: FsId(1),
        object: ObjectId(1),
        block: BlockIndex(0),
        version: version(6),
        lacks: 0,
    };
    call(&store, &NsdRequest::Commit { settled: vec![stripe] }, &[]).expect("commit");
    assert_eq!(checked(&store).promises, 3);
    // After the deletion the tombstone refuses, if it is at least as high as the promise.
    promise(&store, key(1, 3), 9);
    delete(&store, 1, 2..4, 7);
    assert_eq!(checked(&store).promises, 2);
    for (block, counter) in [(0, 5), (1, 5), (2, 5), (3, 9)] {
        assert!(write(&store, key(1, block), version(counter), &strip(1, 1)).is_err(), "{block}");
    }
    delete(&store, 1, 0..u64::MAX, 10);
    commit(&store).expect("commit");
    drop(store);
    let store = open(&disk);
    assert_eq!(checked(&store).promises, 0);
    assert_eq!(store.promises.load(SeqCst), 0);
}

#[test]
fn space_that_waits_for_a_commit_counts_as_free() {
    let store = format(&SimDisk::new(DISK_BYTES), 1);
    let free = |store: &BlockStore| store.status().free;
    let before = free(&store);
    write(&store, key(1, 1), version(1), &strip(1, 100)).expect("write");
    assert!(free(&store) < before);
    delete(&store, 1, 0..9, 2);
    assert_eq!(free(&store), before);
    commit(&store).expect("commit");
    assert_eq!(free(&store), before);
    check(&store);
}

/// The only free space waits for a reader that has not finished.
#[test]
fn a_writer_on_a_full_disk_waits_for_readers_of_freed_space() {
    let store = format(&SimDisk::new(DISK_BYTES), 1);
    let data = strip(1, 256);
    let full = (1..).find(|at| write(&store, key(*at, 0), version(1), &data).is_err());
    let full = full.expect("disks end");
    let reader = store.reclaim.read();
    delete(&store, 1, 0..9, 2);
    commit(&store).expect("commit");
    let waits = || store.observe.waiters.snapshot().len();
    strake_env::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&store, key(full, 0), version(3), &data));
        while waits() == 0 {
            strake_env::thread::yield_now();
        }
        drop(reader);
        writer.join().expect("no panic").expect("there is room");
    });
    check(&store);
}

#[test]
fn waits_for_a_hanging_disk_end_with_an_error_that_names_them() {
    let disk = SimDisk::new(DISK_BYTES);
    drop(format(&disk, 1));
    let container = Container::open(Arc::clone(&disk) as Arc<dyn Disk>).expect("container");
    let options = BlockStoreOptions {
        wait_limit: Duration::from_millis(20),
        ..BlockStoreOptions::new(&Observe::new(strake_env::RealClock::shared(), 16))
    };
    let store = BlockStore::open(container, options).expect("block store");
    write(&store, key(1, 1), version(1), &strip(1, 1)).expect("write");
    disk.set_faults(|faults| {
        faults.hang = true;
        faults.hang_limit = Some(Duration::from_secs(600));
    });
    strake_env::thread::scope(|scope| {
        let leader = scope.spawn(|| commit(&store));
        while store.observe.waiters.snapshot().is_empty() {
            strake_env::thread::yield_now();
        }
        // The leader is about to flush, or is flushing. From then on every other wait is bounded.
        // Before that, the second commit would lead and hang itself. So it begins only once the
        // entries are taken.
        while store.journal.is_idle() {
            strake_env::thread::yield_now();
        }
        let error = commit(&store).expect_err("it hangs");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("commit"), "{error}");
        let _checkpoint = store.checkpointing.lock();
        let error = store.make_room().expect_err("it hangs");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("journal"), "{error}");
        disk.set_faults(|faults| faults.hang = false);
        leader.join().expect("no panic").expect("it was only slow");
    });
    commit(&store).expect("and goes on");
    assert!(read(&store, key(1, 1)).is_some());
}

#[test]
fn who_waits_for_a_hanging_disk_names_it() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    write(&store, key(1, 1), version(1), &strip(1, 1)).expect("write");
    disk.set_faults(|faults| {
        faults.hang = true;
        faults.hang_limit = Some(Duration::from_secs(600));
    });
    strake_env::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&store, key(1, 2), version(1), &strip(1, 1)));
        let reader = scope.spawn(|| read(&store, key(1, 1)));
        for word in ["write, NSD 3", "read, NSD 3"] {
            let waits = || store.observe.waiters.snapshot();
            while !waits().iter().any(|wait| wait.detail.contains(word)) {
                strake_env::thread::yield_now();
            }
        }
        disk.set_faults(|faults| faults.hang = false);
        writer.join().expect("no panic").expect("it was only slow");
        assert!(reader.join().expect("no panic").is_some());
    });
    check(&store);
}

#[test]
fn a_failed_barrier_is_reported_and_nothing_is_called_stable_afterwards() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    write(&store, key(1, 1), version(1), &strip(1, 1)).expect("write");
    commit(&store).expect("commit");
    write(&store, key(1, 1), version(2), &strip(2, 1)).expect("write");
    disk.set_faults(|faults| faults.sync_failure = true);
    assert_eq!(commit(&store).expect_err("the barrier failed").kind(), ErrorKind::Io);
    disk.set_faults(|faults| faults.sync_failure = false);
    for _ in 0..3 {
        assert_eq!(commit(&store).expect_err("for good").kind(), ErrorKind::Io);
        let refuse = NsdRequest::Refuse { key: key(1, 9), version: version(9) };
        assert_eq!(call(&store, &refuse, &[]).expect_err("no promise").kind(), ErrorKind::Io);
        assert!(write(&store, key(1, 2), version(3), &strip(3, 1)).is_err());
        assert!(store.checkpoint().is_err());
    }
    assert!(read(&store, key(1, 1)).is_some(), "reading goes on");
    drop(store);
    for seed in 0..20 {
        let store = open(&disk.crash(disk.position(), &mut Rng::new(seed)));
        let (found, bytes) = read(&store, key(1, 1)).expect("version 1 was stable");
        assert_eq!(bytes[..], strip(found.counter, 1)[..]);
    }
}

/// A host that has no room for the container to grow into: full, not failed.
#[test]
fn a_full_host_is_no_space_and_deleting_still_works() {
    let disk = SimDisk::new(DISK_BYTES);
    // A host with a limit remembers what is reserved: the logs find their space later.
    disk.set_faults(|faults| faults.host_bytes_left = Some(DISK_BYTES));
    let store = format(&disk, 1);
    for block in 0..20 {
        write(&store, key(1, block), version(1), &strip(block, 20)).expect("write");
    }
    commit(&store).expect("commit");
    disk.set_faults(|faults| faults.host_bytes_left = Some(10 * UNIT_BYTES as u64));
    for _ in 0..3 {
        let error = write(&store, key(2, 0), version(2), &strip(1, 20)).expect_err("full");
        assert_eq!(error.kind(), ErrorKind::NoSpace);
    }
    // The index cannot grow either: it stays in memory and in the journal.
    for block in 0..400 {
        let refuse = NsdRequest::Refuse { key: key(3, block), version: version(9) };
        call(&store, &refuse, &[]).expect("small changes fit");
    }
    let _ = store.checkpoint();
    delete(&store, 1, 0..10, 3);
    commit(&store).expect("commit");
    disk.set_faults(|faults| faults.host_bytes_left = None);
    write(&store, key(2, 0), version(4), &strip(1, 20)).expect("the host has room again");
    store.checkpoint().expect("checkpoint");
    check(&store);
    assert!(read(&store, key(1, 15)).is_some());
    assert_eq!(store.strips.load(SeqCst), 11);
}

#[test]
fn strips_of_other_positions_of_a_block_are_left_alone_by_damage() {
    let store = format(&SimDisk::new(DISK_BYTES), 1);
    let other = StripKey { strip: StripIndex(9), ..key(1, 0) };
    write(&store, key(1, 0), version(1), &strip(1, 1)).expect("write");
    write(&store, other, version(1), &strip(2, 1)).expect("write");
    plant(&store, &strip_key(Table::Strip, &key(1, 0)), vec![7; 40]);
    let list = NsdRequest::List {
        fs: FsId(1),
        object: ObjectId(1),
        block: BlockIndex(0),
        strip: StripIndex(0),
        until: ObjectId(2),
        limit: 10,
    };
    match call(&store, &list, &[]).expect("list") {
        NsdReply::Strips { entries, more } => {
            let keys: Vec<_> = entries.iter().map(|entry| entry.key).collect();
            assert_eq!((keys, more), (vec![other], false));
        }
        reply => panic!("{reply:?}"),
    }
}

/// The place of the index's log: see `strake_store::container`.
fn log_range(disk: &SimDisk) -> std::ops::Range<u64> {
    let geometry =
        strake_store::container::Geometry::of(strake_env::Disk::len(disk)).expect("fits");
    1 << 20..(1 << 20) + geometry.log_bytes
}

fn overwrite_log(disk: &SimDisk, byte: u8) {
    let range = log_range(disk);
    let mut bytes = AlignedBuffer::zeroed((range.end - range.start) as usize);
    bytes.fill(byte);
    strake_env::Disk::write_at(disk, range.start, &bytes).expect("written");
    strake_env::Disk::sync(disk).expect("synced");
}

#[test]
fn a_log_of_which_nothing_is_left_is_a_lost_disk_and_not_an_empty_one() {
    for byte in [0, 0x5a] {
        let disk = SimDisk::new(DISK_BYTES);
        let store = format(&disk, 1);
        write(&store, key(1, 0), version(1), &strip(1, 20)).expect("write");
        commit(&store).expect("commit");
        drop(store);
        overwrite_log(&disk, byte);
        let container = Container::open(disk.clone()).expect("superblocks");
        let opened = BlockStore::open(container, BlockStoreOptions::new(&observe()));
        assert_eq!(opened.map(drop).expect_err("lost").kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn a_log_that_is_damaged_while_in_use_is_found_and_written_anew() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    for block in 0..6 {
        write(&store, key(1, block), version(1), &strip(block, 20)).expect("write");
        commit(&store).expect("commit");
    }
    assert!(checked(&store).faults.is_empty());
    overwrite_log(&disk, 0);
    let found = checked(&store).faults;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("the log was damaged at chunk"), "{found:?}");
    assert!(checked(&store).faults.is_empty());
    write(&store, key(1, 6), version(1), &strip(6, 20)).expect("write");
    commit(&store).expect("commit");
    // The process is gone without a checkpoint.
    let store = open(&disk.copy());
    for block in 0..7 {
        assert_eq!(read(&store, key(1, block)).expect("there").1, strip(block, 20)[..]);
    }
    check(&store);
}

#[test]
fn a_damaged_record_does_not_say_who_lacks_its_strip() {
    let store = format(&SimDisk::new(DISK_BYTES), 1);
    write(&store, key(1, 1), version(1), &AlignedBuffer::zeroed(UNIT_BYTES)).expect("written");
    let request = NsdRequest::ListLacking { positions: u32::MAX, after: None, limit: 9 };
    let none = NsdReply::Lacking { entries: Vec::new(), next: None };
    assert_eq!(call(&store, &request, &[]), Ok(none));
    plant(&store, &strip_key(Table::Strip, &key(1, 2)), vec![1; 40]);
    assert_eq!(call(&store, &request, &[]).expect_err("damaged").kind(), ErrorKind::Corrupt);
}
