//! Tests straightening. Each version reads as before at every moment, even after a power cut or
//! other changes of the strip.

use super::super::store_test::*;
use super::super::*;
use super::soon_units;
use strake_env::disk::sim::{Fate, SimDisk};
use strake_env::{AlignedBuffer, Rng};
use strake_proto::FsId;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::SettledStripe;

fn bytes(seed: u64, units: usize) -> AlignedBuffer {
    let mut data = AlignedBuffer::zeroed(units * UNIT_BYTES);
    Rng::new(seed).fill(&mut data);
    data
}

/// A commit that settles the strip's stripe at a version.
fn settle(store: &BlockStore, StripKey { fs, object, block, .. }: StripKey, version: Version) {
    let settled = vec![SettledStripe { fs, object, block, version, lacks: 0 }];
    call(store, &NsdRequest::Commit { settled }, &[]).expect("commit");
}

/// Writes and settles a strip.
fn base(store: &BlockStore, key: StripKey, counter: u64, units: usize) -> Strip {
    let data = bytes(counter, units);
    write(store, key, version(counter), &data).expect("write");
    settle(store, key, version(counter));
    Strip { version: version(counter), bytes: data.to_vec() }
}

fn change(store: &BlockStore, key: StripKey, base: &Strip, counter: u64, units: &[u32]) -> Strip {
    let data = bytes(counter, units.len());
    patch(store, key, (base, version(counter)), units, &data).expect("accepted");
    base.patched(version(counter), units, &data)
}

/// Like `change`, and settles the new version.
fn settled(store: &BlockStore, key: StripKey, base: &Strip, counter: u64, units: &[u32]) -> Strip {
    let strip = change(store, key, base, counter, units);
    settle(store, key, strip.version);
    strip
}

fn assert_holds(store: &BlockStore, key: StripKey, strip: &Strip) {
    let (_, bytes) = read_version(store, key, Some(strip.version)).expect("held");
    assert!(bytes == strip.bytes, "{key} at {} holds something else", strip.version);
}

fn record(store: &BlockStore, key: StripKey) -> StripRecord {
    store.record(&key).expect("index").expect("held")
}

#[test]
fn displaced_units_go_back_and_leave_nothing_behind() {
    for units in [12usize, 40] {
        let disk = SimDisk::new(DISK_BYTES);
        let store = format(&disk, 1);
        let at = key(1, 1);
        let first = base(&store, at, 1, units);
        let used = store.space.allocator.lock().used();
        let second = settled(&store, at, &first, 2, &[0, 1, 5, units as u32 - 1]);
        let third = change(&store, at, &second, 3, &[1, 6]);
        assert_eq!(store.crooked.lock().all(), [at]);
        assert_eq!(straighten(&store), 4);
        assert_eq!(store.crooked.lock().all(), []);
        let straight = record(&store, at);
        assert_eq!((straight.oldest().displaced.len(), straight.displaced_units()), (0, 2));
        for strip in [&second, &third] {
            assert_holds(&store, at, strip);
        }
        settle(&store, at, version(3));
        assert_eq!(straighten(&store), 2);
        assert_eq!(straighten(&store), 0);
        assert_holds(&store, at, &third);
        settle(&store, at, version(3));
        assert_eq!(store.space.allocator.lock().used(), used);
        check(&store);
        drop(store);
        let store = open(&disk.crash(disk.position(), &mut Rng::new(1)));
        assert_eq!(store.crooked.lock().all(), []);
        assert_holds(&store, at, &third);
        // Its checksums are still those seeded with the first version.
        assert_eq!(record(&store, at).oldest().whole.as_ref().expect("whole").made, version(1));
        let fourth = settled(&store, at, &third, 4, &[1]);
        assert_holds(&store, at, &fourth);
        check(&store);
    }
}

/// Does something between the writing and the publishing. Returns the record held afterwards.
type Meanwhile = fn(&BlockStore, &Strip) -> Option<Strip>;

fn delete_and_fill(store: &BlockStore) {
    let (fs, object, version) = (FsId(1), ObjectId(1), version(3));
    let (from, to) = (BlockIndex(0), BlockIndex::END);
    let request = NsdRequest::DeleteRange { fs, object, from, to, version };
    call(store, &request, &[]).expect("deleted");
    // Other strips would take the space if they could.
    for block in 0..20 {
        base(store, key(2, block), 1 + block, 20);
    }
}

