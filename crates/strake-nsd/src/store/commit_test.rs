//! What "stable" is worth: a version that a commit covered stays readable until it is settled, at
//! every moment and after every power cut.

use super::store_test::*;
use super::*;
use std::sync::atomic::AtomicBool;
use strake_env::disk::sim::{Fate, SimDisk};
use strake_env::{AlignedBuffer, Rng};
use strake_proto::limits::UNIT_BYTES;

/// One unit that tells its version.
fn strip(counter: u64) -> AlignedBuffer {
    let mut data = AlignedBuffer::zeroed(UNIT_BYTES);
    Rng::new(counter).fill(&mut data);
    data
}

fn commit(store: &BlockStore) -> Result<NsdReply> {
    call(store, &NsdRequest::Commit { settled: Vec::new() }, &[])
}

/// Whether exactly this version is there, with its bytes.
fn holds(store: &BlockStore, counter: u64) -> bool {
    match read_version(store, key(1, 1), Some(version(counter))) {
        Some((found, bytes)) => found == version(counter) && bytes[..] == strip(counter)[..],
        None => false,
    }
}

/// Regression: a writer looked at what commits cover, then a commit covered version 2, then the
/// writer dropped version 2 as never acknowledged.
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
        // What was the newest when a commit began, and the position at which it was stable.
        let mut stable: Vec<(u64, u64)> = Vec::new();
        std::thread::scope(|scope| {
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
                // Only this thread commits, so this is the entry up to which it did.
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
            // By the time of the commit it may have been overwritten already.
            let (found, bytes) = read(&after, key(1, 1)).expect("something was stable");
            assert!(found >= version(newest), "{newest} was stable at {from}, cut at {position}");
            assert_eq!(bytes[..], strip(found.counter)[..]);
        }
    }
}
