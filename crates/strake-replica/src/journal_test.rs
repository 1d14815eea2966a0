//! The journal beside a plain model: crashes at every moment, damage, failures, and its bytes.

use super::*;
use crate::types::Bytes;
use std::collections::BTreeMap;
use strake_env::rng::{test_scale, test_seeds};
use strake_env::{Rng, SimDisk};

const IDENTITY: Identity = Identity { cluster: ClusterId([3; 16]), replica: ReplicaId(2) };
const DISK_BYTES: u64 = AREAS_AT + 2 * (64 << 10);

fn members() -> Membership {
    Membership::of([1, 2, 3].map(ReplicaId))
}

fn data(term: u64, position: u64, length: usize) -> Entry {
    let bytes = Bytes::from(vec![position as u8; length]);
    let payload = Payload::Data { level: 0, bytes };
    Entry { term: Term(term), position: Position(position), payload }
}

fn batch(entries: Vec<Entry>) -> Batch {
    Batch { ticket: 0, hard: None, entries, snapshot: None, sync: true }
}

fn open(disk: &Arc<SimDisk>) -> Result<(Journal, Hard, Log), JournalError> {
    Journal::open(disk.clone(), IDENTITY, 9)
}

fn created() -> Arc<SimDisk> {
    let disk = SimDisk::new(DISK_BYTES);
    Journal::create(disk.clone(), IDENTITY, Some(members())).expect("the disk is new");
    disk
}

/// What a journal must hold, as the steps so far say it.
#[derive(Clone, Debug, PartialEq)]
struct Model {
    hard: Hard,
    base: Stamp,
    snapshot: Option<Arc<Snapshot>>,
    entries: Vec<Entry>,
}

impl Model {
    fn of(hard: &Hard, log: &Log) -> Model {
        let entries = log.from(log.base().position.next()).to_vec();
        Model { hard: hard.clone(), base: log.base(), snapshot: log.snapshot().cloned(), entries }
    }

    /// The life is another one after each opening.
    fn without_life(mut self) -> Model {
        self.hard.life = Life::default();
        self
    }

    /// A random step, and what is then in the model.
    fn step(&mut self, rng: &mut Rng) -> Batch {
        let mut step = batch(Vec::new());
        if rng.one_in(4) {
            self.hard.term.0 += 1;
            self.hard.voted = Some(ReplicaId(rng.below(3) as u32));
            step.hard = Some(self.hard.clone());
        }
        let snapshot_position = self.snapshot.as_ref().map_or(0, |taken| taken.stamp.position.0);
        let last = self.base.position.0 + self.entries.len() as u64;
        let threshold = snapshot_position.max(self.base.position.0).max(1);
        let from = match rng.one_in(4) && last > threshold {
            // Another leader has something else there.
            true => threshold + 1 + rng.below(last - threshold),
            false => last + 1,
        };
        let count = rng.below(4) + u64::from(from <= last);
        self.entries.retain(|entry| entry.position.0 < from);
        for position in from..from + count {
            let entry = data(self.hard.term.0, position, rng.index(3000));
            step.entries.push(entry.clone());
            self.entries.push(entry);
        }
        let is_large = self.entries.iter().map(Entry::cost).sum::<usize>() > 20_000;
        if is_large || rng.one_in(8) && self.entries.len() > 3 {
            let mut log = Log::of(self.base, self.snapshot.clone(), self.entries.clone())
                .expect("the model is a log");
            let position = log.last().position;
            let bytes = Bytes::from(vec![7; rng.index(9000)]);
            let snapshot = Arc::new(log.snapshot_at(position, bytes).expect("it is there"));
            log.take_snapshot(Arc::clone(&snapshot), rng.below(3), 4000);
            *self = Model { hard: self.hard.clone(), ..Model::of(&self.hard, &log) };
            step.snapshot = Some((snapshot, self.base));
            step.entries = self.entries.clone();
        }
        step
    }
}