#[test]
fn what_happens_to_a_strip_meanwhile_is_not_undone() {
    let at = key(1, 1);
    let cases: [(&str, u64, Meanwhile); 6] = [
        ("nothing", 3, |_, strip| Some(strip.clone())),
        ("a patch", 3, |store, strip| Some(change(store, key(1, 1), strip, 3, &[1, 2]))),
        ("a settled patch", 2, |store, strip| Some(settled(store, key(1, 1), strip, 3, &[1, 2]))),
        ("a patch of all", 0, |store, strip| Some(settled(store, key(1, 1), strip, 3, &[1, 5, 9]))),
        ("a whole strip", 0, |store, strip| {
            Some(base(store, key(1, 1), 3, strip.bytes.len() / UNIT_BYTES))
        }),
        ("a deletion", 0, |store, _| {
            delete_and_fill(store);
            None
        }),
    ];
    for units in [20usize, 16] {
        for (name, moved, meanwhile) in cases {
            println!("{name}, {units} units");
            let disk = SimDisk::new(DISK_BYTES);
            let store = format(&disk, 1);
            let first = base(&store, at, 1, units);
            let second = settled(&store, at, &first, 2, &[1, 5, 9]);
            let left = Arc::new(Mutex::new(None));
            let noted = Arc::clone(&left);
            *store.before_publish.lock() =
                Some(Box::new(move |store| *noted.lock() = Some(meanwhile(store, &second))));
            assert_eq!(straighten(&store), moved);
            let left = left.lock().take().expect("it happened");
            let compare = |store: &BlockStore| {
                assert_eq!(read(store, at).is_some(), left.is_some());
                left.iter().for_each(|strip| assert_holds(store, at, strip));
                for block in (0..20).filter(|_| left.is_none()) {
                    let (_, found) = read(store, key(2, block)).expect("held");
                    assert!(found == bytes(1 + block, 20)[..], "{block}");
                }
                check(store);
            };
            compare(&store);
            call(&store, &NsdRequest::Commit { settled: Vec::new() }, &[]).expect("commit");
            compare(&store);
            drop(store);
            compare(&open(&disk.crash(disk.position(), &mut Rng::new(2))));
        }
    }
}

/// Cuts the power at every position of straightening, the commit after it, and new patches.
#[test]
fn every_power_cut_leaves_each_version_as_it_was() {
    for units in [10usize, 40] {
        let disk = SimDisk::new(DISK_BYTES);
        let store = format(&disk, 1);
        let keys = [key(1, 0), key(1, 1)];
        let mut strips: Vec<(StripKey, Strip)> = Vec::new();
        let mut newest = Vec::new();
        for at in keys {
            let first = base(&store, at, 1, units);
            let second = change(&store, at, &first, 2, &[0, 1, 7]);
            strips.extend([(at, first), (at, second.clone())]);
            newest.push(second);
        }
        disk.forget_log();
        let mut stable = vec![(0, 1)];
        for counter in [3, 14, 25] {
            for (at, strip) in keys.iter().zip(&mut newest) {
                settle(&store, *at, strip.version);
                *strip = change(&store, *at, strip, counter, &[0, 3, counter as u32 % 10 + 1]);
                strips.push((*at, strip.clone()));
            }
            call(&store, &NsdRequest::Commit { settled: Vec::new() }, &[]).expect("commit");
            stable.push((disk.position(), counter));
            // The change that makes the last version the oldest is not durable yet.
            for (at, strip) in keys.iter().zip(&mut newest) {
                let (counter, data) = (counter + 10, bytes(counter + 10, 1));
                let next = strip.patched(version(counter), &[8], &data);
                let base = (&*strip, next.version);
                patch_after(&store, *at, base, &[8], &data, strip.version).expect("accepted");
                strips.push((*at, next.clone()));
                *strip = next;
            }
            assert!(straighten(&store) >= 4);
            if counter == 14 {
                store.checkpoint().expect("checkpoint");
            }
        }
        for (at, strip) in keys.iter().zip(&newest) {
            settle(&store, *at, strip.version);
        }
        assert_eq!(straighten(&store), 2);
        call(&store, &NsdRequest::Commit { settled: Vec::new() }, &[]).expect("commit");
        drop(store);
        let mut cuts = disk.power_cuts();
        let mut rng = Rng::new(units as u64);
        let mut images = 0;
        for position in 0..=disk.position() {
            cuts.advance(position);
            let fates = 1u64 << cuts.unsynced().count().min(4);
            for kept in 0..fates + 3 {
                images += 1;
                let mut bit = 0;
                let image = match kept < fates {
                    true => cuts.image(|_| {
                        bit += 1;
                        if kept >> ((bit - 1) % 4) & 1 == 1 { Fate::Kept } else { Fate::Lost }
                    }),
                    false => cuts.crash(&mut rng),
                };
                let store = open(&image);
                let (_, least) = stable.iter().rfind(|(from, _)| *from <= position).expect("one");
                for at in keys {
                    let record = record(&store, at);
                    assert!(record.current().version() >= version(*least), "at {position}");
                    for held in &record.versions {
                        let is_it = |(key, strip): &&(StripKey, Strip)| {
                            *key == at && strip.version == held.version()
                        };
                        assert_holds(&store, at, &strips.iter().find(is_it).expect("written").1);
                    }
                }
                check(&store);
            }
        }
        println!("{images} images");
        assert!(images > 300, "{images} images");
    }
}

