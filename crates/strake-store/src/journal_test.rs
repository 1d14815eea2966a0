//! Tests the journal against a list of entries, through power cuts.

use super::*;
use std::sync::Arc;
use strake_env::{Rng, SimDisk};

const RING_BYTES: u64 = 4 << 20;
/// Not zero, so that offsets within the ring and on the disk differ.
const OFFSET: u64 = 8 << 10;

fn region(disk: &Arc<SimDisk>) -> LogRegion {
    LogRegion {
        disk: disk.clone(),
        offset: OFFSET,
        length: RING_BYTES,
        seed: 77,
        follows_data: false,
        is_begun: false,
    }
}

fn new_disk() -> Arc<SimDisk> {
    SimDisk::new(OFFSET + RING_BYTES)
}

/// An entry that holds its number and a nonce. The number also decides its length.
fn entry(number: u64, nonce: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![(number % 251) as u8; length.max(16)];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..16].copy_from_slice(&nonce.to_le_bytes());
    bytes
}

#[test]
fn entries_come_back_in_order_and_numbers_go_on() {
    let disk = new_disk();
    let (journal, found) = Journal::open(region(&disk)).unwrap();
    assert!(found.is_empty());
    let expected: Vec<(Lsn, Vec<u8>)> = (1..=500)
        .map(|number| {
            let bytes = entry(number, 0, (number as usize * 37) % 5000);
            (journal.append(&bytes).unwrap(), bytes)
        })
        .collect();
    assert_eq!(expected[0].0, Lsn(1));
    journal.sync().unwrap();
    drop(journal);
    let (journal, found) = Journal::open(region(&disk)).unwrap();
    assert_eq!(found, expected);
    assert_eq!(journal.append(b"next").unwrap(), Lsn(501));
}

#[test]
fn entries_that_were_not_synced_are_gone_after_a_crash_that_loses_them() {
    let disk = new_disk();
    let (journal, _) = Journal::open(region(&disk)).unwrap();
    journal.append(b"one").unwrap();
    journal.sync().unwrap();
    journal.append(b"two").unwrap();
    let (_, found) = Journal::open(region(&disk.copy())).unwrap();
    assert_eq!(found, vec![(Lsn(1), b"one".to_vec())]);
}

#[test]
fn a_full_ring_refuses_until_it_is_trimmed() {
    let disk = new_disk();
    let (journal, _) = Journal::open(region(&disk)).unwrap();
    let bytes = vec![1; 100_000];
    let mut last = Lsn(0);
    for _ in 0..20 {
        let error = loop {
            match journal.append(&bytes) {
                Ok(lsn) => last = lsn,
                Err(error) => break error,
            }
            journal.sync().unwrap();
        };
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(journal.used() > journal.capacity() - 200_000);
        journal.trim(last).unwrap();
        assert!(journal.used() < 300_000, "{}", journal.used());
    }
    let (_, found) = Journal::open(region(&disk)).unwrap();
    assert_eq!(found.last().unwrap().0, last);
}

#[test]
fn trims_alone_never_fill_the_ring() {
    let disk = new_disk();
    let (journal, _) = Journal::open(region(&disk)).unwrap();
    for _ in 0..3000 {
        journal.trim(journal.last()).unwrap();
        let lsn = journal.append(b"x").unwrap();
        journal.sync().unwrap();
        journal.trim(lsn).unwrap();
        assert!(journal.used() <= 64 << 10);
    }
}

