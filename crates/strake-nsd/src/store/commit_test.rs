//! Tests the meaning of "stable": a version that a commit covered stays readable until it is
//! settled, at every moment and after every power cut.

use crate::store::store_test::*;
use crate::store::*;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use strake_env::disk::sim::{Fate, SimDisk};
use strake_env::{AlignedBuffer, Rng};
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::{SettledStripe, StripHeader};
use strake_stripe::checksum::strip_checksums;

/// One unit that holds the number of its version.
fn strip(counter: u64) -> AlignedBuffer {
    let mut data = AlignedBuffer::zeroed(UNIT_BYTES);
    Rng::new(counter).fill(&mut data);
    data
}

fn commit(store: &BlockStore) -> Result<NsdReply> {
    call(store, &NsdRequest::Commit { settled: Vec::new() }, &[])
}

/// True if exactly this version is there, with its bytes.
fn holds(store: &BlockStore, counter: u64) -> bool {
    match read_version(store, key(1, 1), Some(version(counter))) {
        Some((found, bytes)) => found == version(counter) && bytes[..] == strip(counter)[..],
        None => false,
    }
}

/// Regression: a writer looked at which entries commits cover. Then a commit covered version 2.
/// Then the writer dropped version 2 as never acknowledged.
#[test]
fn a_commit_between_a_writers_look_and_its_place_in_the_order_is_seen() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    write(&store, key(1, 1), version(1), &strip(1)).expect("write");
    commit(&store).expect("commit");
    write(&store, key(1, 1), version(2), &strip(2)).expect("write");
    let committed = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&committed);
    *store.before_publish.lock() = Some(Box::new(move |store| {
        commit(store).expect("commit");
        seen.store(true, SeqCst);
    }));
    write(&store, key(1, 1), version(3), &strip(3)).expect("write");
    assert!(committed.load(SeqCst), "the commit ran while the writer was on its way");
    assert!(holds(&store, 2), "version 2 was said to be stable and is not settled");
    let cut = disk.position();
    commit(&store).expect("commit");
    for position in [cut, disk.position()] {
        for fate in [Fate::Kept, Fate::Lost] {
            let after = open(&disk.image(position, |_| fate.clone()));
            assert!(holds(&after, 2), "position {position}, {fate:?}");
        }
    }
}

#[test]
fn concurrent_commits_keep_what_they_covered_through_power_cuts() {
    for seed in strake_env::rng::test_seeds(0, 6) {
        println!("seed {seed}");
        let disk = SimDisk::new(DISK_BYTES);
        let store = format(&disk, seed);
        let accepted = AtomicU64::new(0);
        let done = AtomicBool::new(false);
        // The newest version when a commit began, and the position at which it was stable.
        let mut stable: Vec<(u64, u64)> = Vec::new();
        strake_env::thread::scope(|scope| {
            scope.spawn(|| {
                for counter in 1..=200 {
                    write(&store, key(1, 1), version(counter), &strip(counter)).expect("write");
                    accepted.store(counter, SeqCst);
                }
                done.store(true, SeqCst);
            });
            while !done.load(SeqCst) {
                let newest = accepted.load(SeqCst);
                commit(&store).expect("commit");
                stable.push((newest, disk.position()));
                // Only this thread commits, so its commit reached exactly this entry.
                let covered = Lsn(store.committing.load(SeqCst));
                let record = store.record(&key(1, 1)).expect("index");
                let kept = record.iter().flat_map(|record| &record.versions);
                let mut kept = kept.filter(|one| one.accepted <= covered);
                let is_kept = kept.any(|one| one.version() >= version(newest));
                assert!(newest == 0 || is_kept, "what the commit covered is gone: {newest}");
            }
        });
        drop(store);
        let mut rng = Rng::new(seed);
        for pair in stable.windows(2).filter(|pair| pair[0].0 > 0).take(20) {
            let ((newest, from), (_, to)) = (pair[0], pair[1]);
            let position = from + rng.below(to - from + 1);
            let after = open(&disk.crash(position, &mut rng));
            // By the time of the commit the version may already have been overwritten.
            let (found, bytes) = read(&after, key(1, 1)).expect("something was stable");
            assert!(found >= version(newest), "{newest} was stable at {from}, cut at {position}");
            assert_eq!(bytes[..], strip(found.counter)[..]);
        }
    }
}

