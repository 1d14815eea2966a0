//! Damaged pages: they are found on the disk regardless of caches, renewed, and salvaged. Also
//! pages with false contents under good checksums.

use super::kv_test::{CACHE_BYTES, container, limit, open};
use super::*;
use crate::container::Container;
use crate::region::KvRole;
use std::collections::BTreeMap;
use strake_env::rng::{test_scale, test_seeds};
use strake_env::{Disk, Rng, SimDisk};

const UNIT: u64 = 4096;
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn put(kv: &Kv, model: &mut Model, number: u64, lsn: u64) {
    let mut batch = Batch::new();
    let value = vec![(number + lsn) as u8; 200];
    batch.put(number.to_be_bytes(), &value[..]);
    kv.apply(batch, Lsn(lsn));
    model.insert(number.to_be_bytes().to_vec(), value);
}

/// A store of 2,000 pairs in its base and some in memory.
fn filled(container: &Container) -> (Kv, Model) {
    let (kv, mut model) = (open(container), Model::new());
    for lsn in 1..=2000 {
        put(&kv, &mut model, lsn, lsn);
        if lsn % 500 == 0 {
            kv.checkpoint().expect("room");
        }
    }
    for lsn in 2001..=2010 {
        put(&kv, &mut model, (lsn - 2000) * 150, lsn);
    }
    (kv, model)
}

fn pairs(kv: &Kv) -> Result<Model> {
    let mut found = Model::new();
    kv.scan(&[], &[255; 9], &mut |key, value| {
        found.insert(key.to_vec(), value.to_vec());
        true
    })?;
    Ok(found)
}

/// Verifies the whole store, a few units at a time.
fn verify(kv: &Kv) -> Verified {
    let mut sum = Verified::default();
    let mut next = Some(0);
    while let Some(first) = next {
        let found = kv.verify(first, 37).expect("the disk reads");
        (sum.bytes, next) = (sum.bytes + found.bytes, found.next);
        (sum.damaged, sum.mended) = (sum.damaged + found.damaged, sum.mended + found.mended);
    }
    sum
}

/// The bytes of the disk where the store's chunks begin.
fn chunk_starts(container: &Container) -> Vec<u64> {
    let chunks = container.superblock().metadata_kv.chunks.clone();
    chunks.iter().map(|&chunk| container.geometry().chunk_range(chunk).start).collect()
}

#[test]
fn every_flipped_bit_is_found_and_renewing_leaves_none() {
    let mut salvaged = 0;
    for seed in test_seeds(0, 20) {
        let mut rng = Rng::new(seed);
        let (disk, container, _source) = container();
        let (kv, mut model) = filled(&container);
        assert_eq!((verify(&kv).damaged, kv.overlay_bytes() > 0), (0, true), "seed {seed}");
        if seed % 2 == 0 {
            kv.forget_caches();
        }
        // Flips a bit in a unit that was written at some time: its entry in the table is not zero.
        let starts = chunk_starts(&container);
        let start = starts[rng.index(starts.len())];
        let mut table = vec![0; UNIT as usize];
        disk.read_at(start, &mut table).expect("there");
        let written: Vec<u64> =
            (0..255).filter(|unit| table[4 * *unit as usize..][..4] != [0; 4]).collect();
        let unit = written[rng.index(written.len())];
        disk.flip(start + (1 + unit) * UNIT + rng.below(UNIT), 1 << rng.below(8));
        let found = verify(&kv);
        assert_eq!(found.damaged, 1, "seed {seed}, unit {unit}");
        // The header alone is written again from memory. Otherwise the whole base is written anew.
        if found.mended == 0 {
            match kv.renew(false) {
                Ok(renewed) => assert_eq!(renewed, Renewed { applied: Lsn(2010), is_whole: true }),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "seed {seed}");
                    assert_eq!(verify(&kv).damaged, 1, "it is what it was");
                    salvaged += 1;
                    assert!(!kv.renew(true).expect("salvaged").is_whole);
                    let left = pairs(&kv).expect("what is left reads");
                    assert!(left.iter().all(|(key, value)| model[key] == *value));
                    assert!(left.len() + 100 > model.len(), "seed {seed}: one page was lost");
                    model = left;
                }
            }
            assert_eq!(kv.applied_in_base(), Lsn(2010));
            assert!(starts.iter().all(|start| !chunk_starts(&container).contains(start)));
        }
        assert_eq!(verify(&kv).damaged, 0, "seed {seed}");
        put(&kv, &mut model, 77, 2011);
        kv.checkpoint().expect("it goes on");
        assert_eq!(pairs(&kv), Ok(model.clone()), "seed {seed}");
        drop(kv);
        assert_eq!(pairs(&open(&container)), Ok(model), "seed {seed}");
    }
    assert!(salvaged > 0, "no live page was hit");
}

#[test]
fn a_table_or_header_that_is_not_what_memory_has_is_written_again() {
    let (disk, container, _source) = container();
    let (kv, model) = filled(&container);
    for offset in [40, UNIT + 70] {
        disk.flip(chunk_starts(&container)[0] + offset, 4);
        let found = verify(&kv);
        assert_eq!((found.damaged, found.mended), (1, 1), "offset {offset}");
        assert_eq!(verify(&kv).damaged, 0);
    }
    drop(kv);
    assert!(pairs(&open(&container)).is_ok_and(|left| left.len() == model.len()));
}

