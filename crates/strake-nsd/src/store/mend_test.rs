//! Tests mending. A version that is bad gets its bytes back, and nothing else changes: not by what
//! is refused, not by what comes in between, and not by a power cut.

use super::super::store_test::*;
use super::super::*;
use std::sync::atomic::AtomicBool;
use strake_env::disk::sim::{Fate, SimDisk};
use strake_env::{AlignedBuffer, Rng, thread};
use strake_proto::FsId;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::{NsdCheckReply, SettledStripe};
use strake_stripe::checksum::{first_bad_unit, strip_checksums};

const AT: u64 = 1;

fn at() -> StripKey {
    key(AT, 1)
}

fn bytes(seed: u64, units: usize) -> AlignedBuffer {
    let mut data = AlignedBuffer::zeroed(units * UNIT_BYTES);
    Rng::new(seed).fill(&mut data);
    data
}

fn settle(store: &BlockStore, version: Version) {
    let StripKey { fs, object, block, .. } = at();
    let settled = vec![SettledStripe { fs, object, block, version, lacks: 0 }];
    call(store, &NsdRequest::Commit { settled }, &[]).expect("commit");
}

fn commit(store: &BlockStore) {
    call(store, &NsdRequest::Commit { settled: Vec::new() }, &[]).expect("commit");
}

fn whole(store: &BlockStore, counter: u64, units: usize) -> Strip {
    let data = bytes(counter, units);
    write(store, at(), version(counter), &data).expect("write");
    commit(store);
    Strip { version: version(counter), bytes: data.to_vec() }
}

fn change(store: &BlockStore, base: &Strip, counter: u64, units: &[u32]) -> Strip {
    let data = bytes(counter, units.len());
    patch(store, at(), (base, version(counter)), units, &data).expect("accepted");
    commit(store);
    base.patched(version(counter), units, &data)
}

fn mend(store: &BlockStore, strip: &Strip) -> Result<NsdReply> {
    let checksums = strip_checksums(&at(), strip.version, &strip.bytes);
    let request = NsdRequest::Mend { key: at(), version: strip.version, checksums };
    call(store, &request, &strip.bytes)
}

fn record(store: &BlockStore) -> StripRecord {
    store.record(&at()).expect("index").expect("held")
}

/// The bytes of a version as the disk has them. `None` if they do not match their checksums.
fn good(store: &BlockStore, strip: &Strip) -> Option<Vec<u8>> {
    let mut out = AlignedBuffer::zeroed(strip.bytes.len());
    let (version, length) = (Some(strip.version), strip.bytes.len() as u32);
    let request = NsdRequest::Read { key: at(), version, offset: 0, length };
    match store.call(NsdContext::default(), &request, &[], &mut out) {
        Ok(NsdReply::Strip { checksums, .. }) => {
            let bad = first_bad_unit(&at(), strip.version, 0, &out, &checksums);
            bad.is_none().then(|| out.to_vec())
        }
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io) => None,
        other => panic!("{other:?}"),
    }
}

fn assert_holds(store: &BlockStore, strips: &[&Strip], context: &str) {
    for strip in strips {
        let found = good(store, strip);
        assert!(found.as_ref() == Some(&strip.bytes), "{context}: version {}", strip.version);
    }
}

fn checked(store: &BlockStore) -> NsdCheckReply {
    match call(store, &NsdRequest::Check { data: true }, &[]).expect("check") {
        NsdReply::Checked(found) => found,
        other => panic!("{other:?}"),
    }
}

/// The place of a unit of a version on the disk; of the trailer, if there is one, for the unit
/// behind the last.
fn place(store: &BlockStore, strip: &Strip, unit: u32) -> u64 {
    let record = record(store);
    let view = record.view(Some(strip.version)).expect("held");
    match view.displaced.iter().find(|one| one.unit == unit) {
        Some(one) => one.extent().offset(),
        None => crate::extent::slice_of(&view.whole.extents, unit.into(), 1)[0].offset(),
    }
}