#[test]
fn an_entry_too_long_is_refused_and_the_longest_fits() {
    let disk = new_disk();
    let (journal, _) = Journal::open(region(&disk)).unwrap();
    let error = journal.append(&vec![0; ENTRY_BYTES_MAX + 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooBig);
    journal.append(b"before").unwrap();
    journal.append(&vec![7; ENTRY_BYTES_MAX]).unwrap();
    journal.sync().unwrap();
    let (_, found) = Journal::open(region(&disk)).unwrap();
    assert_eq!(found[1].1.len(), ENTRY_BYTES_MAX);
}

#[test]
fn a_log_of_another_seed_is_empty() {
    let disk = new_disk();
    let (journal, _) = Journal::open(region(&disk)).unwrap();
    journal.append(b"old life").unwrap();
    journal.sync().unwrap();
    let other = LogRegion { seed: 78, ..region(&disk) };
    assert!(Journal::open(other).unwrap().1.is_empty());
}

#[test]
fn the_format_is_the_one_on_existing_disks() {
    let disk = new_disk();
    let (journal, _) = Journal::open(region(&disk)).unwrap();
    journal.append(b"first entry").unwrap();
    journal.append(b"").unwrap();
    journal.sync().unwrap();
    let mut block = vec![0; 4096];
    strake_env::Disk::read_at(&*disk, OFFSET, &mut block).unwrap();
    let used = block.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    let hex: String = block[..used].iter().map(|byte| format!("{byte:02x}")).collect();
    let fixture = include_str!("../tests/fixtures/journal_chunk_v1.hex");
    assert_eq!(hex, fixture.split_whitespace().collect::<String>(), "the log's format changed");
}

#[test]
fn an_entry_is_never_durable_before_the_data_it_speaks_of() {
    let disk = new_disk();
    let (journal, _) = Journal::open(LogRegion { follows_data: true, ..region(&disk) }).unwrap();
    disk.forget_log();
    for number in 0..20u8 {
        // The data lies before the ring. Entry n says that the data is n.
        strake_env::Disk::write_at(&*disk, 0, &[number; 4096]).unwrap();
        journal.append(&[number]).unwrap();
        journal.sync().unwrap();
    }
    let mut rng = Rng::new(4);
    let mut cuts = disk.power_cuts();
    for (position, _) in disk.events() {
        cuts.advance(position);
        let image = cuts.crash(&mut rng);
        let (_, found) = Journal::open(region(&image)).unwrap();
        let mut data = [0; 4096];
        strake_env::Disk::read_at(&*image, 0, &mut data).unwrap();
        let told = found.last().map_or(0, |(_, entry)| entry[0]);
        assert!(data.iter().all(|&byte| byte >= told), "position {position}");
    }
}

#[test]
fn a_dropped_tail_never_comes_back_behind_its_successor() {
    use strake_env::disk::sim::{Event, Fate};
    let disk = new_disk();
    let (journal, _) = Journal::open(region(&disk)).unwrap();
    for _ in 0..3 {
        journal.append(&vec![1; 700_000]).unwrap();
    }
    journal.sync().unwrap();
    let last = disk.position() - 1;
    // Of three chunks of one flush, the first was lost.
    let image = disk.image(last, |event| match event {
        Event::Write { offset: OFFSET, .. } => Fate::Lost,
        _ => Fate::Kept,
    });
    let (journal, found) = Journal::open(region(&image)).unwrap();
    assert!(found.is_empty());
    journal.append(b"new").unwrap();
    journal.sync().unwrap();
    let (_, found) = Journal::open(region(&image)).unwrap();
    assert_eq!(found, vec![(Lsn(1), b"new".to_vec())]);
}

#[test]
fn numbers_never_fall_below_what_the_store_has_applied() {
    let disk = new_disk();
    let (journal, _) = Journal::open(region(&disk)).unwrap();
    journal.advance(Lsn(41));
    assert_eq!(journal.append(b"x").unwrap(), Lsn(42));
    journal.advance(Lsn(10));
    assert_eq!(journal.append(b"y").unwrap(), Lsn(43));
}

#[test]
fn damage_to_durable_entries_is_an_error_not_a_shorter_history() {
    let disk = new_disk();
    let (journal, _) = Journal::open(region(&disk)).unwrap();
    for number in 0..10 {
        journal.append(&entry(number, 0, 5000)).unwrap();
        journal.sync().unwrap();
    }
    disk.flip(OFFSET + 3 * 8192 + 4500, 1);
    let error = Journal::open(region(&disk)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn a_failed_sync_refuses_everything_after() {
    let disk = new_disk();
    let (journal, _) = Journal::open(region(&disk)).unwrap();
    journal.append(b"x").unwrap();
    disk.set_faults(|faults| faults.sync_failure = true);
    assert!(journal.sync().is_err());
    disk.set_faults(|faults| faults.sync_failure = false);
    assert!(journal.sync().is_err());
    assert!(journal.append(b"y").is_err());
}

#[test]
fn callers_at_the_same_time_share_barriers_and_lose_nothing() {
    let disk = new_disk();
    let (journal, _) = Journal::open(region(&disk)).unwrap();
    strake_env::thread::scope(|scope| {
        for thread in 0..4u64 {
            let journal = &journal;
            scope.spawn(move || {
                for number in 0..150 {
                    journal.append(&entry(number, thread, 100)).unwrap();
                    journal.sync().unwrap();
                }
            });
        }
    });
    let (_, found) = Journal::open(region(&disk)).unwrap();
    assert_eq!(found.len(), 600);
    for thread in 0..4 {
        let numbers: Vec<u64> = found
            .iter()
            .filter(|(_, bytes)| bytes[8] == thread)
            .map(|(_, bytes)| u64::from_le_bytes(bytes[..8].try_into().unwrap()))
            .collect();
        assert_eq!(numbers, (0..150).collect::<Vec<u64>>());
    }
}

/// The promises at a position of the disk's log.
struct Promise {
    position: u64,
    /// Entries up to here were acknowledged by a sync.
    synced: u64,
    /// Entries up to here were appended.
    appended: u64,
    /// Entries before this were given up.
    trimmed: u64,
}

/// Runs random appends, syncs and trims. Returns the promises after each step.
fn run(
    journal: &Journal,
    disk: &SimDisk,
    rng: &mut Rng,
    nonce: u64,
    start: Promise,
    steps: u64,
) -> Vec<Promise> {
    let (mut synced, mut trimmed) = (start.synced, start.trimmed);
    let mut promises = vec![start];
    for _ in 0..steps {
        match rng.below(10) {
            0..6 => {
                let length = match rng.below(40) {
                    // Several of these entries make several chunks of one flush.
                    0..4 => 400_000 + rng.index(500_000),
                    4..8 => rng.index(200_000),
                    _ => rng.index(3000),
                };
                let number = journal.last().0 + 1;
                match journal.append(&entry(number, nonce, length)) {
                    Ok(lsn) => assert_eq!(lsn.0, number),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace),
                }
            }
            6..8 => {
                let last = journal.last().0;
                journal.sync().unwrap();
                synced = last;
            }
            _ => {
                let last = journal.last().0;
                let before = synced.saturating_sub(rng.below(40));
                trimmed = trimmed.max(before);
                promises.push(Promise {
                    position: disk.position(),
                    synced,
                    appended: last,
                    trimmed,
                });
                journal.trim(Lsn(before)).unwrap();
                synced = last;
            }
        }
        let appended = journal.last().0;
        promises.push(Promise { position: disk.position(), synced, appended, trimmed });
    }
    promises
}

/// Asserts that the entries are a run without gaps. The run begins at or before the trim, reaches
/// everything that was synced, and holds nothing that was not appended.
fn check(found: &[(Lsn, Vec<u8>)], promise: &Promise, nonce: u64, seed: u64) {
    let last = found.last().map_or(0, |(lsn, _)| lsn.0);
    assert!(
        last >= promise.synced || found.is_empty() && promise.trimmed > promise.synced,
        "seed {seed}: synced {} but found up to {last}",
        promise.synced
    );
    assert!(last <= promise.appended, "seed {seed}: {last} was not appended");
    if let Some((first, _)) = found.first() {
        assert!(first.0 <= promise.trimmed.max(1), "seed {seed}: {first:?} is after the trim");
    }
    for (index, (lsn, bytes)) in found.iter().enumerate() {
        assert_eq!(lsn.0, found[0].0.0 + index as u64, "seed {seed}: a gap");
        assert_eq!(bytes[..8], lsn.0.to_le_bytes(), "seed {seed}: another entry's bytes");
        // Entries of a tail that an earlier recovery dropped must never come back.
        let written = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        assert!(written <= nonce, "seed {seed}");
    }
}

/// Crashes at many positions. Runs on from some of the images and crashes again, several times
/// deep.
fn crash_model(seed: u64, steps: u64, points: usize) {
    let mut rng = Rng::new(seed);
    let mut disk = new_disk();
    let mut history: Vec<(Lsn, Vec<u8>)> = Vec::new();
    for life in 0..4 {
        let (journal, found) = Journal::open(region(&disk)).unwrap();
        assert_eq!(found, history, "seed {seed}: two recoveries of one image differ");
        let start = journal.last().0;
        disk.forget_log();
        let begun = disk.position();
        let trimmed = history.first().map_or(0, |(lsn, _)| lsn.0);
        let first = Promise { position: begun, synced: start, appended: start, trimmed };
        let promises = run(&journal, &disk, &mut rng, life, first, steps);
        let end = disk.position();
        let mut positions: Vec<u64> =
            (0..points).map(|_| begun + rng.below(end - begun + 1)).collect();
        positions.sort_unstable();
        let mut cuts = disk.power_cuts();
        let mut next = None;
        for position in positions {
            cuts.advance(position);
            let image = cuts.crash(&mut rng);
            let (_, found) = Journal::open(region(&image)).unwrap_or_else(|error| {
                panic!("seed {seed} life {life} position {position}: {error}")
            });
            let promised = promises.iter().rfind(|promise| promise.position <= position).unwrap();
            // At the cut, the step under way may already have appended and trimmed.
            let after = promises.iter().find(|promise| promise.position > position);
            let promise = Promise {
                position,
                synced: promised.synced,
                appended: after.unwrap_or(promised).appended,
                trimmed: after.unwrap_or(promised).trimmed,
            };
            check(&found, &promise, life, seed);
            // The entries of earlier lives are exactly those that their recovery returned.
            for (lsn, bytes) in &found {
                let written = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
                if written < life {
                    assert!(
                        history.iter().any(|(old, same)| old == lsn && same == bytes),
                        "seed {seed} life {life}: {lsn:?} came back from a dropped tail"
                    );
                }
            }
            if next.is_none() || rng.one_in(3) {
                next = Some((image, found));
            }
        }
        (disk, history) = next.unwrap();
    }
}

#[test]
fn every_crash_keeps_what_was_synced_and_invents_nothing() {
    for seed in strake_env::rng::test_seeds(0, 6) {
        crash_model(seed, 150, 60);
    }
}

#[test]
fn damaged_rings_never_panic() {
    let mut rng = Rng::new(5);
    for _ in 0..30 {
        let disk = new_disk();
        let (journal, _) = Journal::open(region(&disk)).unwrap();
        let start = Promise { position: 0, synced: 0, appended: 0, trimmed: 0 };
        run(&journal, &disk, &mut rng, 0, start, 60);
        for _ in 0..rng.index(20) + 1 {
            // Mostly damages headers, where false values are most dangerous.
            let block = rng.below(RING_BYTES / 4096);
            let within = if rng.one_in(2) { rng.below(80) } else { rng.below(4096) };
            disk.flip(OFFSET + block * 4096 + within, rng.next_u64() as u8 | 1);
        }
        // The result is a history or an error. A journal that opens can be written.
        if let Ok((journal, found)) = Journal::open(region(&disk)) {
            assert!(found.is_sorted_by(|(one, _), (next, _)| one < next));
            journal.append(b"on").unwrap();
            journal.sync().unwrap();
        }
    }
}

/// Flips a bit in every block of the ring.
fn flip_everywhere(disk: &SimDisk) {
    let mut ring = AlignedBuffer::zeroed(RING_BYTES as usize);
    strake_env::Disk::read_at(disk, OFFSET, &mut ring).unwrap();
    ring.chunks_exact_mut(512).for_each(|sector| sector[77] ^= 4);
    strake_env::Disk::write_at(disk, OFFSET, &ring).unwrap();
    strake_env::Disk::sync(disk).unwrap();
}

#[test]
fn damage_is_found_while_in_use_and_a_renewed_log_needs_nothing_of_before() {
    let mut rng = Rng::new(5);
    for round in 0..50 {
        let disk = new_disk();
        let (journal, _) = Journal::open(region(&disk)).unwrap();
        assert_eq!(journal.verify().unwrap(), None, "an empty log is whole");
        let mut last = Lsn(0);
        for number in 1..=1 + rng.below(40) {
            last = journal.append(&entry(number, round, rng.below(50_000) as usize)).unwrap();
            if rng.below(3) == 0 {
                journal.sync().unwrap();
            }
        }
        journal.sync().unwrap();
        assert_eq!(journal.verify().unwrap(), None);
        flip_everywhere(&disk);
        assert_eq!(journal.verify().unwrap(), Some(1), "the first chunk is named");
        let lost = Journal::open(LogRegion { is_begun: true, ..region(&disk.copy()) });
        assert!(lost.is_err_and(|error| error.kind() == ErrorKind::Corrupt));
        journal.renew(Lsn(last.0 + 1)).unwrap();
        assert_eq!(journal.verify().unwrap(), None, "round {round}");
        let next = journal.append(b"next").unwrap();
        journal.sync().unwrap();
        let (_, found) = Journal::open(region(&disk.copy())).unwrap();
        assert_eq!(found, vec![(next, b"next".to_vec())]);
    }
}
