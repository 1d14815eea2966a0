//! Giving space back to the host. Only a writer that needs the space waits for it, and no unit in
//! use is ever given back.

use super::store_test::*;
use super::*;
use std::io;
use std::time::Duration;
use strake_env::AlignedBuffer;
use strake_env::disk::sim::SimDisk;
use strake_env::sync::Condvar;
use strake_proto::limits::UNIT_BYTES;

/// A disk whose discards wait while it is held.
struct Slow {
    disk: Arc<SimDisk>,
    /// Whether discards are held, and how many have arrived.
    state: Mutex<(bool, u32)>,
    changed: Condvar,
}

impl Slow {
    fn set(&self, is_held: bool) {
        self.state.lock().0 = is_held;
        self.changed.notify_all();
    }

    /// Waits until a discard has arrived.
    fn wait_for_discard(&self) {
        let mut state = self.state.lock();
        while state.1 == 0 {
            self.changed.wait(&mut state);
        }
    }
}

impl Disk for Slow {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.disk.read_at(offset, bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }

    fn len(&self) -> u64 {
        self.disk.len()
    }

    fn discard(&self, offset: u64, length: u64) {
        let mut state = self.state.lock();
        state.1 += 1;
        self.changed.notify_all();
        while state.0 {
            self.changed.wait(&mut state);
        }
        drop(state);
        self.disk.discard(offset, length);
    }
}

/// A block store in which only the worker discards, after `delay`. Its disk holds discards if
/// `is_held`.
fn store(delay: Duration, is_held: bool) -> (Arc<Slow>, Arc<BlockStore>) {
    store_with(is_held, |options| BlockStoreOptions {
        discard_delay: delay,
        discard_at_once_bytes_max: 0,
        ..options
    })
}

fn store_with(
    is_held: bool,
    change: impl FnOnce(BlockStoreOptions) -> BlockStoreOptions,
) -> (Arc<Slow>, Arc<BlockStore>) {
    let disk = SimDisk::new(DISK_BYTES);
    drop(format(&disk, 1));
    let slow = Arc::new(Slow { disk, state: Mutex::new((is_held, 0)), changed: Condvar::new() });
    let container = Container::open(Arc::clone(&slow) as Arc<dyn Disk>).expect("container");
    let options = change(BlockStoreOptions::new(&observe()));
    (slow, BlockStore::open(container, options).expect("block store"))
}

/// A time longer than any test.
const NEVER: Duration = Duration::from_secs(1_000_000);

/// A strip that takes a quarter of a chunk with its trailer, so it is never in pieces.
fn strip(value: u8) -> AlignedBuffer {
    AlignedBuffer::from_slice(&vec![value; 63 * UNIT_BYTES])
}

fn commit(store: &BlockStore) {
    call(store, &NsdRequest::Commit { settled: Vec::new() }, &[]).expect("commit");
}

fn delete(store: &BlockStore, object: u64, counter: u64) {
    let (fs, object, version) = (strake_proto::FsId(1), ObjectId(object), version(counter));
    let (from, to) = (BlockIndex(0), BlockIndex::END);
    let request = NsdRequest::DeleteRange { fs, object, from, to, version };
    call(store, &request, &[]).expect("delete");
}

/// Writes blocks of an object until the disk is full. Returns how many fit.
fn fill(store: &BlockStore, object: u64, counter: u64) -> u64 {
    let fits = |at: &u64| write(store, key(object, *at), version(counter), &strip(1)).is_ok();
    (0..).take_while(fits).count() as u64
}

#[test]
fn nobody_waits_for_the_host_but_who_needs_the_very_units() {
    let (disk, store) = store(Duration::ZERO, true);
    // One of four strips stays, so that no chunk becomes empty and joins the reserve.
    let object = |at: u64| if at.is_multiple_of(4) { 5 } else { 1 };
    let put = |at: &u64| write(&store, key(object(*at), *at), version(1), &strip(1)).is_ok();
    let count = (0..).take_while(put).count() as u64;
    assert!(count.is_multiple_of(4));
    let full = store.status().free;
    let fit = count / 4 * 3;
    let before = full + fit * 64 * UNIT_BYTES as u64;
    delete(&store, 1, 2);
    // A store that discarded before it answered would be stuck here.
    commit(&store);
    assert_eq!(store.status().free, before, "free although the host does not know it");
    disk.wait_for_discard();
    assert_eq!(store.status().free, before, "and while it is told");
    assert!(call(&store, &NsdRequest::Check { data: true }, &[]).is_ok());
    // All strips but the last ones lie in units that are not withheld.
    for at in 0..fit - 3 {
        write(&store, key(2, at), version(3), &strip(2)).expect("there is room");
    }
    strake_env::thread::scope(|scope| {
        let filler = scope.spawn(|| fill(&store, 3, 4));
        let waits = || store.observe.waiters.snapshot();
        while !filler.is_finished() && !waits().iter().any(|wait| wait.reason.contains("discard")) {
            strake_env::thread::yield_now();
        }
        disk.set(false);
        assert_eq!(filler.join().expect("no panic"), 3, "as much fits as was freed");
    });
    check(&store);
    for at in 0..fit - 3 {
        assert_eq!(read(&store, key(2, at)).expect("held").1, strip(2)[..]);
    }
}