fn spoil(disk: &SimDisk, store: &BlockStore, strip: &Strip, unit: u32) {
    disk.flip(place(store, strip, unit) + 123, 4);
}

/// Versions of one strip: whole ones, patches, and both.
const CHAINS: [&[&[u32]]; 4] =
    [&[&[]], &[&[], &[1, 4]], &[&[], &[], &[2]], &[&[], &[1, 4], &[4, 5]]];

/// The versions of a chain, oldest first. An empty list of units stands for a whole version.
fn chain(store: &BlockStore, units: usize, chain: &[&[u32]]) -> Vec<Strip> {
    let mut all: Vec<Strip> = Vec::new();
    for (counter, changed) in (1..).zip(chain) {
        all.push(match all.last() {
            Some(base) if !changed.is_empty() => change(store, base, counter, changed),
            _ => whole(store, counter, units),
        });
    }
    all
}

/// Checksums are in the record or in a trailer, each version is bad in turn, in each of its places.
#[test]
fn a_bad_version_gets_its_bytes_back_and_the_others_stay() {
    for (units, versions) in
        [12usize, 40].into_iter().flat_map(|units| CHAINS.map(|it| (units, it)))
    {
        for number in 0..versions.len() {
            for unit in [0, 1, 4, 5, units as u32 - 1, units as u32] {
                if unit as usize == units && units == 12 {
                    continue;
                }
                let context = format!("{units} units, {versions:?}, version {number}, unit {unit}");
                let disk = SimDisk::new(DISK_BYTES);
                let store = format(&disk, 1);
                let all = chain(&store, units, versions);
                let used = store.space.allocator.lock().used();
                // Where versions share the place, the others are bad, too.
                spoil(&disk, &store, &all[number], unit);
                // The cache must not hide the trailer.
                drop(store);
                let store = open(&disk);
                let bad: Vec<_> = all.iter().filter(|one| good(&store, one).is_none()).collect();
                assert!(bad.iter().any(|one| one.version == all[number].version), "{context}");
                let before = record(&store);
                bad.iter().for_each(|one| drop(mend(&store, one).expect("mended")));
                let all: Vec<&Strip> = all.iter().collect();
                assert_holds(&store, &all, &context);
                let headers = |record: &StripRecord| {
                    let of = |one: &record::StripVersion| (one.header.clone(), one.settled);
                    record.versions.iter().map(of).collect::<Vec<_>>()
                };
                assert_eq!(headers(&record(&store)), headers(&before), "{context}");
                check(&store);
                commit(&store);
                drop(store);
                let store = open(&disk.crash(disk.position(), &mut Rng::new(3)));
                assert_holds(&store, &all, &context);
                check(&store);
                // Later requests find a strip like any other.
                let last = all[all.len() - 1];
                let next = change(&store, last, 100, &[0, 4, 7]);
                settle(&store, next.version);
                straighten(&store);
                assert_holds(&store, &[&next], &context);
                let newest = whole(&store, 101, units);
                settle(&store, newest.version);
                commit(&store);
                check(&store);
                assert!(store.space.allocator.lock().used() <= used, "{context}: space");
            }
        }
    }
}

/// A sector that cannot be read is as bad as one with other bytes.
#[test]
fn what_cannot_be_read_is_mended() {
    for units in [12usize, 40] {
        let disk = SimDisk::new(DISK_BYTES);
        let store = format(&disk, 1);
        let strip = whole(&store, 1, units);
        let from = place(&store, &strip, 3);
        disk.set_faults(|faults| faults.read_errors.push(from..from + 512));
        assert!(good(&store, &strip).is_none());
        mend(&store, &strip).expect("mended");
        assert_holds(&store, &[&strip], "elsewhere");
        check(&store);
    }
}

