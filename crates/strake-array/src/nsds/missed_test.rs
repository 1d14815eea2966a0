//! The tables beside NSDs that are nothing but maps: random writes that some leave out or fail,
//! commits that reach some, disks that are started anew, recoveries that end or do not. What the
//! tables promise is looked at after every step.

use super::{Missed, Sent};
use std::collections::{BTreeMap, BTreeSet};
use strake_env::Rng;
use strake_proto::{BlockIndex, ObjectId, SlotIndex};

const SLOTS: usize = 5;

type Key = (ObjectId, BlockIndex);

#[derive(Clone, Default)]
struct Disk {
    stable: BTreeMap<Key, u64>,
    accepted: BTreeMap<Key, u64>,
    /// It gets writes.
    writable: bool,
    /// Its table says what it lacks.
    known: bool,
}

struct Model {
    rng: Rng,
    missed: Missed,
    disks: Vec<Disk>,
    /// The newest version of each block.
    newest: BTreeMap<Key, u64>,
    version: u64,
    /// Blocks sent since the last commit.
    sent: BTreeSet<Key>,
    restarts: u64,
}

fn slot(at: usize) -> SlotIndex {
    SlotIndex(at as u16)
}

impl Model {
    fn new(seed: u64) -> Model {
        let disk = Disk { writable: true, known: true, ..Disk::default() };
        Model {
            rng: Rng::new(seed),
            missed: Missed::new(SLOTS),
            disks: vec![disk; SLOTS],
            newest: BTreeMap::new(),
            version: 0,
            sent: BTreeSet::new(),
            restarts: 0,
        }
    }

    fn write(&mut self) {
        let key = (ObjectId(self.rng.below(3)), BlockIndex(self.rng.below(6)));
        self.version += 1;
        let version = self.version;
        let restarts = self.restarts;
        let mut accepted = Vec::new();
        for at in 0..SLOTS {
            let disk = &mut self.disks[at];
            if disk.writable && !self.rng.one_in(6) {
                disk.accepted.insert(key, version);
                accepted.push(slot(at));
            } else {
                self.missed.note(slot(at), key.0, key.1);
            }
        }
        self.newest.insert(key, version);
        self.sent.insert(key);
        self.missed.sent(Sent { object: key.0, block: key.1, accepted, restarts });
    }

    fn commit(&mut self) {
        let batch = self.missed.begin_commit();
        self.sent.clear();
        // A write and a restart between.
        if self.rng.one_in(3) {
            self.write();
        }
        if self.rng.one_in(4) {
            self.restart();
        }
        let mut unreached = Vec::new();
        for at in 0..SLOTS {
            let disk = &mut self.disks[at];
            if disk.writable && !self.rng.one_in(5) {
                for (key, version) in std::mem::take(&mut disk.accepted) {
                    // As an NSD has it: the newer one stays.
                    let stable = disk.stable.entry(key).or_default();
                    *stable = version.max(*stable);
                }
            } else {
                unreached.push(slot(at));
            }
        }
        let lacking = self.missed.end_commit(batch, &unreached, self.restarts);
        assert!(lacking.iter().all(|slot| unreached.contains(slot)));
        for at in &lacking {
            let known = self.disks[usize::from(at.0)].known;
            assert!(!known || !self.missed.is_clean(*at), "what lacks something has an entry");
        }
    }

    /// One loses what it had only accepted; those who sent it are told.
    fn restart(&mut self) {
        let at = self.rng.index(SLOTS);
        self.disks[at].accepted.clear();
        self.restarts += 1;
    }

    /// What is in the table is copied and made stable, unless it comes to nothing.
    fn recover(&mut self) {
        let at = self.rng.index(SLOTS);
        self.disks[at].writable = true;
        let table = self.missed.take(slot(at));
        if self.rng.one_in(3) {
            if self.rng.one_in(2) {
                self.write();
            }
            self.missed.give_back(slot(at), table);
            return;
        }
        let full = !table.is_complete();
        for (key, version) in self.newest.clone() {
            let listed = table.blocks_of(key.0).is_some_and(|blocks| blocks.contains(&key.1));
            if full || listed {
                self.disks[at].stable.insert(key, version);
            }
        }
        self.disks[at].known = true;
    }

    fn check(&mut self) {
        for at in 0..SLOTS {
            let table = self.missed.take(slot(at));
            assert_eq!(table.is_complete(), self.disks[at].known);
            for (key, version) in &self.newest {
                let has = self.disks[at].stable.get(key) == Some(version);
                let listed = table.blocks_of(key.0).is_some_and(|blocks| blocks.contains(&key.1));
                let safe = has || listed || self.sent.contains(key) || !table.is_complete();
                assert!(safe, "slot {at} lacks {key:?} and nobody knows");
            }
            assert_eq!(table.is_clean(), table.is_complete() && table.blocks() == 0);
            self.missed.give_back(slot(at), table);
        }
    }
}

#[test]
fn what_an_nsd_lacks_is_in_its_table_or_the_table_is_incomplete() {
    for seed in strake_env::rng::test_seeds(1, 300) {
        println!("seed {seed}");
        let mut model = Model::new(seed);
        for _ in 0..300 {
            match model.rng.below(12) {
                0..6 => model.write(),
                6..8 => model.commit(),
                8 => model.restart(),
                9 => {
                    let at = model.rng.index(SLOTS);
                    model.disks[at].writable = !model.disks[at].writable;
                }
                10 => {
                    let at = model.rng.index(SLOTS);
                    if model.rng.one_in(4) {
                        model.missed.distrust(slot(at));
                        model.disks[at].known = false;
                    }
                }
                _ => model.recover(),
            }
            model.check();
        }
    }
}

#[test]
fn a_table_that_grows_too_long_is_incomplete_and_stays_small() {
    let mut missed = Missed::new(2);
    for block in 0..=super::BLOCKS_MAX as u64 {
        missed.note(slot(0), ObjectId(1), BlockIndex(block));
    }
    missed.note(slot(0), ObjectId(1), BlockIndex(7));
    let table = missed.take(slot(0));
    assert!(!table.is_complete() && table.blocks() == 0);
    assert!(missed.is_clean(slot(0)) && missed.is_clean(slot(1)));
    missed.give_back(slot(0), table);
    assert!(!missed.is_clean(slot(0)));
}

#[test]
fn a_list_of_sent_blocks_that_grows_too_long_makes_tables_incomplete() {
    for (restarts, whole) in [(0, true), (1, false)] {
        let mut missed = Missed::new(2);
        for block in 0..=super::BLOCKS_MAX as u64 {
            let (object, block, accepted) =
                (ObjectId(1), BlockIndex(block), vec![slot(0), slot(1)]);
            missed.sent(Sent { object, block, accepted, restarts: 0 });
        }
        let batch = missed.begin_commit();
        let lacking = missed.end_commit(batch, &[slot(0)], restarts);
        assert_eq!(lacking, BTreeSet::from([slot(0)]));
        assert!(!missed.take(slot(0)).is_complete());
        assert_eq!(missed.take(slot(1)).is_complete(), whole);
        let batch = missed.begin_commit();
        assert!(missed.end_commit(batch, &[slot(0)], 0).is_empty(), "it was taken");
    }
}