/// Runs random steps. Then cuts the power somewhere and opens what is left.
fn crash(seed: u64) {
    let mut rng = Rng::new(seed);
    let disk = created();
    let (mut journal, hard, log) = open(&disk).expect("it was made");
    let mut model = Model::of(&hard, &log);
    // Each state with the place in the disk's log at which it was written.
    let mut states = vec![(disk.position(), model.clone())];
    let mut synced = vec![(disk.position(), 0usize)];
    for _ in 0..40 {
        let step = model.step(&mut rng);
        let syncs = rng.one_in(2);
        match syncs && rng.one_in(2) {
            true => journal.write_and_sync(&step).expect("the disk works"),
            false => journal.write(&step).expect("the disk works"),
        }
        states.push((disk.position(), model.clone()));
        if syncs {
            journal.sync().expect("the disk works");
            synced.push((disk.position(), states.len() - 1));
        }
    }
    for _ in 0..6 {
        let at = states[0].0 + rng.below(disk.position() - states[0].0 + 1);
        let image = disk.crash(at, &mut rng);
        let (_, hard, log) = open(&image).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        let found = Model::of(&hard, &log).without_life();
        let least =
            synced.iter().rev().find(|(position, _)| *position <= at).map_or(0, |one| one.1);
        // The step in which the power went may be complete already.
        let most =
            states.iter().position(|(position, _)| *position > at).unwrap_or(states.len() - 1);
        let is_known =
            states[least..=most].iter().any(|(_, state)| state.clone().without_life() == found);
        assert!(is_known, "seed {seed}, at {at}: not a state from {least} to {most}");
    }
}

#[test]
fn a_crash_leaves_a_state_at_or_after_the_last_sync() {
    for seed in test_seeds(0, 60 * test_scale()) {
        crash(seed);
    }
    let breaks = |seed| crate::rule::without(Rule::SyncsReachTheDisk, || crash(seed));
    let is_missed = (0..200).any(|seed| std::panic::catch_unwind(|| breaks(seed)).is_err());
    assert!(is_missed, "without syncs something is lost");
}

#[test]
fn a_life_is_never_lived_twice_and_an_opening_keeps_everything() {
    let disk = created();
    let (_, first, log) = open(&disk).expect("it was made");
    let (_, second, again) = open(&disk).expect("it is there");
    assert_eq!((first.life.number, second.life.number), (1, 2));
    assert_eq!(Model::of(&first, &log).without_life(), Model::of(&second, &again).without_life());
    assert_eq!(again.membership(), &members());
}

/// A journal with six records that are synced one by one, and the place of the last.
fn six_records() -> (Arc<SimDisk>, u64) {
    let disk = created();
    let (mut journal, ..) = open(&disk).expect("it was made");
    for position in 2..=6 {
        journal.write(&batch(vec![data(1, position, 10)])).expect("the disk works");
        journal.sync().expect("the disk works");
    }
    let at = area_at(journal.area_bytes, journal.epoch);
    (disk, at + journal.at - BLOCK_BYTES as u64)
}

#[test]
fn damage_before_the_end_is_refused_and_a_torn_end_is_cut() {
    let (disk, last) = six_records();
    disk.flip(last - 2 * BLOCK_BYTES as u64 + 90, 1);
    let refused = open(&disk).map(|_| ()).expect_err("two later records say that it was durable");
    assert!(refused.to_string().contains("a record is bad that was durable"), "{refused}");

    let (disk, last) = six_records();
    disk.flip(last + 90, 1);
    let (_, _, log) = open(&disk).expect("the last record may be torn");
    assert_eq!(log.last().position, Position(5));
}

#[test]
fn a_lost_superblock_with_records_of_its_epoch_is_refused() {
    let (disk, _) = six_records();
    // The opening was epoch 2, so block 0 names it.
    disk.flip(20, 1);
    let refused = open(&disk).map(|_| ()).expect_err("epoch 1 is not the newest");
    assert!(refused.to_string().contains("newest superblock"), "{refused}");
    disk.flip(BLOCK_BYTES as u64 + 20, 1);
    let refused = open(&disk).map(|_| ()).expect_err("there is none left");
    assert!(matches!(refused, JournalError::Damaged(_)), "{refused}");
}

#[test]
fn a_damaged_journal_in_use_is_found_and_written_anew() {
    let mut found = 0;
    for seed in test_seeds(0, 60 * test_scale()) {
        let mut rng = Rng::new(seed);
        let disk = created();
        let (mut journal, hard, log) = open(&disk).expect("it was made");
        let mut model = Model::of(&hard, &log);
        for _ in 0..rng.index(12) {
            journal.write(&model.step(&mut rng)).expect("the disk works");
            journal.span().verify().expect("it is whole, synced or not");
        }
        let span = journal.span();
        // A place in the superblock or the records in force.
        let places = span.at + SUPERBLOCK_BYTES as u64;
        let at = match rng.below(places).checked_sub(SUPERBLOCK_BYTES as u64) {
            Some(at) => area_at(journal.area_bytes, journal.epoch) + at,
            None => (journal.epoch % 2) * BLOCK_BYTES as u64 + rng.below(SUPERBLOCK_BYTES as u64),
        };
        disk.flip(at, 1 << rng.below(8));
        span.verify().expect_err("every byte of it counts");
        if rng.one_in(3) {
            // The thread that writes goes on before it hears of the damage.
            journal.write(&model.step(&mut rng)).expect("the disk works");
        }
        let is_in_force = journal.epoch == span.epoch;
        assert_eq!(journal.renew(span.epoch).expect("the disk works"), is_in_force);
        assert!(!journal.renew(span.epoch).expect("the disk works"), "once is enough");
        journal.span().verify().expect("it is whole again");
        let (_, hard, log) = open(&disk).expect("it is whole again");
        assert_eq!(Model::of(&hard, &log).without_life(), model.without_life(), "seed {seed}");
        found += usize::from(is_in_force);
    }
    assert!(found > 40, "{found} found");
}

