//! Tests patched strips: which patches are accepted, what readers see, what a power cut leaves, and
//! how damage shows.

use super::store_test::*;
use super::*;
use crate::record::DISPLACED_MAX;
use strake_env::disk::sim::{Fate, SimDisk};
use strake_env::{AlignedBuffer, Rng};
use strake_proto::FsId;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::{NsdCheckReply, SettledStripe, StripHeader};

fn bytes(seed: u64, units: usize) -> AlignedBuffer {
    let mut data = AlignedBuffer::zeroed(units * UNIT_BYTES);
    Rng::new(seed).fill(&mut data);
    data
}

fn commit(store: &BlockStore) {
    settle(store, &[]);
}

/// Makes a commit that names the blocks of object 1 that are settled, and their versions.
fn settle(store: &BlockStore, blocks: &[(u64, u64)]) {
    let settled = blocks.iter().map(|&(block, counter)| SettledStripe {
        fs: FsId(1),
        object: ObjectId(1),
        block: BlockIndex(block),
        version: version(counter),
        lacks: 0,
    });
    call(store, &NsdRequest::Commit { settled: settled.collect() }, &[]).expect("commit");
}

/// Writes a strip and commits it.
fn base(store: &BlockStore, key: StripKey, counter: u64, units: usize) -> Strip {
    let data = bytes(counter, units);
    write(store, key, version(counter), &data).expect("write");
    commit(store);
    Strip { version: version(counter), bytes: data.to_vec() }
}

/// Patches units of a strip with bytes that follow from the version.
fn change(store: &BlockStore, key: StripKey, base: &Strip, counter: u64, units: &[u32]) -> Strip {
    let data = bytes(counter, units.len());
    patch(store, key, (base, version(counter)), units, &data).expect("accepted");
    base.patched(version(counter), units, &data)
}

fn assert_holds(store: &BlockStore, key: StripKey, strip: &Strip) {
    let (found, bytes) = read_version(store, key, Some(strip.version)).expect("held");
    assert_eq!(found, strip.version);
    assert!(bytes == strip.bytes, "{key} at {} holds something else", strip.version);
}

/// Reads part of the newest version and verifies its checksums.
fn assert_range(store: &BlockStore, key: StripKey, strip: &Strip, units: std::ops::Range<usize>) {
    let mut out = vec![0; units.len() * UNIT_BYTES];
    let request = NsdRequest::Read {
        key,
        version: None,
        offset: (units.start * UNIT_BYTES) as u32,
        length: out.len() as u32,
    };
    let reply = store.call(NsdContext::default(), &request, &[], &mut out).expect("read");
    let NsdReply::Strip { checksums, .. } = reply else { panic!("{reply:?}") };
    let first = units.start as u32;
    let bad = strake_stripe::first_bad_unit(&key, strip.version, first, &out, &checksums);
    assert_eq!((bad, checksums.len()), (None, units.len()), "{units:?}");
    assert!(out == strip.bytes[units.start * UNIT_BYTES..units.end * UNIT_BYTES], "{units:?}");
}

fn checked(store: &BlockStore) -> NsdCheckReply {
    match call(store, &NsdRequest::Check { data: true }, &[]).expect("check") {
        NsdReply::Checked(found) => found,
        other => panic!("{other:?}"),
    }
}

/// The numbers of patches accepted and refused, and of bytes displaced.
fn counted(store: &BlockStore) -> (u64, u64, u64) {
    let found = store.observe.operations.snapshot();
    let found = found.iter().find(|operation| operation.name == "nsd patch");
    let of = |one: &strake_observe::OperationSnapshot| {
        (one.durations.count() - one.failures, one.failures, one.bytes)
    };
    found.map_or((0, 0, 0), of)
}

fn kind(reply: Result<NsdReply>) -> ErrorKind {
    reply.expect_err("refused").kind()
}