#[test]
fn what_is_good_or_is_not_that_version_changes_nothing() {
    for units in [12usize, 40] {
        let disk = SimDisk::new(DISK_BYTES);
        let store = format(&disk, 1);
        let all = chain(&store, units, &[&[], &[]]);
        let of =
            |counter, from: &Strip| Strip { version: version(counter), bytes: from.bytes.clone() };
        let used = store.space.allocator.lock().used();
        let (before, position) = (record(&store), store.journal.last());
        // The same version, and good: a writer or another reader was faster.
        all.iter().for_each(|strip| drop(mend(&store, strip).expect("it is there")));
        let same = || (record(&store), store.journal.last()) == (before.clone(), position);
        assert!(same());
        let refused = |strip: &Strip| mend(&store, strip).expect_err("refused").kind();
        // A newer one, and one that was never there.
        assert_eq!(refused(&of(3, &all[1])), ErrorKind::Stale);
        assert_eq!(refused(&of(0, &all[0])), ErrorKind::Stale);
        spoil(&disk, &store, &all[0], 2);
        spoil(&disk, &store, &all[1], 2);
        // Other bytes, and another length.
        assert_eq!(refused(&of(1, &all[1])), ErrorKind::Stale);
        let short = Strip { version: version(2), bytes: all[1].bytes[..UNIT_BYTES].to_vec() };
        assert_eq!(refused(&short), ErrorKind::Stale);
        // Bytes that do not match their checksums.
        let checksums = strip_checksums(&at(), version(2), &all[0].bytes);
        let request = NsdRequest::Mend { key: at(), version: version(2), checksums };
        let reply = call(&store, &request, &all[1].bytes);
        assert_eq!(reply.expect_err("refused").kind(), ErrorKind::Invalid);
        assert!(same());
        assert_eq!(store.space.allocator.lock().used(), used);
        // The strip is not there, or its record does not say what it was.
        let StripKey { fs, object, .. } = at();
        let (from, to) = (BlockIndex(0), BlockIndex::END);
        let request = NsdRequest::DeleteRange { fs, object, from, to, version: version(2) };
        call(&store, &request, &[]).expect("deleted");
        assert_eq!(refused(&all[1]), ErrorKind::Stale);
        let forget = NsdRequest::ForgetTombstones { fs, object, version: version(2) };
        call(&store, &forget, &[]).expect("forgotten");
        assert_eq!(refused(&all[1]), ErrorKind::Stale);
        let encoded = strip_key(Table::Strip, &at());
        let mut edits = Edits::default();
        edits.put(&encoded, record::encode_given_up(&encoded));
        store.publish(&Ticket::OWN, |_| edits.into()).expect("journal");
        assert_eq!(refused(&all[1]), ErrorKind::Stale);
        assert_eq!(checked(&store).damaged, 1);
    }
}

/// Does something between the look and the mending. Says which strip is there then.
type Meanwhile = fn(&BlockStore, &Strip) -> Option<Strip>;