#[test]
fn a_reader_that_came_before_the_patch_is_waited_for() {
    let disk = SimDisk::new(DISK_BYTES);
    drop(format(&disk, 1));
    let container = Container::open(Arc::clone(&disk) as Arc<dyn Disk>).expect("container");
    let options = BlockStoreOptions {
        wait_limit: std::time::Duration::from_millis(1),
        straighten_delay: std::time::Duration::MAX,
        ..BlockStoreOptions::new(&observe())
    };
    let store = BlockStore::open(container, options).expect("block store");
    let at = key(1, 1);
    let first = base(&store, at, 1, 20);
    let early = store.reclaim.read();
    let second = settled(&store, at, &first, 2, &[3]);
    let mut unit = AlignedBuffer::zeroed(UNIT_BYTES);
    let part = |strip: &Strip, at: usize| strip.bytes[at * UNIT_BYTES..][..UNIT_BYTES].to_vec();
    let mut its_place = |store: &BlockStore, at_unit: u64| {
        let whole = record(store, at).oldest().whole.clone().expect("whole");
        let place = crate::extent::slice_of(&whole.extents, at_unit, 1)[0];
        disk.read_at(place.offset(), &mut unit).expect("there");
        unit.to_vec()
    };
    assert_eq!(straighten(&store), 0);
    assert!(its_place(&store, 3) == part(&first, 3), "as it found it");
    drop(early);
    // Units displaced after the look wait for the next turn, because readers may be reading them.
    let seen = record(&store, at).oldest().clone();
    let third = settled(&store, at, &second, 3, &[7]);
    assert_eq!(store.straighten_strip(&at, Some(&seen)).expect("good"), Some(1));
    assert!(its_place(&store, 3) == part(&second, 3));
    assert!(its_place(&store, 7) == part(&first, 7));
    assert_eq!(straighten(&store), 1);
    assert!(its_place(&store, 7) == part(&third, 7));
    check(&store);
}

/// Readers hold what they found. All versions are read all the time, while the worker only
/// straightens.
#[test]
fn readers_and_patches_of_a_strip_that_is_straightened_all_the_time_see_each_version_whole() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let moved = AtomicU64::new(0);
    let keys = [key(1, 0), key(2, 1)];
    // Few enough that five versions together stay within a strip's limit.
    let units = [14usize, 40];
    let all: Vec<Mutex<Vec<Strip>>> = keys
        .iter()
        .zip(units)
        .map(|(at, units)| Mutex::new(vec![base(&store, *at, 1, units)]))
        .collect();
    strake_env::thread::scope(|scope| {
        for at in 0..2 {
            let (store, all, is_done, moved) = (&store, &all[at], &is_done, &moved);
            scope.spawn(move || {
                let mut rng = Rng::new(at as u64);
                while !is_done.load(SeqCst) {
                    let strips = all.lock().clone();
                    let strip = &strips[rng.index(strips.len())];
                    // The version may have gone meanwhile.
                    let found = read_version(store, keys[at], Some(strip.version));
                    assert!(found.is_none_or(|(_, bytes)| bytes == strip.bytes));
                }
            });
            scope.spawn(move || {
                let mut rng = Rng::new(9 + at as u64);
                // The patches go on until the worker has had its share.
                let counters = (2..).take_while(|at| *at < 200 || moved.load(SeqCst) < 300);
                for counter in counters {
                    let newest = all.lock().last().expect("one").clone();
                    let few = 1 + rng.below(8);
                    let chosen: Vec<u32> =
                        (0..units[at] as u32).filter(|_| rng.one_in(few)).collect();
                    // The reader knows of the version before it can be found.
                    let data = bytes(counter, chosen.len());
                    all.lock().push(newest.patched(version(counter), &chosen, &data));
                    patch(store, keys[at], (&newest, version(counter)), &chosen, &data)
                        .expect("the base is stable");
                    if rng.one_in(2) {
                        settle(store, keys[at], version(counter));
                        let mut all = all.lock();
                        let from = all.len().saturating_sub(3);
                        all.drain(..from);
                    } else {
                        let commit = NsdRequest::Commit { settled: Vec::new() };
                        call(store, &commit, &[]).expect("commit");
                    }
                }
                is_done.store(true, SeqCst);
            });
        }
        let store = &store;
        while !is_done.load(SeqCst) {
            moved.fetch_add(straighten(store), SeqCst);
        }
    });
    check(&store);
    straighten(&store);
    check(&store);
}