#[test]
fn renewing_is_whole_or_has_not_been_after_every_crash() {
    let (disk, container, source) = container();
    let (kv, model) = filled(&container);
    let base = {
        let opened = Container::open(disk.copy()).expect("good");
        opened.set_chunk_source(&source);
        pairs(&open(&opened)).expect("good")
    };
    let begin = disk.position();
    kv.renew(false).expect("room");
    let mut rng = Rng::new(5);
    let (mut before, mut after) = (0, 0);
    for _ in 0..60 {
        let position = begin + rng.below(disk.position() - begin + 1);
        let opened = Container::open(disk.crash(position, &mut rng)).expect("a superblock");
        opened.set_chunk_source(&source);
        let kv = open(&opened);
        let left = pairs(&kv).expect("every page is good");
        match kv.applied_in_base() {
            Lsn(2000) => assert_eq!((left == base, before += 1), (true, ())),
            _ => assert_eq!((left == model, after += 1), (true, ())),
        }
        assert_eq!(verify(&kv).damaged, 0);
    }
    assert!(before > 0 && after > 0, "{before} before, {after} after");
}

#[test]
fn a_store_that_finds_no_room_to_be_renewed_is_what_it_was() {
    let (_disk, container, _source) = container();
    let (kv, model) = filled(&container);
    let few = limit(&container, 1);
    let before = chunk_starts(&container);
    assert_eq!(kv.renew(false).expect_err("full").kind(), ErrorKind::NoSpace);
    assert_eq!((pairs(&kv), *few.0.lock()), (Ok(model), 1), "what was claimed is given back");
    assert_eq!(chunk_starts(&container), before);
}

/// Changes some words of a unit of the store and makes its checksum anew. Returns true if the unit
/// held values. When redb *writes*, the effects of false contents in its own pages are not bounded:
/// one case in some thousands panics in a destructor while it unwinds, and nothing can catch that.
fn lie(rng: &mut Rng, disk: &SimDisk, container: &Container) -> bool {
    let starts = chunk_starts(container);
    let start = starts[rng.index(starts.len())];
    let (mut table, mut unit) = (vec![0; UNIT as usize], vec![0; UNIT as usize]);
    disk.read_at(start, &mut table).expect("there");
    let at = loop {
        let at = rng.index(255);
        if table[4 * at..][..4] != [0; 4] {
            break at;
        }
    };
    let place = start + (1 + at as u64) * UNIT;
    disk.read_at(place, &mut unit).expect("there");
    let has_values =
        unit.chunk_by(|one, next| one == next).any(|run| run[0] != 0 && run.len() >= 200);
    for _ in 0..=rng.below(4) {
        let limit = if rng.one_in(3) { unit.len() } else { 64 };
        let word = rng.index(limit / 2) * 2;
        let value = match rng.below(4) {
            0 => rng.next_u64() as u16,
            1 => u16::from_le_bytes([unit[word], unit[word + 1]]) ^ (1 << rng.below(16)),
            2 => u16::from_le_bytes([unit[word], unit[word + 1]]).wrapping_add(1),
            _ => [0, u16::MAX, 1 << 15][rng.index(3)],
        };
        unit[word..word + 2].copy_from_slice(&value.to_le_bytes());
    }
    disk.write_at(place, &unit).expect("written");
    let crc = crc32c::crc32c(&unit).max(1);
    table[4 * at..][..4].copy_from_slice(&crc.to_le_bytes());
    disk.write_at(start, &table).expect("written");
    has_values
}

#[test]
fn pages_that_lie_under_good_checksums_never_panic() {
    let (disk, container, source) = container();
    drop(filled(&container));
    let (mut opened, mut errors, mut lost) = (0, 0, 0);
    for seed in test_seeds(0, 150 * test_scale()) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let image = disk.copy();
        let is_written = lie(&mut rng, &image, &container);
        let container = Container::open(image).expect("its superblock is good");
        container.set_chunk_source(&source);
        let Ok(kv) = Kv::open(container.kv_region(KvRole::Metadata), CACHE_BYTES) else {
            continue;
        };
        opened += 1;
        let mut model = Model::new();
        let mut use_it = || -> Result<()> {
            pairs(&kv)?;
            kv.scan_back(&[], &[255; 9], &mut |_, _| true)?;
            (0..2000u64).step_by(37).try_for_each(|key| kv.get(&key.to_be_bytes()).map(drop))?;
            if !is_written {
                return Ok(());
            }
            (2001..2100).for_each(|lsn| put(&kv, &mut model, lsn * 7 % 2000, lsn));
            kv.checkpoint()?;
            kv.renew(true).map(drop)
        };
        errors += u64::from(use_it().is_err());
        // After a panic, everything that is not in memory stays an error.
        if kv.checkpointing.lock().as_ref().is_some_and(|writer| writer.trust.is_lost()) {
            lost += 1;
            put(&kv, &mut model, 1, 3000);
            assert!(kv.get(b"unknown").is_err() && kv.checkpoint().is_err(), "seed {seed}");
            model.iter().for_each(|(key, value)| {
                assert_eq!(kv.get(key).expect("in memory").as_deref(), Some(&value[..]));
            });
        }
        if !is_written {
            // Closing the store would write.
            std::mem::forget(kv);
        }
    }
    println!("{opened} opened, {errors} with errors, {lost} of them not trusted any more");
    assert!(errors > 0 && opened > errors, "{opened} opened, {errors} with errors");
}
