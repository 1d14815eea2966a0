//! Tests the key-value store against a `BTreeMap`, through checkpoints and power cuts.

use super::*;
use crate::container::{Container, FormatOptions};
use crate::journal::Journal;
use crate::region::{ChunkSource, KvRole, UnusedChunks};
use std::collections::BTreeMap;
use strake_env::{Rng, SimDisk};
use strake_proto::{ClusterId, FsId, NsdId};

pub(super) const CACHE_BYTES: usize = 1 << 20;

fn options() -> FormatOptions {
    let cluster = ClusterId([1; 16]);
    FormatOptions { cluster, nsd: NsdId(1), fs: FsId(1), failure_group: 1, seed: 99 }
}

/// A container whose chunks are all free.
pub(super) fn container() -> (Arc<SimDisk>, Container, Arc<dyn ChunkSource>) {
    let disk = SimDisk::new(64 << 20);
    let container = Container::format(disk.clone(), &options()).unwrap();
    let source = UnusedChunks::shared();
    container.set_chunk_source(&source);
    (disk, container, source)
}

/// A source with a limited number of chunks.
pub(super) struct Few(pub(super) Mutex<usize>);

impl ChunkSource for Few {
    fn claim(&self, candidates: &[u32]) -> Option<u32> {
        let mut left = self.0.lock();
        *left = left.checked_sub(1)?;
        candidates.first().copied()
    }

    fn keep(&self, needed: u32, wanted: u32) -> u32 {
        needed.max(wanted).min(*self.0.lock() as u32)
    }

    fn release(&self, chunks: &[u32]) {
        *self.0.lock() += chunks.len();
    }
}

pub(super) fn limit(container: &Container, chunks: usize) -> Arc<Few> {
    let few = Arc::new(Few(Mutex::new(chunks)));
    container.set_chunk_source(&(Arc::clone(&few) as Arc<dyn ChunkSource>));
    few
}

pub(super) fn open(container: &Container) -> Kv {
    Kv::open(container.kv_region(KvRole::Metadata), CACHE_BYTES).unwrap()
}

type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn pairs(kv: &dyn KvRead, from: &[u8], to: &[u8], back: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    let mut visit = |key: &[u8], value: &[u8]| {
        found.push((key.to_vec(), value.to_vec()));
        true
    };
    if back { kv.scan_back(from, to, &mut visit) } else { kv.scan(from, to, &mut visit) }.unwrap();
    found
}