/// The versions that must be there after a power cut, by position: commits made them stable.
struct Promised {
    key: StripKey,
    /// Versions accepted, in order.
    accepted: Vec<u64>,
    /// Stable versions, each with the position from which on it is stable.
    stable: Vec<(u64, u64)>,
}

/// Cuts the power at every position of a commit that settles, frees and promises, and of the
/// checkpoint after it. Tries every subset of the unsynced writes, and torn ones.
#[test]
fn every_power_cut_within_a_commit_and_a_checkpoint_leaves_what_was_stable() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    let mut strips: Vec<Promised> = (0..4)
        .map(|block| Promised { key: key(1, block), accepted: Vec::new(), stable: Vec::new() })
        .collect();
    let data = |counter: u64| {
        let mut data = AlignedBuffer::zeroed((1 + counter as usize % 3 * 9) * UNIT_BYTES);
        Rng::new(counter).fill(&mut data);
        data
    };
    disk.forget_log();
    let mut counter = 0;
    for round in 0..3 {
        for strip in &mut strips {
            counter += 1;
            write(&store, strip.key, version(counter), &data(counter)).expect("write");
            strip.accepted.push(counter);
        }
        let settled = |strip: &Promised| {
            let (counter, _) = strip.stable.last()?;
            let StripKey { fs, object, block, .. } = strip.key;
            let version = version(*counter);
            Some(strake_proto::nsd::SettledStripe { fs, object, block, version, lacks: 0 })
        };
        let settled = strips.iter().filter_map(settled).collect();
        call(&store, &NsdRequest::Commit { settled }, &[]).expect("commit");
        for strip in &mut strips {
            strip.stable.push((*strip.accepted.last().expect("written"), disk.position()));
        }
        if round == 1 {
            store.checkpoint().expect("checkpoint");
        }
    }
    store.checkpoint().expect("checkpoint");
    drop(store);
    let mut cuts = disk.power_cuts();
    let mut rng = Rng::new(4);
    let mut images = 0;
    for position in 0..=disk.position() {
        cuts.advance(position);
        let unsynced = cuts.unsynced().count();
        let subsets: Vec<Option<u64>> = match unsynced {
            0..=5 => (0..1 << unsynced).map(Some).chain([None; 2]).collect(),
            _ => (0..6).map(|_| Some(rng.next_u64())).chain([None; 4]).collect(),
        };
        for subset in subsets {
            images += 1;
            let after = match subset {
                None => cuts.crash(&mut rng),
                Some(kept) => {
                    let mut bit = 0;
                    cuts.image(|_| {
                        bit += 1;
                        if kept >> ((bit - 1) % 64) & 1 == 1 { Fate::Kept } else { Fate::Lost }
                    })
                }
            };
            let after = open(&after);
            for strip in &strips {
                let last = strip.stable.iter().rfind(|(_, from)| *from <= position);
                let Some((stable, _)) = last else { continue };
                let (found, _) = read(&after, strip.key).expect("stable");
                assert!(found.counter >= *stable, "{} at {position} {subset:?}", strip.key);
                // The stable version itself counts too, because nothing newer was settled.
                let held = read_version(&after, strip.key, Some(version(*stable)));
                let (_, bytes) = held.unwrap_or_else(|| panic!("{stable} at {position}"));
                assert_eq!(bytes[..], data(*stable)[..]);
                let (_, bytes) = read(&after, strip.key).expect("held");
                assert_eq!(bytes[..], data(found.counter)[..]);
            }
            if images % 16 == 0 {
                check(&after);
            }
        }
    }
    println!("{images} images of {} positions", disk.position());
    assert!(images > 400, "{images} images");
}

