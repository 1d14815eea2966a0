//! Flips bits in copies of the metadata in use. The damage is found and mended. Then the other
//! copies are lost.

use crate::store::store_test::*;
use crate::store::*;
use crate::testing::entry;
use std::collections::BTreeSet;
use strake_env::rng::test_seeds;
use strake_env::{AlignedBuffer, Rng};
use strake_proto::nsd::ScrubPart;

fn scrub(store: &MetaStore) -> ScrubPart {
    let mut sum = ScrubPart::default();
    let (mut nsd, mut part) = (NsdId(0), 0);
    loop {
        let query = MetaQuery::ScrubCopy { nsd, part };
        let MetaReply::CopyScrubbed(found) = store.query(&query).expect("scrubs") else {
            panic!("another reply")
        };
        let Some((at, found)) = found else { return sum };
        (nsd, part) = match found.next {
            Some(next) => (at, next),
            None => (NsdId(at.0 + 1), 0),
        };
        sum.bytes += found.bytes;
        sum.bad += found.bad;
        sum.mended += found.mended;
        assert_eq!(found.bad > 0, found.fault.is_some());
    }
}

/// The place of a written byte of the metadata's log, or of its base, in a container.
fn place(rng: &mut Rng, container: &Container, is_log: bool) -> u64 {
    let (from, to) = if is_log {
        let from = (1 << 20) + container.geometry().log_bytes;
        (from, from + 64 * 4096)
    } else {
        let chunk = container.superblock().metadata_kv.chunks[0];
        let range = container.geometry().chunk_range(chunk);
        (range.start, range.end)
    };
    let mut bytes = AlignedBuffer::zeroed((to - from) as usize);
    container.disk().read_at(from, &mut bytes).expect("reads");
    let written: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    from + written[rng.index(written.len())] as u64
}

fn check(store: &MetaStore) {
    match store.query(&MetaQuery::Check).expect("checks") {
        MetaReply::Checked(reply) => assert!(reply.faults.is_empty(), "{reply:?}"),
        other => panic!("{other:?}"),
    }
}

/// Applies random changes. Returns how many were applied.
fn change(store: &MetaStore, promised: &mut Promised, rng: &mut Rng, count: usize) {
    for _ in 0..count {
        let entry = entry(5, random_op(rng));
        let before = store.entries();
        // A refused change changes nothing.
        let _ = store.apply(&entry);
        if store.entries() > before {
            promised.push(&entry);
        }
    }
    store.sync().expect("syncs");
}

#[test]
fn a_flipped_bit_in_any_copy_is_mended_in_use_and_then_the_others_may_go() {
    let (mut mended, mut remade) = (0, 0);
    for seed in test_seeds(0, 18) {
        let mut rng = Rng::new(seed);
        // Without a further disk, with one, and with three copies.
        let (count, parity) = [(2, 1), (4, 1), (3, 2)][(seed % 3) as usize];
        let (rig, store) = Rig::new(count, parity, true);
        let mut promised = Promised::new(pool(count, parity));
        change(&store, &mut promised, &mut rng, 100);
        store.checkpoint().expect("room");
        change(&store, &mut promised, &mut rng, 30);
        let holders = store.holders().1;
        let damaged = holders[rng.index(holders.len())];
        let at = damaged.0 as usize - 1;
        store.state.read().holders.iter().for_each(|holder| holder.kv.forget_caches());
        assert_eq!(scrub(&store).bad, 0, "seed {seed}");
        let generation = store.holders().0;
        let is_log = rng.one_in(3);
        let place = place(&mut rng, &rig.container(at), is_log);
        rig.disks[at].flip(place, 1 << rng.below(8));
        let context = format!("seed {seed}, NSD {damaged}, byte {place}");
        let is_met = rng.one_in(2);
        if is_met {
            // Every question is answered, perhaps by another copy.
            check(&store);
            store.tick();
        }
        change(&store, &mut promised, &mut rng, 10);
        let found = scrub(&store);
        assert_eq!(found.bad, found.mended, "{context}: {found:?}");
        assert!(scrub(&store).bad == 0 && store.holders().1.len() == holders.len(), "{context}");
        mended += found.mended;
        remade += u64::from(store.holders().0 != generation);
        change(&store, &mut promised, &mut rng, 10);
        promised.require(&store, store.entries(), &context);
        let entries = store.entries();
        let now = store.holders().1;
        drop(store);
        // All other copies are removed.
        let kept = now[rng.index(now.len())];
        let gone: Vec<usize> =
            now.iter().filter(|nsd| **nsd != kept).map(|nsd| nsd.0 as usize - 1).collect();
        assert!(gone.len() <= usize::from(parity));
        let unique: BTreeSet<usize> = gone.iter().copied().collect();
        assert_eq!(unique.len(), gone.len());
        let store = rig.open(&gone).expect("one copy is enough");
        promised.require(&store, entries, &context);
        check(&store);
    }
    println!("{mended} mended, {remade} copies made anew");
    assert!(mended > 4 && remade > 1, "{mended} mended, {remade} made anew");
}

#[test]
fn the_only_copy_is_kept_although_it_is_damaged() {
    let (rig, store) = Rig::new(1, 0, false);
    let mut promised = Promised::new(pool(1, 0));
    let mut rng = Rng::new(1);
    change(&store, &mut promised, &mut rng, 60);
    store.checkpoint().expect("room");
    for _ in 0..40 {
        store.state.read().holders[0].kv.forget_caches();
        // The damage moves with every repair.
        let place = place(&mut rng, &rig.container(0), false);
        rig.disks[0].flip(place, 1);
        let found = scrub(&store);
        rig.disks[0].flip(place, 1);
        if found.bad > found.mended {
            assert_eq!(store.holders().1, [NsdId(1)]);
            promised.require(&store, store.entries(), "it is good again");
            return;
        }
    }
    panic!("no live page was hit");
}