fn expected(model: &Model, from: &[u8], to: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    model
        .iter()
        .filter(|(key, _)| &key[..] >= from && &key[..] < to)
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn assert_same(kv: &Kv, model: &Model, seed: u64) {
    kv.layers.read().active.check();
    assert_eq!(pairs(kv, &[], &[255; 8], false), expected(model, &[], &[255; 8]), "seed {seed}");
}

/// Random keys are short and few, so that they meet often; some pairs are long.
fn random_key(rng: &mut Rng) -> Vec<u8> {
    let mut key = vec![0; rng.index(4) + 1];
    key.fill_with(|| rng.below(6) as u8);
    key
}

fn random_changes(rng: &mut Rng) -> Changes {
    (0..rng.index(8))
        .map(|_| {
            let length = if rng.one_in(10) { rng.index(20_000) } else { rng.index(100) };
            let value = (!rng.one_in(3)).then(|| vec![rng.next_u64() as u8; length]);
            (random_key(rng), value)
        })
        .collect()
}

fn batch_of(changes: &Changes) -> Batch {
    let mut batch = Batch::new();
    for (key, value) in changes {
        match value {
            Some(value) => batch.put(&key[..], &value[..]),
            None => batch.delete(&key[..]),
        }
    }
    batch
}

fn apply_to(model: &mut Model, changes: &Changes) {
    for (key, value) in changes {
        match value {
            Some(value) => model.insert(key.clone(), value.clone()),
            None => model.remove(key),
        };
    }
}

fn check_reads(kv: &Kv, model: &Model, rng: &mut Rng, seed: u64) {
    let key = random_key(rng);
    let found = kv.get(&key).unwrap().map(|value| value.to_vec());
    assert_eq!(found.as_ref(), model.get(&key), "seed {seed}");
    let (from, to) = (random_key(rng), random_key(rng));
    let mut wanted = expected(model, &from, &to);
    assert_eq!(pairs(kv, &from, &to, false), wanted, "seed {seed}");
    wanted.reverse();
    assert_eq!(pairs(kv, &from, &to, true), wanted, "seed {seed}");
}

#[test]
fn the_store_in_memory_is_a_map() {
    for seed in strake_env::rng::test_seeds(0, 20) {
        let mut rng = Rng::new(seed);
        let (kv, mut model) = (Kv::in_memory(), Model::new());
        for lsn in 1..200 {
            let changes = random_changes(&mut rng);
            kv.apply(batch_of(&changes), Lsn(lsn));
            apply_to(&mut model, &changes);
            check_reads(&kv, &model, &mut rng, seed);
        }
        assert_same(&kv, &model, seed);
    }
}

#[test]
fn the_store_on_a_disk_is_a_map_across_checkpoints_and_openings() {
    for seed in strake_env::rng::test_seeds(0, 6) {
        let mut rng = Rng::new(seed);
        let (_disk, container, _source) = container();
        let (mut kv, mut model) = (open(&container), Model::new());
        for lsn in 1..300 {
            let changes = random_changes(&mut rng);
            kv.apply(batch_of(&changes), Lsn(lsn));
            apply_to(&mut model, &changes);
            check_reads(&kv, &model, &mut rng, seed);
            if rng.one_in(20) {
                assert_eq!(kv.checkpoint().unwrap(), Lsn(lsn));
                assert_eq!((kv.applied_in_base(), kv.overlay_bytes()), (Lsn(lsn), 0));
                check_reads(&kv, &model, &mut rng, seed);
            }
            if rng.one_in(60) {
                kv.checkpoint().unwrap();
                drop(kv);
                kv = open(&container);
                assert_eq!(kv.applied_in_base(), Lsn(lsn));
            }
        }
        assert_same(&kv, &model, seed);
    }
}

#[test]
fn a_view_stays_as_it_was_until_it_is_cut() {
    for seed in strake_env::rng::test_seeds(0, 20) {
        let mut rng = Rng::new(seed);
        let (_disk, container, _source) = container();
        let kv = open(&container);
        let mut model = Model::new();
        let mut views: Vec<(Kv, Model)> = Vec::new();
        for lsn in 1..40 {
            let changes = random_changes(&mut rng);
            kv.apply(batch_of(&changes), Lsn(lsn));
            apply_to(&mut model, &changes);
            match rng.below(8) {
                0..3 => drop(kv.checkpoint().expect("there is space")),
                3..5 if views.len() < 4 => views.push((kv.view(), model.clone())),
                5 if rng.one_in(3) => {
                    kv.cut_views();
                    for (view, _) in views.drain(..) {
                        let read = view.get(b"a").map(drop);
                        let scan = view.scan(b"", b"~", &mut |_, _| true);
                        let kinds = [read, scan].map(|result| result.map_err(|error| error.kind()));
                        assert!(kinds.contains(&Err(ErrorKind::Busy)), "seed {seed}: {kinds:?}");
                    }
                }
                _ => {}
            }
            views.iter().for_each(|(view, then)| assert_same(view, then, seed));
            assert_same(&kv, &model, seed);
        }
    }
}

#[test]
fn a_base_that_is_opened_anew_cuts_the_views_of_the_old_one() {
    let (_disk, container, _source) = container();
    let kv = open(&container);
    let mut batch = Batch::new();
    batch.put(b"key", b"value".to_vec());
    kv.apply(batch, Lsn(1));
    kv.checkpoint().expect("there is space");
    let view = kv.view();
    assert!(view.get(b"key").expect("reads").is_some());
    kv.forget_caches();
    assert_eq!(view.get(b"key").expect_err("cut").kind(), ErrorKind::Busy);
    assert!(kv.view().get(b"key").expect("a new view reads the new base").is_some());
}

#[test]
fn what_data_left_in_claimed_chunks_does_not_matter() {
    let mut rng = Rng::new(8);
    let (disk, container, _source) = container();
    let mut garbage = vec![0; 1 << 20];
    for chunk in container.data_chunks() {
        rng.fill(&mut garbage);
        let start = container.geometry().chunk_range(chunk).start;
        strake_env::Disk::write_at(&*disk, start, &garbage).unwrap();
    }
    let (kv, mut model) = (open(&container), Model::new());
    for lsn in 1..40 {
        let changes = vec![(vec![lsn as u8], Some(vec![lsn as u8; 100_000]))];
        kv.apply(batch_of(&changes), Lsn(lsn));
        apply_to(&mut model, &changes);
        kv.checkpoint().unwrap();
    }
    assert!(container.superblock().metadata_kv.chunks.len() > 4);
    drop(kv);
    assert_same(&open(&container), &model, 8);
}

#[test]
fn a_scan_stops_when_told_and_may_use_the_store() {
    let (_disk, container, _source) = container();
    let kv = open(&container);
    for number in 0..3000u32 {
        let mut batch = Batch::new();
        batch.put(number.to_be_bytes(), number.to_le_bytes());
        kv.apply(batch, Lsn(u64::from(number) + 1));
        if number == 1500 {
            kv.checkpoint().unwrap();
        }
    }
    let mut seen = 0;
    kv.scan(&[], &[255], &mut |key, _| {
        assert!(kv.get(key).unwrap().is_some());
        kv.apply(Batch::new(), Lsn(3000));
        seen += 1;
        seen < 2000
    })
    .unwrap();
    assert_eq!(seen, 2000);
    assert_eq!(pairs(&kv, &[], &[255], true).len(), 3000);
}

#[test]
fn readers_and_appliers_go_on_during_checkpoints() {
    let (_disk, container, _source) = container();
    let kv = open(&container);
    // Pair n is always there: first as "n", then as something newer.
    let put = |lsn: u64| {
        let mut batch = Batch::new();
        batch.put((lsn % 500).to_be_bytes(), lsn.to_le_bytes());
        kv.apply(batch, Lsn(lsn));
    };
    (0..500).for_each(put);
    strake_env::thread::scope(|scope| {
        let checkpoints = scope.spawn(|| (0..30).for_each(|_| assert!(kv.checkpoint().is_ok())));
        let writer = scope.spawn(|| (500..20_000).for_each(put));
        let mut last = [0u64; 500];
        while !checkpoints.is_finished() || !writer.is_finished() {
            let mut count = 0;
            kv.scan(&[], &[255; 9], &mut |key, value| {
                let key = u64::from_be_bytes(key.try_into().unwrap()) as usize;
                let value = u64::from_le_bytes(value.try_into().unwrap());
                assert!(value >= last[key], "key {key} went back");
                last[key] = value;
                count += 1;
                true
            })
            .unwrap();
            assert_eq!(count, 500);
            for key in (0..500u64).step_by(7) {
                let value = kv.get(&key.to_be_bytes()).unwrap().unwrap();
                assert!(u64::from_le_bytes(value[..].try_into().unwrap()) >= last[key as usize]);
            }
        }
    });
}

#[test]
fn a_full_disk_fails_the_checkpoint_and_loses_nothing() {
    let (_disk, container, free) = container();
    let (kv, mut model) = (open(&container), Model::new());
    let _full = limit(&container, 0);
    let mut lsn = 0u64;
    let error = loop {
        lsn += 1;
        assert!(lsn < 1000, "the store never filled");
        let changes = vec![(lsn.to_be_bytes().to_vec(), Some(vec![lsn as u8; 50_000]))];
        kv.apply(batch_of(&changes), Lsn(lsn));
        apply_to(&mut model, &changes);
        if let Err(error) = kv.checkpoint() {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert_eq!(kv.applied_in_base(), Lsn(lsn - 1));
    assert_same(&kv, &model, 0);
    assert!(kv.checkpoint().is_err());
    container.set_chunk_source(&free);
    assert_eq!(kv.checkpoint().unwrap(), Lsn(lsn));
    drop(kv);
    assert_same(&open(&container), &model, 0);
}

#[test]
fn an_error_of_the_disk_is_returned_and_memory_still_answers() {
    let (disk, container, _source) = container();
    let kv = open(&container);
    let mut batch = Batch::new();
    batch.put(&b"key"[..], &b"value"[..]);
    kv.apply(batch, Lsn(1));
    disk.set_faults(|faults| faults.sync_failure = true);
    assert_eq!(kv.checkpoint().unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(kv.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert!(kv.get(b"other").is_err(), "the base is gone, absence cannot be told");
}

/// Journal and store together, as their owners use them: crash anywhere, open, and replay.
#[test]
fn base_and_journal_recover_every_synced_change_after_every_crash() {
    for seed in strake_env::rng::test_seeds(0, 8) {
        let mut rng = Rng::new(1000 + seed);
        let (mut disk, container, source) = container();
        // All histories in one list: change n has LSN n + 1.
        let mut history: Vec<Changes> = Vec::new();
        drop(container);
        for life in 0..4 {
            let context = format!("seed {seed} life {life}");
            let container = Container::open(disk.clone()).unwrap();
            container.set_chunk_source(&source);
            let (kv, journal) = recover(&container, &mut history, &context);
            let mut marks = vec![(disk.position(), journal.last().0, journal.last().0)];
            let mut synced = journal.last().0;
            for _ in 0..60 {
                for _ in 0..rng.index(4) {
                    let changes = random_changes(&mut rng);
                    let lsn = journal.append(&encode(&changes)).unwrap();
                    kv.apply(batch_of(&changes), lsn);
                    history.push(changes);
                    assert_eq!(lsn.0, history.len() as u64);
                }
                if rng.one_in(3) {
                    journal.sync().unwrap();
                    synced = journal.last().0;
                }
                if rng.one_in(10) {
                    journal.sync().unwrap();
                    let applied = kv.checkpoint().unwrap();
                    synced = journal.last().0;
                    journal.trim(Lsn(applied.0 + 1)).unwrap();
                }
                marks.push((disk.position(), synced, journal.last().0));
            }
            let end = disk.position();
            let mut chosen = None;
            for _ in 0..25 {
                let position = rng.below(end + 1).max(marks[0].0);
                let image = disk.crash(position, &mut rng);
                let container = Container::open(image.clone()).unwrap();
                container.set_chunk_source(&source);
                let before = marks.iter().rfind(|mark| mark.0 <= position).unwrap();
                let after = marks.iter().find(|mark| mark.0 > position).unwrap_or(before);
                let mut kept = history[..after.2 as usize].to_vec();
                let image_now = image.copy();
                let _ = recover(&container, &mut kept, &format!("{context} at {position}"));
                assert!(kept.len() as u64 >= before.1, "{context}: lost what was synced");
                if chosen.is_none() || rng.one_in(4) {
                    chosen = Some((image_now, kept));
                }
            }
            (disk, history) = chosen.unwrap();
        }
    }
}

fn encode(changes: &Changes) -> Vec<u8> {
    postcard::to_allocvec(changes).unwrap()
}

/// Opens both, replays, cuts `history` to what was found, and compares.
fn recover(container: &Container, history: &mut Vec<Changes>, context: &str) -> (Kv, Journal) {
    let kv = open(container);
    let (journal, entries) = Journal::open(container.metadata_log())
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    journal.advance(kv.applied_in_base());
    for (lsn, entry) in entries {
        assert_eq!(encode(&history[lsn.0 as usize - 1]), entry, "{context}: entry {lsn:?}");
        if lsn > kv.applied_in_base() {
            kv.apply(batch_of(&history[lsn.0 as usize - 1]), lsn);
        }
    }
    history.truncate(journal.last().0 as usize);
    let mut model = Model::new();
    for changes in history.iter() {
        apply_to(&mut model, changes);
    }
    assert_eq!(pairs(&kv, &[], &[255; 8], false), expected(&model, &[], &[255; 8]), "{context}");
    (kv, journal)
}

#[test]
fn a_bad_page_costs_its_own_keys_only() {
    let (disk, container, _source) = container();
    let kv = open(&container);
    for number in 0..2000u64 {
        let mut batch = Batch::new();
        batch.put(number.to_be_bytes(), vec![number as u8; 200]);
        kv.apply(batch, Lsn(number + 1));
    }
    kv.checkpoint().unwrap();
    drop(kv);
    // A leaf: the first unit after the header that holds a value from the middle.
    let chunk = container.superblock().metadata_kv.chunks[0];
    let start = container.geometry().chunk_range(chunk).start;
    let mut bytes = vec![0; 1 << 20];
    strake_env::Disk::read_at(&*disk, start, &mut bytes).unwrap();
    let leaf = bytes.windows(200).position(|window| window == [77; 200]).unwrap();
    disk.flip(start + leaf as u64, 1);
    let kv = open(&container);
    for _ in 0..2 {
        let failed = (0..2000u64).filter(|number| kv.get(&number.to_be_bytes()).is_err()).count();
        assert!((1..100).contains(&failed), "{failed} keys failed");
    }
    assert_eq!(kv.scan(&[], &[255], &mut |_, _| true).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(kv.get(&1999u64.to_be_bytes()).unwrap().is_some());
}

#[test]
fn a_flipped_bit_in_the_base_is_an_error_never_a_wrong_value() {
    let mut rng = Rng::new(3);
    let (disk, container, _source) = container();
    let kv = open(&container);
    for number in 0..2000u64 {
        let mut batch = Batch::new();
        batch.put(number.to_be_bytes(), vec![number as u8; 200]);
        kv.apply(batch, Lsn(number + 1));
    }
    kv.checkpoint().unwrap();
    drop(kv);
    let chunks = container.superblock().metadata_kv.chunks.clone();
    let mut refused = 0;
    for _ in 0..60 {
        let image = disk.copy();
        let chunk = chunks[rng.index(chunks.len())];
        let range = container.geometry().chunk_range(chunk);
        image.flip(range.start + rng.below(range.end - range.start), 1 << rng.below(8));
        let damaged = Container::open(image).unwrap();
        let source = UnusedChunks::shared();
        damaged.set_chunk_source(&source);
        let Ok(kv) = Kv::open(damaged.kv_region(KvRole::Metadata), CACHE_BYTES) else {
            refused += 1;
            continue;
        };
        let mut failed = 0;
        for number in (0..2000u64).step_by(37) {
            match kv.get(&number.to_be_bytes()) {
                Ok(value) => assert_eq!(value.as_deref(), Some(&[number as u8; 200][..])),
                Err(_) => failed += 1,
            }
        }
        refused += u32::from(failed > 0);
    }
    assert!(refused > 3, "flips must have hit something: {refused}");
}

/// The weight of all pairs, counted anew.
fn weight_of(model: &Model) -> u64 {
    model.iter().map(|(key, value)| base::weight_of(key.len() + value.len())).sum()
}

/// Fills a store of few chunks as far as allowed. Then changes its pairs, even all of them at once.
/// A checkpoint always finds space.
#[test]
fn a_checkpoint_finds_space_while_no_more_is_in_there_than_may_be() {
    for seed in strake_env::rng::test_seeds(0, 12 * strake_env::rng::test_scale()) {
        eprintln!("seed {seed}");
        let mut rng = Rng::new(seed);
        let (_disk, container, _free) = container();
        let few = limit(&container, 2 + rng.index(12));
        let (mut kv, mut model) = (open(&container), Model::new());
        let (longest, ascends) = ([60, 400, 4200, 20_000][rng.index(4)], rng.one_in(2));
        let mut lsn = 0;
        let mut apply = |kv: &Kv, model: &mut Model, key: Vec<u8>, value: Option<Vec<u8>>| {
            lsn += 1;
            let change = vec![(key, value)];
            kv.apply(batch_of(&change), Lsn(lsn));
            apply_to(model, &change);
        };
        eprintln!("values of up to {longest} bytes, ascending: {ascends}");
        for round in 0..6 {
            let has_room = |kv: &Kv| {
                kv.look_for_space();
                kv.weight() + base::weight_of(8 + longest) <= kv.weight_max()
            };
            while has_room(&kv) {
                let number =
                    if ascends { model.len() as u64 + round * 100_000 } else { rng.next_u64() };
                let value = vec![rng.next_u64() as u8; 1 + rng.index(longest)];
                apply(&kv, &mut model, number.to_be_bytes().to_vec(), Some(value));
                if kv.is_due(1 + round % 2) || rng.one_in(400) {
                    kv.checkpoint().expect("space");
                }
            }
            kv.checkpoint().expect("space");
            assert_eq!(kv.weight(), weight_of(&model));
            let (one_in, removed) = ([1, 2, 10, 100][rng.index(4)], [0, 1, 2, 5][rng.index(4)]);
            for (key, value) in model.clone() {
                if rng.one_in(one_in) {
                    let is_removed = removed > 0 && rng.one_in(removed);
                    let value = (!is_removed).then(|| vec![rng.next_u64() as u8; value.len()]);
                    apply(&kv, &mut model, key, value);
                }
                if kv.is_due(1 + round % 2) || rng.one_in(4000) {
                    kv.checkpoint().expect("space for what was changed");
                }
            }
            kv.checkpoint().expect("space for what was changed");
            if rng.one_in(3) {
                drop(kv);
                kv = open(&container);
            }
            assert_eq!(kv.weight(), weight_of(&model));
        }
        assert_same(&kv, &model, seed);
        drop(few);
    }
}

/// A source whose data leaves only what was kept before.
struct Tight;

impl ChunkSource for Tight {
    fn claim(&self, _candidates: &[u32]) -> Option<u32> {
        None
    }

    fn keep(&self, needed: u32, _wanted: u32) -> u32 {
        needed
    }

    fn release(&self, _chunks: &[u32]) {}
}

#[test]
fn what_was_kept_for_a_store_is_kept_again_after_a_restart() {
    let (_disk, container, free) = container();
    let kv = open(&container);
    let put = |from: u64, to: u64| {
        for number in from..to {
            let change = vec![(number.to_be_bytes().to_vec(), Some(vec![7; 500]))];
            kv.apply(batch_of(&change), Lsn(number + 1));
        }
        kv.checkpoint().expect("space");
        kv.look_for_space();
    };
    put(0, 5000);
    put(5000, 5001);
    let before = kv.weight_max();
    assert!(before >= 2 * kv.weight(), "it may grow");
    // Less is kept now than the store says. It must say so before the next restart.
    let tight: Arc<dyn ChunkSource> = Arc::new(Tight);
    container.set_chunk_source(&tight);
    drop(kv);
    let kv = open(&container);
    assert_eq!(kv.weight_max(), before);
    assert!(!kv.promises_too_much());
    limit(&container, 0);
    kv.look_for_space();
    assert!(kv.weight_max() < before && kv.promises_too_much());
    kv.checkpoint().expect("space");
    assert!(!kv.promises_too_much());
    drop(kv);
    container.set_chunk_source(&free);
    let least = open(&container).weight_max();
    container.set_chunk_source(&tight);
    assert!(open(&container).weight_max() < least.min(before));
}