#[test]
fn what_happens_to_a_strip_meanwhile_is_not_undone() {
    let cases: [(&str, Meanwhile); 5] = [
        ("a whole version", |store, strip| Some(whole(store, 3, strip.bytes.len() / UNIT_BYTES))),
        ("one that is settled", |store, strip| {
            let next = whole(store, 3, strip.bytes.len() / UNIT_BYTES);
            settle(store, next.version);
            // Others would get the space of the strip that is gone.
            for block in 0..20 {
                write(store, key(2, block), version(3), &bytes(block, 20)).expect("write");
            }
            commit(store);
            Some(next)
        }),
        ("a deletion", |store, _| {
            let (fs, object, version) = (FsId(1), ObjectId(AT), version(3));
            let (from, to) = (BlockIndex(0), BlockIndex::END);
            call(store, &NsdRequest::DeleteRange { fs, object, from, to, version }, &[])
                .expect("deleted");
            let forget = NsdRequest::ForgetTombstones { fs, object, version };
            call(store, &forget, &[]).expect("forgotten");
            commit(store);
            None
        }),
        ("settled itself", |store, strip| {
            settle(store, strip.version);
            Some(strip.clone())
        }),
        ("another reader", |store, strip| {
            mend(store, strip).expect("mended");
            Some(strip.clone())
        }),
    ];
    for (units, (name, meanwhile)) in
        [12usize, 40].into_iter().flat_map(|units| cases.map(|case| (units, case)))
    {
        let context = format!("{name}, {units} units");
        let disk = SimDisk::new(DISK_BYTES);
        let store = format(&disk, 1);
        let all = chain(&store, units, &[&[], &[1, 4, 5]]);
        spoil(&disk, &store, &all[1], 7);
        let left = Arc::new(Mutex::new(None));
        let (noted, strip) = (Arc::clone(&left), all[1].clone());
        *store.before_publish.lock() =
            Some(Box::new(move |store| *noted.lock() = Some(meanwhile(store, &strip))));
        let outcome = mend(&store, &all[1]);
        let left = left.lock().take().expect("it happened");
        match &left {
            Some(now) => assert_holds(&store, &[now], &context),
            None => assert!(read(&store, at()).is_none(), "{context}: it is deleted"),
        }
        let is_held = left.as_ref().is_some_and(|now| now.version == all[1].version);
        assert!(!is_held || outcome.is_ok(), "{context}: {outcome:?}");
        for block in (0..20).filter(|_| name == "one that is settled") {
            let (_, found) = read(&store, key(2, block)).expect("held");
            assert!(found == bytes(block, 20)[..], "{context}: {block}");
        }
        if let Some(now) = &left {
            settle(&store, now.version);
        }
        commit(&store);
        assert_eq!(store.space.in_flight.load(SeqCst), 0, "{context}: space");
        check(&store);
        drop(store);
        let store = open(&disk.crash(disk.position(), &mut Rng::new(2)));
        left.iter().for_each(|now| assert_holds(&store, &[now], &context));
        check(&store);
    }
}

/// Without the trailer the store cannot tell that bytes are wrong. As soon as somebody has mended
/// the strip, it can.
#[test]
fn what_was_mended_meanwhile_is_looked_at_again() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    let strip = whole(&store, 1, 40);
    spoil(&disk, &store, &strip, 40);
    let right = strip.clone();
    *store.before_publish.lock() =
        Some(Box::new(move |store| drop(mend(store, &right).expect("mended"))));
    let wrong = Strip { bytes: bytes(9, 40).to_vec(), ..strip };
    assert_eq!(mend(&store, &wrong).expect_err("other bytes").kind(), ErrorKind::Stale);
    assert_holds(&store, &[&strip], "the right ones");
    assert_eq!(store.space.in_flight.load(SeqCst), 0);
    check(&store);
}

/// Cuts the power at every position of mending, the commit after it, and writes that take the space
/// of what was bad.
#[test]
fn every_power_cut_leaves_a_strip_bad_or_mended() {
    for (units, versions) in
        [12usize, 40].into_iter().flat_map(|units| CHAINS.map(|it| (units, it)))
    {
        let disk = SimDisk::new(DISK_BYTES);
        let store = format(&disk, 1);
        let all = chain(&store, units, versions);
        let current = all.last().expect("one");
        disk.forget_log();
        spoil(&disk, &store, current, 8);
        let bad: Vec<&Strip> = all.iter().filter(|one| good(&store, one).is_none()).collect();
        bad.iter().for_each(|one| drop(mend(&store, one).expect("mended")));
        commit(&store);
        let mended = disk.position();
        for block in 0..3 {
            write(&store, key(2, block), version(1), &bytes(block, units)).expect("write");
            commit(&store);
        }
        store.checkpoint().expect("checkpoint");
        drop(store);
        let mut cuts = disk.power_cuts();
        for position in 0..=disk.position() {
            cuts.advance(position);
            let fates = 1u64 << cuts.unsynced().count().min(4);
            for kept in 0..fates {
                let mut bit = 0;
                let image = cuts.image(|_| {
                    bit += 1;
                    if kept >> ((bit - 1) % 4) & 1 == 1 { Fate::Kept } else { Fate::Lost }
                });
                let store = open(&image);
                for strip in &all {
                    let found = good(&store, strip);
                    let was_bad = bad.iter().any(|one| one.version == strip.version);
                    assert!(found.is_none() || found.as_ref() == Some(&strip.bytes));
                    assert!(found.is_some() || (was_bad && position < mended), "at {position}");
                    // It can be mended again.
                    mend(&store, strip).expect("mended");
                }
                assert_holds(&store, &all.iter().collect::<Vec<_>>(), "after the cut");
                check(&store);
            }
        }
    }
}