/// Runs with checksums in the record, and with checksums in a trailer.
#[test]
fn patches_are_read_back_settled_and_recovered() {
    for units in [12usize, 40] {
        let disk = SimDisk::new(DISK_BYTES);
        let store = format(&disk, 1);
        let key = key(1, 1);
        let first = base(&store, key, 1, units);
        let last = units as u32 - 1;
        let second = change(&store, key, &first, 2, &[0, 3, 4, 5, last]);
        commit(&store);
        let third = change(&store, key, &second, 3, &[]);
        commit(&store);
        let fourth = change(&store, key, &third, 4, &[1, 4, last]);
        let all = [&first, &second, &third, &fourth];
        for from in 0..units {
            for to in from + 1..=units {
                assert_range(&store, key, &fourth, from..to);
            }
        }
        let mut store = store;
        for _ in 0..2 {
            all.iter().for_each(|strip| assert_holds(&store, key, strip));
            let named = (units + record::trailer_units((units * UNIT_BYTES) as u32) as usize + 8)
                * UNIT_BYTES;
            assert_eq!(checked(&store).allocated, named as u64);
            commit(&store);
            drop(store);
            store = open(&disk.crash(disk.position(), &mut Rng::new(1)));
        }
        // Of units 4 and the last, two were displaced. The newer ones stay.
        let allocated = checked(&store).allocated;
        settle(&store, &[(1, 4)]);
        assert_holds(&store, key, &fourth);
        assert!(read_version(&store, key, Some(version(3))).is_none());
        assert_eq!(checked(&store).allocated, allocated - 2 * UNIT_BYTES as u64);
        let fifth = change(&store, key, &fourth, 5, &(0..=last).collect::<Vec<_>>());
        assert_holds(&store, key, &fifth);
        // A whole strip over patches. Then everything is deleted.
        base(&store, key, 6, 3);
        settle(&store, &[(1, 6)]);
        assert_eq!(checked(&store).allocated, 3 * UNIT_BYTES as u64);
        assert_eq!(counted(&store), (1, 0, (units * UNIT_BYTES) as u64));
        check(&store);
    }
}

#[test]
fn a_patch_of_anything_but_the_newest_stable_version_is_refused() {
    let store = format(&SimDisk::new(DISK_BYTES), 1);
    let (at, data) = (key(1, 1), bytes(9, 1));
    let nothing = Strip { version: version(1), bytes: vec![0; 20 * UNIT_BYTES] };
    let try_patch =
        |base: &Strip, counter| patch(&store, at, (base, version(counter)), &[3], &data);
    assert_eq!(kind(try_patch(&nothing, 2)), ErrorKind::NotBase);
    let first = base(&store, at, 3, 20);
    assert_eq!(
        kind(try_patch(&Strip { version: version(4), ..first.clone() }, 5)),
        ErrorKind::NotBase
    );
    assert_eq!(kind(try_patch(&first, 2)), ErrorKind::Stale, "it is above nothing");
    let longer = Strip { bytes: vec![0; 21 * UNIT_BYTES], ..first.clone() };
    assert_eq!(kind(try_patch(&longer, 4)), ErrorKind::NotBase);
    assert_eq!(kind(patch(&store, at, (&first, version(4)), &[20], &data)), ErrorKind::NotBase);
    let malformed = [(&[3u32, 3][..], 2), (&[4, 3], 2), (&[3, 4], 1), (&[], 1)];
    for (units, length) in malformed {
        let reply = patch(&store, at, (&first, version(4)), units, &bytes(1, length));
        assert_eq!(kind(reply), ErrorKind::Invalid, "{units:?}");
    }
    try_patch(&first, 4).expect("the base is stable");
    try_patch(&first, 4).expect("done already");
    let second = Strip { version: version(4), ..first.clone() };
    assert_eq!(kind(try_patch(&second, 5)), ErrorKind::NotBase, "no commit covers it");
    commit(&store);
    assert_eq!(kind(try_patch(&first, 5)), ErrorKind::NotBase, "there is something newer");
    let (fs, object, version) = (FsId(1), ObjectId(1), version(6));
    let (from, to) = (BlockIndex(0), BlockIndex::END);
    let delete = NsdRequest::DeleteRange { fs, object, from, to, version };
    call(&store, &delete, &[]).expect("deleted");
    assert_eq!(kind(try_patch(&second, 7)), ErrorKind::NotBase);
    let (accepted, refused, displaced) = counted(&store);
    assert_eq!((accepted, displaced), (2, 2 * UNIT_BYTES as u64));
    assert_eq!(refused, 12);
    commit(&store);
    assert_eq!(checked(&store).allocated, 0);
    check(&store);
}

/// A client crashed and asks again. Its new request says what is stable by now.
#[test]
fn what_is_stable_frees_what_is_older_when_a_patch_says_so() {
    let store = format(&SimDisk::new(DISK_BYTES), 1);
    let at = key(1, 1);
    let first = base(&store, at, 1, 20);
    let second = change(&store, at, &first, 2, &[1, 2]);
    commit(&store);
    let data = bytes(3, 1);
    let third = second.patched(version(3), &[2], &data);
    let seed = strake_stripe::ChecksumSeed::new(&at, version(3));
    let request = |stable: u64| NsdRequest::Patch {
        key: at,
        header: StripHeader { version: version(3), block_bytes: 20 * UNIT_BYTES as u32, lacks: 0 },
        base: version(2),
        units: vec![2],
        checksums: vec![seed.unit(2, &data)],
        stable: version(stable),
    };
    call(&store, &request(2), &data).expect("accepted");
    assert!(read_version(&store, at, Some(version(1))).is_none());
    assert_holds(&store, at, &second);
    call(&store, &request(3), &data).expect("done already");
    assert!(read_version(&store, at, Some(version(2))).is_none());
    assert_holds(&store, at, &third);
    commit(&store);
    // Those of the strip, of its trailer, and units 1 and 2.
    assert_eq!(checked(&store).allocated, 23 * UNIT_BYTES as u64);
    check(&store);
}