/// The worker straightens long lists soon, and short ones once the disk is idle. It counts both.
#[test]
fn the_worker_straightens_by_itself_and_is_counted() {
    let disk = SimDisk::new(DISK_BYTES);
    drop(format(&disk, 1));
    let open_with = |straighten_delay| {
        let container = Container::open(Arc::clone(&disk) as Arc<dyn Disk>).expect("container");
        let options = BlockStoreOptions { straighten_delay, ..BlockStoreOptions::new(&observe()) };
        BlockStore::open(container, options).expect("block store")
    };
    let wait_until_straight = |store: &BlockStore, key| {
        while !record(store, key).oldest().displaced.is_empty() {
            strake_env::thread::yield_now();
        }
    };
    let hour = std::time::Duration::from_secs(3600);
    let store = open_with(hour);
    let (few, many) = (key(1, 0), key(1, 1));
    let strip = base(&store, few, 1, 80);
    settled(&store, few, &strip, 2, &[1]);
    let strip = base(&store, many, 1, 80);
    let units: Vec<u32> = (0..soon_units((80 * UNIT_BYTES) as u32) as u32).collect();
    let strip = settled(&store, many, &strip, 2, &units);
    wait_until_straight(&store, many);
    assert_holds(&store, many, &strip);
    assert_eq!(store.crooked.lock().all(), [few], "it waits for the disk to be idle");
    let counted = store.observe.operations.snapshot();
    let counted = counted.iter().find(|one| one.name == "nsd straighten").expect("counted");
    let expected = (1, (units.len() * UNIT_BYTES) as u64);
    assert_eq!((counted.durations.count(), counted.bytes), expected);
    drop(store);
    let store = open_with(std::time::Duration::from_millis(1));
    wait_until_straight(&store, few);
    check(&store);
}

