//! Rounds over NSDs in memory that go, lose what they only accepted, and return: what a returning
//! NSD lacks must stand in what the others know (R1), without anything that the writer remembers.

use super::*;
use crate::nsds::{Place, RecoveryEnd};
use crate::stripe_io::padded_bytes;
use crate::stripe_io::stripe_io_test::{Bench, bench, io_over_all};
use std::collections::{BTreeMap, BTreeSet};
use strake_env::{RealClock, Rng};
use strake_proto::layout::NsdAvailability;
use strake_proto::{Code, Version};

const BLOCKS: u64 = 6;

/// Keeps what became stable.
struct Keeper(Arc<Mutex<Vec<SettledStripe>>>);

impl Outcome for Keeper {
    fn stable(self: Box<Self>, stripe: SettledStripe) {
        self.0.lock().push(stripe);
    }

    fn lost(self: Box<Self>, _fault: Option<Error>) {}
}

struct Rehearsal {
    rng: Rng,
    bench: Bench,
    io: Arc<StripeIo>,
    rounds: Rounds,
    stable: Arc<Mutex<Vec<SettledStripe>>>,
    /// The newest acknowledged version of each block.
    acknowledged: BTreeMap<BlockIndex, Version>,
    /// The NSD that is away.
    away: Option<SlotIndex>,
    /// How often a returning NSD lacked something.
    lacked: u64,
}

impl Rehearsal {
    fn new(seed: u64, code: Code) -> Rehearsal {
        let bench = bench(code, 5);
        let io = Arc::new(io_over_all(&bench, 1));
        let observe = Observe::new(RealClock::shared(), 16);
        Rehearsal {
            rng: Rng::new(seed),
            rounds: Rounds::new(Arc::clone(&io), observe),
            bench,
            io,
            stable: Arc::default(),
            acknowledged: BTreeMap::new(),
            away: None,
            lacked: 0,
        }
    }

    /// Writes a block. An NSD may go in the midst of it.
    fn write(&mut self) {
        let block = BlockIndex(self.rng.below(BLOCKS));
        // Blocks of one length have all positions at all times.
        let bytes = vec![0; padded_bytes(self.bench.layout.code, 200_000)];
        let restarts = self.io.nsds().restarts();
        let stable = self.acknowledged.get(&block).copied().unwrap_or(Version::NONE);
        let written = self.io.write_block(&self.bench.layout, block, 200_000, &bytes, stable);
        let written = written.expect("only one NSD is away");
        self.rounds.add(Accepted {
            layout: self.bench.layout,
            block,
            written,
            charge: 0,
            restarts,
            outcome: Box::new(Keeper(Arc::clone(&self.stable))),
        });
    }

    /// Runs a round. What is stable is acknowledged, and some of it is settled with a later round.
    fn round(&mut self) {
        let _ = self.rounds.run(true);
        let mut stable = std::mem::take(&mut *self.stable.lock());
        for stripe in &stable {
            self.acknowledged.insert(stripe.block, stripe.version);
        }
        stable.retain(|_| !self.rng.one_in(4));
        self.rounds.settle(&mut stable);
    }

    /// An NSD goes. Nobody has noticed yet.
    fn lose(&mut self) {
        if self.away.is_none() {
            let slot = SlotIndex(self.rng.below(5) as u16);
            self.bench.nsds[usize::from(slot.0)].set_down(true);
            self.away = Some(slot);
        }
    }

    /// The NSD is back. It was started anew and lacks what it had only accepted, or it was only not
    /// reached.
    fn bring_back(&mut self) {
        let Some(slot) = self.away.take() else { return };
        let nsds = Arc::clone(self.io.nsds());
        let nsd = Arc::clone(&self.bench.nsds[usize::from(slot.0)]);
        if self.rng.one_in(3) {
            nsd.keep_all();
        }
        match self.rng.one_in(2) {
            true => nsd.crash(),
            false => nsd.set_down(false),
        }
        // It is compared even if nobody noticed that it was away.
        nsds.fail(slot);
        nsds.note(slot).expect("only one is away");
        nsds.check(slot);
        assert!(nsds.begin_recovery(slot));
        let listed = self.io.lacking(slot).expect("all others are there");
        let listed: BTreeSet<BlockIndex> =
            listed.get(&self.bench.layout.object).cloned().unwrap_or_default();
        for (block, version) in self.acknowledged.clone() {
            let placed = nsds.stripe(&self.bench.layout, block).expect("placed");
            let Some(at) = placed.iter().position(|other| *other == slot) else { continue };
            let held = nsd.version(self.bench.layout.object, block, at as u8);
            if held.is_none_or(|held| held < version) {
                self.lacked += 1;
                assert!(listed.contains(&block), "{block} at {version}: {held:?}, {listed:?}");
                self.copy(slot, block, at as u8);
            }
        }
        nsds.missed().take(slot);
        let _ = self.rounds.run(true);
        nsds.missed().take(slot);
        assert_eq!(nsds.end_recovery(slot), Ok(RecoveryEnd::Up));
        assert_eq!(nsds.availability(slot), NsdAvailability::Up);
    }

    fn copy(&self, slot: SlotIndex, block: BlockIndex, at: u8) {
        let (layout, target) = (&self.bench.layout, (slot, Place::Current));
        self.io.copy_strip(layout, block, Version::NONE, at, target, false).expect("copied");
    }
}

#[test]
fn what_a_returning_nsd_lacks_stands_in_what_the_others_know() {
    let mut lacked = 0;
    for seed in strake_env::rng::test_seeds(0, 60) {
        println!("seed {seed}");
        let code = [Code { data: 1, parity: 1 }, Code { data: 2, parity: 1 }][seed as usize % 2];
        let mut rehearsal = Rehearsal::new(seed, code);
        for _ in 0..80 {
            match rehearsal.rng.below(10) {
                0..=4 => rehearsal.write(),
                5..=7 => rehearsal.round(),
                8 => rehearsal.lose(),
                _ => rehearsal.bring_back(),
            }
        }
        lacked += rehearsal.lacked;
    }
    assert!(lacked > 100, "only {lacked} times did an NSD lack something");
}

/// A patch dirties few bytes. Without the second limit tens of thousands of them would wait.
#[test]
fn many_small_patches_make_a_round_due() {
    let many = Waiting { bytes: STRIPES_DUE * 4096, stripes: STRIPES_DUE };
    assert!(many.is_much(64 << 20));
    let fewer = Waiting { stripes: STRIPES_DUE - 1, ..many };
    assert!(!fewer.is_much(64 << 20) && fewer.is_much(fewer.bytes));
}