#[test]
fn a_strip_full_of_patches_and_an_index_short_of_space_take_no_more() {
    let store = format(&SimDisk::new(DISK_BYTES), 1);
    let at = key(1, 1);
    let mut strip = base(&store, at, 1, DISPLACED_MAX);
    let units: Vec<u32> = (0..DISPLACED_MAX as u32).collect();
    strip = change(&store, at, &strip, 2, &units[2..]);
    settle(&store, &[(1, 2)]);
    let data = bytes(1, 3);
    let three = patch(&store, at, (&strip, version(3)), &[0, 1, 200], &data);
    assert_eq!(kind(three), ErrorKind::NotBase);
    strip = change(&store, at, &strip, 3, &[0, 1]);
    settle(&store, &[(1, 3)]);
    assert_eq!(
        kind(patch(&store, at, (&strip, version(4)), &[0], &data[..UNIT_BYTES])),
        ErrorKind::NotBase
    );
    assert_holds(&store, at, &strip);
    // A whole strip ends this state.
    let mut strip = base(&store, at, 5, 20);
    settle(&store, &[(1, 5)]);
    strip = change(&store, at, &strip, 6, &[0]);
    commit(&store);
    // The index takes its reserve. Writers go on.
    let claim = || store.space.allocator.lock().claim_for_kv();
    while !store.space.allocator.lock().reserve_is_short() {
        claim().expect("the reserve is empty chunks");
        base(&store, key(2, 2), store.journal.last().0 + 7, 200);
    }
    let refused = patch(&store, at, (&strip, version(7)), &[0], &data[..UNIT_BYTES]);
    assert_eq!(kind(refused), ErrorKind::NotBase);
    write(&store, at, version(7), &bytes(7, 20)).expect("whole strips are taken");
}

/// The flag is durable before the first record that older programs cannot read.
#[test]
fn every_power_cut_around_a_first_patch_leaves_what_was_stable_and_a_flag_before_any_patch() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    let at = key(1, 1);
    let mut strips = vec![base(&store, at, 1, 20)];
    store.checkpoint().expect("checkpoint");
    assert!(!store.container.superblock().has_patches);
    disk.forget_log();
    let mut stable = vec![(0, 0)];
    for (counter, units) in [(2, &[0, 1, 7][..]), (3, &[1]), (4, &[]), (5, &[19])] {
        let newest = strips.last().expect("one");
        let next = change(&store, at, newest, counter, units);
        strips.push(next);
        match counter {
            3 => settle(&store, &[(1, 2)]),
            5 => settle(&store, &[(1, 4)]),
            _ => commit(&store),
        }
        stable.push((disk.position(), strips.len() - 1));
        if counter == 4 {
            store.checkpoint().expect("checkpoint");
        }
    }
    drop(store);
    let mut cuts = disk.power_cuts();
    let mut rng = Rng::new(7);
    let (mut images, mut with_flag) = (0, 0);
    for position in 0..=disk.position() {
        cuts.advance(position);
        let fates = 1u64 << cuts.unsynced().count().min(5);
        for kept in 0..fates + 3 {
            images += 1;
            let mut bit = 0;
            let image = match kept < fates {
                true => cuts.image(|_| {
                    bit += 1;
                    if kept >> ((bit - 1) % 5) & 1 == 1 { Fate::Kept } else { Fate::Lost }
                }),
                false => cuts.crash(&mut rng),
            };
            let store = open(&image);
            let record = store.record(&at).expect("index").expect("held");
            let flag = store.container.superblock().has_patches;
            assert!(flag || !record.is_patched(), "position {position}, {kept}");
            with_flag += u64::from(flag && !record.is_patched());
            let is_stable = |(from, _): &&(u64, usize)| *from <= position;
            let (_, least) = stable.iter().rfind(is_stable).expect("the first");
            assert!(record.current().version() >= strips[*least].version, "position {position}");
            for held in &record.versions {
                let strip = strips.iter().find(|strip| strip.version == held.version());
                assert_holds(&store, at, strip.expect("it was written"));
            }
            check(&store);
        }
    }
    println!("{images} images, {with_flag} with the flag alone");
    assert!(images > 150 && with_flag > 0, "{images} images, {with_flag} with the flag alone");
}