#[test]
fn a_damaged_displaced_unit_stays_where_it_is_and_the_others_are_straightened() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    let (bad, good) = (key(1, 0), key(1, 1));
    for at in [bad, good] {
        let strip = base(&store, at, 1, 20);
        settled(&store, at, &strip, 2, &[3, 4]);
    }
    let place = record(&store, bad).oldest().displaced[1];
    disk.flip(place.extent().offset() + 9, 1);
    assert_eq!(straighten(&store), 2);
    assert_eq!(record(&store, bad).oldest().displaced.len(), 2);
    assert_eq!(store.crooked.lock().all(), [], "it is not tried again and again");
    match call(&store, &NsdRequest::Check { data: true }, &[]).expect("check") {
        NsdReply::Checked(found) => assert_eq!(found.bad, [bad], "the damage still shows"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_full_disk_and_a_full_journal_leave_strips_as_they_are_or_straight() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    let at = key(1, 0);
    let strip = base(&store, at, 1, 40);
    let strip = settled(&store, at, &strip, 2, &[3, 4]);
    let mut taken = Vec::new();
    while let Some(extents) = store.space.allocate(None, &store.reclaim, 1) {
        taken.extend(extents);
    }
    assert_eq!(straighten(&store), 0, "there is no room for a trailer");
    assert_holds(&store, at, &strip);
    store.space.give_back(None, &taken);
    // Only a writer that needs room in the journal makes it.
    store.checkpointer.lock().take().expect("started").stop();
    for length in [20_000, 500, 1] {
        let mut edits = Edits::default();
        edits.put(crate::keys::BOOT_KEY, vec![0; length]);
        while store.publish(&Ticket::OWN, |_| edits.clone().into()).is_ok() {}
    }
    let used = store.journal.used();
    assert_eq!(straighten(&store), 2);
    assert!(store.journal.used() < used, "it made room");
    assert_holds(&store, at, &strip);
    check(&store);
}

/// Folding writes to new extents, so a reader of the old ones is not waited for, and what it reads
/// stays.
#[test]
fn a_strip_of_which_much_is_displaced_is_folded_while_others_read_it() {
    for units in [12usize, 40] {
        let disk = SimDisk::new(DISK_BYTES);
        let store = format(&disk, 1);
        let at = key(1, 1);
        let first = base(&store, at, 1, units);
        let few: Vec<u32> = (0..units as u32 / 4 - 1).collect();
        let second = settled(&store, at, &first, 2, &few);
        let extents = |store: &BlockStore| {
            let oldest = record(store, at).oldest().clone();
            oldest.whole.expect("settled").extents
        };
        let before = extents(&store);
        let strip = |extents: &[Extent]| crate::extent::slice_of(extents, 0, units as u64);
        assert_eq!(straighten(&store), few.len() as u64);
        assert_eq!(strip(&extents(&store)), strip(&before), "written into place");
        let many: Vec<u32> = (0..units as u32 / 4).map(|unit| 2 * unit).collect();
        let third = settled(&store, at, &second, 3, &many);
        let before = extents(&store);
        let early = store.reclaim.read();
        assert_eq!(straighten(&store), many.len() as u64);
        assert_ne!(strip(&extents(&store)), strip(&before), "folded");
        call(&store, &NsdRequest::Commit { settled: Vec::new() }, &[]).expect("commit");
        // Other strips would take the space if they could.
        for block in 0..20 {
            base(&store, key(2, block), 1 + block, 20);
        }
        let mut unit = AlignedBuffer::zeroed(UNIT_BYTES);
        disk.read_at(before[0].offset() + UNIT_BYTES as u64, &mut unit).expect("there");
        assert!(unit[..] == second.bytes[UNIT_BYTES..2 * UNIT_BYTES], "as the reader found it");
        drop(early);
        assert_holds(&store, at, &third);
        check(&store);
    }
}

#[test]
fn a_bad_place_between_two_units_hides_neither() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    let at = key(1, 1);
    let first = base(&store, at, 1, 40);
    let second = settled(&store, at, &first, 2, &[1, 9, 17]);
    let third = settled(&store, at, &second, 3, &[9]);
    let displaced = record(&store, at).oldest().displaced.clone();
    assert_eq!(crate::gather::gather(&displaced).len(), 1, "one read for all");
    let between = displaced[0].place + 1;
    assert!(displaced.iter().all(|one| one.place != between));
    let bad = between * UNIT_BYTES as u64..(between + 1) * UNIT_BYTES as u64;
    disk.set_faults(|faults| faults.read_errors.push(bad));
    assert_holds(&store, at, &third);
}

/// Displaced units take space twice. When space is short, no strip waits for an idle disk.
#[test]
fn a_disk_that_is_short_of_space_gets_back_what_is_displaced() {
    let disk = SimDisk::new(DISK_BYTES);
    drop(format(&disk, 1));
    let container = Container::open(Arc::clone(&disk) as Arc<dyn Disk>).expect("container");
    let straighten_delay = std::time::Duration::from_secs(3600);
    let options = BlockStoreOptions { straighten_delay, ..BlockStoreOptions::new(&observe()) };
    let store = BlockStore::open(container, options).expect("block store");
    let at = key(1, 1);
    let strip = base(&store, at, 1, 80);
    let strip = settled(&store, at, &strip, 2, &(0..30).collect::<Vec<_>>());
    let mut taken = Vec::new();
    while store.space.allocator.lock().free_for_data() > 100 {
        taken.extend(store.space.allocate(None, &store.reclaim, 1).expect("there is space"));
    }
    while !record(&store, at).oldest().displaced.is_empty() {
        strake_env::thread::yield_now();
    }
    assert_holds(&store, at, &strip);
    store.space.give_back(None, &taken);
    check(&store);
}