#[test]
fn a_journal_serves_its_own_replica_only() {
    let disk = SimDisk::new(DISK_BYTES);
    assert!(matches!(open(&disk).map(|_| ()), Err(JournalError::Missing)));
    let disk = created();
    let again = Journal::create(disk.clone(), IDENTITY, None);
    assert!(matches!(again, Err(JournalError::Exists)));
    let other = Identity { replica: ReplicaId(3), ..IDENTITY };
    let refused = Journal::open(disk, other, 1).map(|_| ());
    assert!(matches!(refused, Err(JournalError::Foreign(owner)) if owner == IDENTITY));
    let small = SimDisk::new(JOURNAL_BYTES_MIN - BLOCK_BYTES as u64);
    assert!(matches!(Journal::create(small, IDENTITY, None), Err(JournalError::TooSmall)));
}

#[test]
fn after_a_failure_nothing_is_accepted() {
    let disk = created();
    let (mut journal, ..) = open(&disk).expect("it was made");
    disk.set_faults(|faults| faults.writes_until_error = Some(0));
    assert!(journal.write(&batch(vec![data(1, 2, 10)])).is_err());
    disk.set_faults(|faults| faults.writes_until_error = None);
    assert!(journal.write(&batch(vec![data(1, 3, 10)])).is_err());
    assert!(journal.sync().is_err());
}

#[test]
fn the_bytes_of_records_and_superblocks_are_these() {
    let identity = IDENTITY;
    let hard = Hard {
        term: Term(5),
        voted: Some(ReplicaId(1)),
        life: Life { number: 3, chance: 4 },
        lives: [(ReplicaId(1), Life { number: 2, chance: 6 })].into(),
    };
    let record = Record { hard: Some(hard), whole: None, entries: vec![data(5, 9, 3)] };
    let head = Head { identity, epoch: 2, sequence: 7, synced: 6, length: 0, body_bytes: 0 };
    let bytes = record::encode(&head, &record);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(bytes.len(), BLOCK_BYTES);
    assert_eq!(hex(&bytes[..104]), GOLDEN_RECORD);
    let snapshot = Snapshot {
        stamp: Stamp { term: Term(4), position: Position(8) },
        membership: members(),
        level: 1,
        bytes: Bytes::from(&b"state"[..]),
    };
    let base = Stamp { term: Term(4), position: Position(7) };
    let first = Record { whole: Some((base, Some(snapshot))), ..record.clone() };
    let first = record::encode(&Head { sequence: 0, synced: 0, ..head }, &first);
    assert_eq!(hex(&first[72..144]), GOLDEN_FIRST);
    assert_eq!(hex(&superblock(identity, 2, 65536)[..SUPERBLOCK_BYTES]), GOLDEN_SUPERBLOCK);
    let (found, body) = record::at(&bytes, 0, identity).expect("it is valid");
    assert_eq!((found.sequence, record::decode(body)), (7, Some(record)));
}

const GOLDEN_RECORD: &str = "535452414b45727252819af20100000003030303030303030303030303030303020000000000000002000000000000000700000000000000060000000000000000100000000000001400000000000000010501010304010102060001050903000309090900000000";
const GOLDEN_FIRST: &str = "260000000000000001050101030401010206010407010408030102030000010573746174650105090300030909090000000000000000000000000000000000000000000000000000";
const GOLDEN_SUPERBLOCK: &str = "535452414b45727376326c6001000000030303030303030303030303030303030200000000000000020000000000000000000100000000000000000000000000";

#[test]
fn mutated_bytes_are_refused_and_never_panic() {
    let (disk, last) = six_records();
    let area_bytes = area_bytes(disk.as_ref()).expect("it is large enough");
    for seed in test_seeds(0, 300 * test_scale()) {
        let mut rng = Rng::new(seed);
        let image = disk.copy();
        let mut area = AlignedBuffer::zeroed(area_bytes as usize);
        image.read_at(area_at(area_bytes, 2), &mut area).expect("it reads");
        let record = rng.index((last / BLOCK_BYTES as u64) as usize - 2) % 6 * BLOCK_BYTES;
        for _ in 0..1 + rng.index(4) {
            let at = record + rng.index(160);
            area[at] = rng.next_u64() as u8;
        }
        let block = &mut area[record..record + BLOCK_BYTES];
        let crc = record::checksum(block);
        block[8..12].copy_from_slice(&crc.to_le_bytes());
        image.write_at(area_at(area_bytes, 2), &area).expect("it writes");
        let _ = open(&image).map(|(_, hard, log)| Model::of(&hard, &log));
    }
}