#[test]
fn a_commit_gives_back_what_is_little_and_leaves_much_to_the_worker() {
    let bytes = strip(1).len() as u64 + UNIT_BYTES as u64;
    let (disk, store) = store_with(false, |options| BlockStoreOptions {
        discard_delay: NEVER,
        discard_at_once_bytes_max: 2 * bytes,
        ..options
    });
    for (object, count) in [(1, 2), (2, 3)] {
        for at in 0..count {
            write(&store, key(object, at), version(1), &strip(1)).expect("there is room");
        }
    }
    commit(&store);
    let count = || disk.state.lock().1;
    assert_eq!(count(), 0);
    delete(&store, 2, 2);
    commit(&store);
    assert_eq!(count(), 0, "three strips are more than a commit gives back");
    delete(&store, 1, 2);
    commit(&store);
    assert_eq!(count(), 0, "nobody waits for those of others that he joins");
    store.give_back();
    let all = count();
    assert!(all > 0);
    write(&store, key(3, 0), version(3), &strip(1)).expect("there is room");
    write(&store, key(3, 1), version(3), &strip(1)).expect("there is room");
    commit(&store);
    delete(&store, 3, 4);
    commit(&store);
    assert!(count() > all, "two strips are given back at once");
    assert!(!store.discard_all(), "and nothing is left");
    check(&store);
}

#[test]
fn a_commit_leaves_small_pieces_to_the_worker() {
    let (disk, store) = store_with(false, |options| BlockStoreOptions {
        discard_delay: NEVER,
        discard_at_once_bytes_max: u64::MAX,
        ..options
    });
    let small = AlignedBuffer::from_slice(&[7; 2 * UNIT_BYTES]);
    // The strips of the other object lie between.
    for at in 0..8 {
        write(&store, key(1, at), version(1), &small).expect("there is room");
        write(&store, key(2, at), version(1), &small).expect("there is room");
    }
    commit(&store);
    delete(&store, 1, 2);
    commit(&store);
    assert_eq!(disk.state.lock().1, 0, "the host would be told of each");
    assert!(store.discard_all(), "where the host needs it, it gets all");
    assert!(disk.state.lock().1 > 0);
    check(&store);
}

#[test]
fn the_worker_gives_small_pieces_back() {
    let (disk, store) = store_with(true, |options| BlockStoreOptions {
        discard_delay: Duration::ZERO,
        discard_at_once_bytes_max: u64::MAX,
        ..options
    });
    let small = AlignedBuffer::from_slice(&[7; 2 * UNIT_BYTES]);
    write(&store, key(1, 0), version(1), &small).expect("there is room");
    commit(&store);
    delete(&store, 1, 2);
    commit(&store);
    disk.wait_for_discard();
    disk.set(false);
}

#[test]
fn what_is_used_again_is_not_discarded() {
    let (disk, store) = store(NEVER, false);
    let fit = fill(&store, 1, 1);
    delete(&store, 1, 2);
    commit(&store);
    for at in 0..fit {
        write(&store, key(2, at), version(3), &strip(2)).expect("there is room");
    }
    store.discard_all();
    assert!(disk.state.lock().1 <= 1, "what is left is less than a strip");
    check(&store);
    for at in 0..fit {
        assert_eq!(read(&store, key(2, at)).expect("held").1, strip(2)[..]);
    }
}

#[test]
fn an_orderly_end_gives_the_host_what_is_left() {
    let (disk, store) = store(NEVER, false);
    disk.disk.set_faults(|faults| faults.host_bytes_left = Some(200 * UNIT_BYTES as u64));
    let fit = fill(&store, 1, 1);
    let left = || {
        let mut left = None;
        disk.disk.set_faults(|faults| left = faults.host_bytes_left);
        left.expect("limited")
    };
    let full = left();
    delete(&store, 1, 2);
    commit(&store);
    let before = left();
    assert!(before <= full, "nothing is given back yet");
    store.give_back();
    assert!(left() >= before + fit * strip(1).len() as u64);
}

#[test]
fn a_full_host_gets_what_is_free_here_before_a_write_fails() {
    let (disk, store) = store(NEVER, false);
    // The first write to a place takes space from the host.
    disk.disk.set_faults(|faults| faults.host_bytes_left = Some(200 * UNIT_BYTES as u64));
    let fit = fill(&store, 1, 1);
    assert!((1..=3).contains(&fit), "{fit}");
    delete(&store, 1, 2);
    commit(&store);
    for at in 0..fit {
        write(&store, key(2, at), version(3), &strip(2)).expect("the host has room again");
    }
    check(&store);
    for at in 0..fit {
        assert_eq!(read(&store, key(2, at)).expect("held").1, strip(2)[..]);
    }
}

#[test]
fn a_full_host_gets_what_is_free_elsewhere_before_a_write_fails() {
    for committed in [true, false] {
        let (disk, store) = store(NEVER, false);
        disk.disk.set_faults(|faults| faults.host_bytes_left = Some(200 * UNIT_BYTES as u64));
        // Each strip is of its own object. One stays, so that the chunk remains one of large
        // strips.
        let fits = |at: &u64| write(&store, key(*at, 0), version(1), &strip(1)).is_ok();
        let fit = (1..).take_while(fits).count() as u64;
        assert!(fit >= 2, "{fit}");
        (1..fit).for_each(|object| delete(&store, object, 2));
        if committed {
            commit(&store);
        }
        // A small strip goes to another chunk, with its checksums behind it.
        let small = AlignedBuffer::from_slice(&vec![3; 20 * UNIT_BYTES]);
        for at in 0..2 {
            write(&store, key(100, at), version(3), &small).expect("the host has room again");
        }
        check(&store);
        for at in 0..2 {
            assert_eq!(read(&store, key(100, at)).expect("held").1, small[..]);
        }
        assert_eq!(read(&store, key(fit, 0)).expect("held").1, strip(1)[..]);
    }
}