/// A client relies on this to recognise a disk that holds an older state than before.
#[test]
fn a_disk_recovers_what_it_called_stable_and_an_older_image_of_it_does_not() {
    let recovered = |store: &BlockStore| store.status().recovered;
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    let mut before = (disk.position(), 0);
    for counter in 1..40 {
        write(&store, key(1, 1), version(counter), &strip(counter)).expect("write");
        if counter % 7 == 0 {
            store.checkpoint().expect("checkpoint");
        }
        let Ok(NsdReply::Stable { stable, .. }) = commit(&store) else { panic!("not stable") };
        assert!(stable > before.1);
        for fate in [Fate::Kept, Fate::Lost] {
            let after = open(&disk.image(disk.position(), |_| fate.clone()));
            assert!(recovered(&after) >= stable, "at {counter}");
            let older = open(&disk.image(before.0, |_| fate.clone()));
            assert!(recovered(&older) < stable, "at {counter}");
        }
        before = (disk.position(), stable);
    }
    store.doubt();
    assert_eq!(recovered(&store), 0);
}

fn lacking(store: &BlockStore, positions: u32, limit: u32) -> BTreeSet<StripKey> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let request = NsdRequest::ListLacking { positions, after, limit };
        let reply = call(store, &request, &[]).expect("listed");
        let NsdReply::Lacking { entries, next } = reply else { panic!("{reply:?}") };
        assert!(entries.len() <= limit as usize);
        found.extend(entries.iter().map(|entry| entry.key));
        assert!(next.is_none() || next > after, "it goes on");
        after = next;
        if after.is_none() {
            break;
        }
    }
    assert!(found.is_sorted());
    found.into_iter().collect()
}

/// The mask of a strip is that of its writer, then that of the settling, and as durable as these.
/// The listing shows the strips of which some version held has one of the positions.
#[test]
fn strips_that_some_positions_may_lack_are_listed_as_long_as_that_is_known() {
    for seed in strake_env::rng::test_seeds(0, 20) {
        let mut rng = Rng::new(seed);
        let mut disk = SimDisk::new(DISK_BYTES);
        let mut store = format(&disk, seed);
        let mut counter = 0;
        // The masks of each strip's version, before a settling and after it.
        let mut masks: BTreeMap<StripKey, (Version, u32)> = BTreeMap::new();
        for _ in 0..60 {
            let key = key(1 + rng.below(5), rng.below(6));
            let mask = if rng.one_in(2) { 0 } else { 1 << rng.below(3) };
            counter += 1;
            let version = version(counter);
            let header = StripHeader { version, block_bytes: 4096, lacks: mask };
            let data = AlignedBuffer::zeroed(UNIT_BYTES);
            let checksums = strip_checksums(&key, version, &data);
            let stable = version;
            let write = NsdRequest::Write { key, header, checksums, copy: false, stable };
            call(&store, &write, &data).expect("written");
            masks.insert(key, (version, mask));
            let settled = masks.iter_mut().filter_map(|(key, (version, mask))| {
                if rng.one_in(3) {
                    return None;
                }
                *mask = if rng.one_in(2) { 0 } else { 1 << rng.below(3) };
                let StripKey { fs, object, block, .. } = *key;
                Some(SettledStripe { fs, object, block, version: *version, lacks: *mask })
            });
            let settled = settled.collect();
            call(&store, &NsdRequest::Commit { settled }, &[]).expect("commit");
            if rng.one_in(8) {
                drop(store);
                disk = disk.crash(disk.position(), &mut rng);
                store = open(&disk);
            }
            let positions = rng.below(8) as u32;
            let known = masks.iter().filter(|(_, (_, mask))| mask & positions != 0);
            let known: BTreeSet<StripKey> = known.map(|(key, _)| *key).collect();
            let limit = 1 + rng.below(9) as u32;
            assert_eq!(lacking(&store, positions, limit), known, "seed {seed}");
        }
    }
}