const NEXT: Identity = Identity { cluster: ClusterId([4; 16]), replica: ReplicaId(2) };

#[test]
fn a_log_goes_on_alone_in_a_group_of_its_own() {
    let (disk, _) = six_records();
    let (mut journal, hard, before) = open(&disk).expect("it is there");
    let lives = [(ReplicaId(1), Life { number: 7, chance: 6 })].into();
    let hard = Hard { term: Term(5), lives, ..hard };
    journal.write(&Batch { hard: Some(hard), ..batch(Vec::new()) }).expect("the disk works");
    journal.sync().expect("the disk works");
    Journal::go_on(disk.clone(), IDENTITY, NEXT, b"go on").expect("it goes on");
    let refused = open(&disk).map(|_| ()).expect_err("it belongs to the other group");
    assert!(matches!(refused, JournalError::Foreign(owner) if owner == NEXT), "{refused}");
    assert_eq!(Journal::owner(disk.as_ref()).expect("it has one"), NEXT);
    let (_, hard, log) = Journal::open(disk.clone(), NEXT, 3).expect("it is there");
    let (all, first) = (log.from(Position(1)), before.from(Position(1)));
    assert_eq!(&all[..first.len()], first, "what it had stays, committed or not");
    let added: Vec<_> = all[first.len()..].iter().map(|entry| entry.payload.clone()).collect();
    let bytes = Bytes::from(&b"go on"[..]);
    let alone = Payload::Membership(Membership::of([NEXT.replica]));
    assert_eq!(added, [alone, Payload::Data { level: 0, bytes }]);
    assert!(log.membership().is_alone(NEXT.replica));
    assert!(log.last().term.0 > TERMS_SKIPPED && hard.term == log.last().term);
    assert_eq!(hard.lives, BTreeMap::new(), "others begin anew");
    let again = Journal::go_on(disk, IDENTITY, NEXT, b"go on");
    assert!(matches!(again, Err(JournalError::Foreign(_))), "once is enough");
}

#[test]
fn a_journal_of_a_void_log_begins_anew() {
    let (disk, _) = six_records();
    Journal::begin_anew(disk.clone(), IDENTITY, NEXT).expect("it begins");
    let (_, hard, log) = Journal::open(disk.clone(), NEXT, 3).expect("it is there");
    assert_eq!((log.last(), log.membership()), (Stamp::default(), &Membership::default()));
    assert_eq!((hard.term, hard.voted), (Term(0), None));
    assert!(matches!(open(&disk).map(|_| ()), Err(JournalError::Foreign(_))));
}

/// The newest superblock is damaged later. The journal of the other group must not come back.
#[test]
fn both_superblocks_name_the_new_group() {
    let (disk, _) = six_records();
    Journal::go_on(disk.clone(), IDENTITY, NEXT, b"go on").expect("it goes on");
    for block in 0..2u64 {
        let image = disk.copy();
        image.flip(block * BLOCK_BYTES as u64 + 20, 1);
        assert_eq!(Journal::owner(image.as_ref()).expect("one is left"), NEXT);
    }
}

#[test]
fn a_crash_leaves_the_journal_of_one_group_whole() {
    let (disk, _) = six_records();
    let before = Journal::peek(disk.clone(), IDENTITY).expect("it is there");
    let start = disk.position();
    Journal::go_on(disk.clone(), IDENTITY, NEXT, b"go on").expect("it goes on");
    let after = Journal::peek(disk.clone(), NEXT).expect("it is there");
    let mut found = [0, 0];
    for seed in test_seeds(0, 100 * test_scale()) {
        let mut rng = Rng::new(seed);
        let at = start + rng.below(disk.position() - start + 1);
        let image = disk.crash(at, &mut rng);
        let owner = Journal::owner(image.as_ref()).expect("it belongs to somebody");
        let log = Journal::peek(image, owner).unwrap_or_else(|fault| panic!("{seed}: {fault}"));
        let whole = if owner == NEXT { &after } else { &before };
        assert_eq!(log.from(Position(1)), whole.from(Position(1)), "seed {seed}");
        found[usize::from(owner == NEXT)] += 1;
    }
    assert!(found.iter().all(|count| *count > 0), "both were met: {found:?}");
}