#[test]
fn a_full_disk_and_a_full_journal_leave_a_strip_bad_or_mended() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    let strip = whole(&store, 1, 40);
    spoil(&disk, &store, &strip, 3);
    let mut taken = Vec::new();
    while let Some(extents) = store.space.allocate(None, &store.reclaim, 1) {
        taken.extend(extents);
    }
    let before = record(&store);
    assert_eq!(mend(&store, &strip).expect_err("full").kind(), ErrorKind::NoSpace);
    assert!(record(&store) == before);
    store.space.give_back(None, &taken);
    // Only a writer that needs room in the journal makes it.
    store.checkpointer.lock().take().expect("started").stop();
    for length in [20_000, 500, 1] {
        let mut edits = Edits::default();
        edits.put(crate::keys::BOOT_KEY, vec![0; length]);
        while store.publish(&Ticket::OWN, |_| edits.clone().into()).is_ok() {}
    }
    mend(&store, &strip).expect("mended");
    assert_holds(&store, &[&strip], "it made room");
    check(&store);
}

/// A writer patches and writes without pause, the worker straightens, units go bad, and a reader
/// mends what it finds bad of any version.
#[test]
fn a_strip_in_constant_use_is_mended_and_no_version_becomes_another() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    let units = 40;
    let all = Mutex::new(vec![whole(&store, 1, units)]);
    let (is_on, mut mended) = (AtomicBool::new(true), 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng::new(1);
            let mut counter = 1;
            while is_on.load(SeqCst) {
                counter += 1;
                let last = all.lock().last().expect("one").clone();
                // It is known to the reader before it can be read.
                let (data, changed) = (bytes(counter, units), rng.one_in(2));
                let next = match changed {
                    true => last.patched(version(counter), &[3, 9], &data[..2 * UNIT_BYTES]),
                    false => Strip { version: version(counter), bytes: data.to_vec() },
                };
                all.lock().push(next.clone());
                let written = match changed {
                    true => {
                        let base = (&last, next.version);
                        patch(&store, at(), base, &[3, 9], &data[..2 * UNIT_BYTES])
                    }
                    false => write(&store, at(), next.version, &data),
                };
                written.expect("nobody is in its way");
                settle(&store, next.version);
                if rng.one_in(3) {
                    straighten(&store);
                }
            }
        });
        let mut rng = Rng::new(2);
        let mut rounds = 0;
        while (mended < 50 || rounds < 500) && rounds < 100_000 {
            rounds += 1;
            let newest = all.lock().last().expect("one").clone();
            if rng.one_in(3) && store.record(&at()).expect("index").is_some() {
                let _guard = store.reclaim.read();
                let held = record(&store);
                let extents: Vec<Extent> = held.current().extents().collect();
                disk.flip(extents[0].offset() + 5, 1);
            }
            let held = record(&store).current().version();
            let strip = all.lock().iter().find(|one| one.version == held).cloned();
            let strip = strip.unwrap_or(newest);
            mended += u64::from(mend(&store, &strip).is_ok());
        }
        is_on.store(false, SeqCst);
    });
    assert!(mended >= 50, "{mended}");
    let last = all.lock().last().expect("one").clone();
    mend(&store, &last).expect("mended");
    assert_holds(&store, &[&last], "at the end");
    settle(&store, last.version);
    commit(&store);
    check(&store);
}