#[test]
fn damage_to_a_displaced_unit_is_found_and_costs_only_the_versions_that_have_it() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    let at = key(1, 1);
    let first = base(&store, at, 1, 20);
    let second = change(&store, at, &first, 2, &[3, 4]);
    commit(&store);
    let place = store.record(&at).expect("index").expect("held").current().displaced[1];
    disk.flip(place.extent().offset() + 17, 1);
    let found = checked(&store);
    assert_eq!((found.bad.as_slice(), found.faults.len()), (&[at][..], 1), "{:?}", found.faults);
    assert!(found.faults[0].contains("unit 4 does not match"), "{:?}", found.faults);
    assert_holds(&store, at, &first);
    assert_range(&store, at, &second, 0..4);
    let mut out = AlignedBuffer::zeroed(20 * UNIT_BYTES);
    let request = NsdRequest::Read { key: at, version: None, offset: 0, length: out.len() as u32 };
    let reply = store.call(NsdContext::default(), &request, &[], &mut out).expect("read");
    let NsdReply::Strip { checksums, .. } = reply else { panic!("{reply:?}") };
    let bad = strake_stripe::first_bad_unit(&at, version(2), 0, &out, &checksums);
    assert_eq!(bad, Some(4), "the reader sees it");
    // The place within the extents of a displaced unit belongs to nobody, so damage there is
    // harmless.
    let third = change(&store, at, &second, 3, &[4]);
    settle(&store, &[(1, 3)]);
    let record = store.record(&at).expect("index").expect("held");
    let extents = &record.oldest().whole.as_ref().expect("settled").extents;
    disk.flip(crate::extent::slice_of(extents, 4, 1)[0].offset(), 1);
    assert_holds(&store, at, &third);
    check(&store);
}

/// With a small journal and long records, checkpoints make room and nothing is lost.
#[test]
fn patches_fill_the_journal_and_go_on() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    let mut rng = Rng::new(3);
    let mut strips: Vec<Strip> = (0..3).map(|block| base(&store, key(1, block), 1, 240)).collect();
    let before = store.journal.capacity();
    let (mut written, mut counter) = (0, 1);
    while written < 3 * before {
        counter += 1;
        for (block, strip) in strips.iter_mut().enumerate() {
            let mut units: Vec<u32> = (0..4).map(|_| rng.below(240) as u32).collect();
            units.sort_unstable();
            units.dedup();
            *strip = change(&store, key(1, block as u64), strip, counter, &units);
            let record = store.record(&key(1, block as u64)).expect("index").expect("held");
            written += crate::record::encode_strip(b"key", &record).len() as u64;
        }
        settle(&store, &[(0, counter), (1, counter), (2, counter)]);
    }
    println!("{counter} patches of each strip");
    for store in [store, open(&disk.crash(disk.position(), &mut rng))] {
        for (block, strip) in strips.iter().enumerate() {
            assert_holds(&store, key(1, block as u64), strip);
        }
        check(&store);
    }
}

#[test]
fn patches_fill_the_disk_and_what_they_replace_makes_room() {
    let store = format(&SimDisk::new(DISK_BYTES), 1);
    let (at, other) = (key(1, 1), key(2, 0));
    let mut strip = base(&store, at, 1, 200);
    let mut counter = 1;
    // Whole strips take almost everything.
    while store.status().free > 300 * UNIT_BYTES as u64 {
        counter += 1;
        let units = 120.min(store.status().free as usize / UNIT_BYTES - 250);
        write(
            &store,
            StripKey { block: BlockIndex(counter), ..other },
            version(1),
            &bytes(1, units),
        )
        .expect("room");
    }
    commit(&store);
    let units: Vec<u32> = (0..100).collect();
    let mut full = 0;
    for _ in 0..20 {
        counter += 1;
        let data = bytes(counter, units.len());
        match patch(&store, at, (&strip, version(counter)), &units, &data) {
            Ok(_) => strip = strip.patched(version(counter), &units, &data),
            Err(error) => {
                assert!(
                    [ErrorKind::NoSpace, ErrorKind::NotBase].contains(&error.kind()),
                    "{error}"
                );
                full += 1;
                settle(&store, &[(1, strip.version.counter)]);
            }
        }
        commit(&store);
        assert_holds(&store, at, &strip);
    }
    assert!((3..18).contains(&full), "{full} of 20 found no room");
    check(&store);
}
