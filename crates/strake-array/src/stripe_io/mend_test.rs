//! Bad strips are put right by their own version: in each position, beside writers, readers and
//! deletions.

use super::super::stripe_io_test::{BLOCK_SIZE, Bench, bench, data, io_over_all};
use super::super::{Access, SettledStripe};
use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use strake_env::{Rng, thread};
use strake_proto::nsd::RangeChange;
use strake_proto::{Code, ErrorKind, ObjectId};
use strake_testing::MemoryNsd;
use strake_testing::memory_nsd::Moment;

const OBJECT: ObjectId = ObjectId(7);
const BLOCK: BlockIndex = BlockIndex(0);

fn nsd_at(bench: &Bench, strip: u8) -> &Arc<MemoryNsd> {
    &bench.nsds[usize::from(bench.slot_at(strip).0)]
}

fn version_at(bench: &Bench, strip: u8) -> Option<Version> {
    nsd_at(bench, strip).version(OBJECT, BLOCK, strip)
}

/// Reads a range without excluding anybody.
fn read_shared(bench: &Bench, io: &StripeIo, offset: usize, out: &mut [u8]) -> Result<Version> {
    let (floor, access) = (Version::NONE, Access::Shared);
    let found = io.read(&bench.layout, BLOCK, floor, 200_000, offset, out, access)?;
    Ok(found.expect("stored").version)
}

fn codes() -> Vec<Code> {
    ["2x", "3x", "4+2p", "8+3p"].iter().map(|name| name.parse().expect("a code")).collect()
}

#[test]
fn a_bad_strip_in_each_position_is_mended_by_the_same_version_and_by_any_reader() {
    let mut rng = Rng::new(3);
    for code in codes() {
        let bench = bench(code, code.width() as u16);
        let written = data(&mut rng, 200_000);
        let version = bench.write(&bench.io, 0, &written).expect("written");
        let stripe = StripeCode::of_block(code, 200_000);
        let strip_bytes = Geometry::of(code, 200_000).strip_bytes;
        for at in (0..stripe.data_strips()).map(|at| at as u8) {
            let nsd = nsd_at(&bench, at);
            for part in [false, true] {
                assert!(nsd.flip_bit(OBJECT, BLOCK, at, rng.index(4096)));
                // All of the block, or a part of the bad strip alone.
                let (offset, length) = match part {
                    true => (usize::from(at) * strip_bytes, 4096),
                    false => (0, BLOCK_SIZE as usize),
                };
                let mut out = vec![9; length];
                let found = read_shared(&bench, &bench.io, offset, &mut out).expect("rebuilt");
                assert_eq!(found, version, "{code}");
                let right = &written[offset..(offset + length).min(written.len())];
                assert!(out[..right.len()] == *right, "{code}: strip {at}");
                let health = bench.io.examine(&bench.layout, BLOCK, Version::NONE);
                assert_eq!(health.expect("readable").wrong, [], "{code}: strip {at}");
            }
            assert_eq!((nsd.mended(), version_at(&bench, at)), (2, Some(version)), "{code}");
            let views = bench.io.nsds().views();
            let view = &views[usize::from(bench.slot_at(at).0)];
            assert!(view.bad_strips >= 1 && view.repaired >= 1, "{code}");
        }
        assert_eq!(bench.io.mended(), 2 * stripe.data_strips() as u64, "{code}");
    }
}

/// A scrub finds strips that no reader of good data looks at.
#[test]
fn parity_is_mended_and_strips_that_are_good_are_not_counted() {
    for code in codes() {
        let bench = bench(code, code.width() as u16);
        let written = data(&mut Rng::new(5), 200_000);
        let version = bench.write(&bench.io, 0, &written).expect("written");
        let (io, layout) = (&bench.io, &bench.layout);
        for at in StripeCode::of_block(code, 200_000).positions() {
            assert!(!io.mend(layout, BLOCK, Version::NONE, &[at]).expect("placed"), "it is good");
            assert!(nsd_at(&bench, at.0).flip_bit(OBJECT, BLOCK, at.0, 99));
            assert!(io.mend(layout, BLOCK, Version::NONE, &[at]).expect("placed"), "{code} {at}");
            assert_eq!(version_at(&bench, at.0), Some(version));
            let health = io.examine(layout, BLOCK, Version::NONE).expect("readable");
            assert_eq!(health.wrong, [], "{code}: strip {at}");
        }
    }
}

/// An NSD that does not know the right checksums takes nothing. So the block is written anew, which
/// only who excludes others may do.
#[test]
fn what_an_nsd_does_not_take_is_written_anew_by_who_excludes_others() {
    for code in codes() {
        let bench = bench(code, code.width() as u16);
        let written = data(&mut Rng::new(6), 200_000);
        let first = bench.write(&bench.io, 0, &written).expect("written");
        assert!(nsd_at(&bench, 0).flip_checksum(OBJECT, BLOCK, 0));
        let shared = read_shared(&bench, &bench.io, 0, &mut [0; 8192]);
        assert_eq!(shared.expect_err("others may write").kind(), ErrorKind::Retry);
        let read = bench.read(&bench.io, 0, 200_000).expect("rebuilt");
        assert!(read == Some(written));
        assert!(version_at(&bench, 0).expect("written anew") > first);
        assert_eq!((bench.io.mended(), nsd_at(&bench, 0).mended()), (1, 0));
    }
}

/// A writer comes between the reading and the mending, on all NSDs or on some.
#[test]
fn a_newer_version_and_a_deletion_that_come_first_stay() {
    for code in codes() {
        for deletes in [false, true] {
            let bench = Arc::new(bench(code, code.width() as u16));
            let (old, new) = (data(&mut Rng::new(1), 200_000), data(&mut Rng::new(2), 200_000));
            bench.write(&bench.io, 0, &old).expect("written");
            bench.io.commit(&[]);
            let nsd = nsd_at(&bench, 0);
            assert!(nsd.flip_bit(OBJECT, BLOCK, 0, 5000));
            let (late, done) = (Arc::clone(&bench), AtomicBool::new(false));
            let writer = io_over_all(&bench, 50);
            let bytes = new.clone();
            nsd.set_watch(Some(Arc::new(move |moment, request| {
                let is_mend = matches!(request, NsdRequest::Mend { .. });
                if moment == Moment::Before && is_mend && !done.swap(true, Ordering::SeqCst) {
                    if deletes {
                        let (object, version) = (OBJECT, writer.versions().next());
                        let (from, to) = (BLOCK, BlockIndex(1));
                        let delete = RangeChange::Delete { object, from, to, version };
                        writer.change_everywhere(&[delete]);
                        writer.commit(&[]);
                        writer.forget_tombstones(&[(object, version)]);
                    } else {
                        late.write(&writer, 0, &bytes).expect("written");
                    }
                }
            })));
            let mut out = vec![0; 200_704];
            // The reader has bytes that were right before the writer came, or it looks again.
            if read_shared(&bench, &bench.io, 0, &mut out).is_ok() {
                assert!(out[..200_000] == old[..], "{code}");
            }
            nsd.set_watch(None);
            let now = bench.read(&io_over_all(&bench, 60), 0, 200_000).expect("readable");
            assert!(now == (!deletes).then_some(new), "{code}, deletes: {deletes}");
            let health = bench.io.examine(&bench.layout, BLOCK, Version::NONE).expect("readable");
            assert_eq!(health.wrong, [], "{code}, deletes: {deletes}");
        }
    }
}

/// One writes the block without pause, strips go bad one after the other, and two mend them by
/// reading. No reader is in the writer's way.
#[test]
fn a_block_that_is_written_without_pause_is_mended_by_readers() {
    const MENDED_MIN: u64 = 20;
    for code in codes() {
        let bench = bench(code, code.width() as u16);
        let of = |round: u64| data(&mut Rng::new(round), 200_000);
        bench.write(&bench.io, 0, &of(0)).expect("written");
        let is_on = AtomicBool::new(true);
        let last = thread::scope(|scope| {
            for (number, spoils) in [(0, true), (1, false)] {
                let (bench, is_on) = (&bench, &is_on);
                scope.spawn(move || read_on(bench, number, spoils, is_on));
            }
            let (mut round, fs) = (0, bench.io.nsds().fs());
            while round < 100 || (mended(&bench) < MENDED_MIN && round < 50_000) {
                round += 1;
                let version = bench.write(&bench.io, 0, &of(round)).expect("nobody is in its way");
                if round % 3 == 0 {
                    let (object, block, lacks) = (OBJECT, BLOCK, 0);
                    bench.io.commit(&[SettledStripe { fs, object, block, version, lacks }]);
                }
            }
            is_on.store(false, Ordering::Release);
            round
        });
        assert!(mended(&bench) >= MENDED_MIN, "{code}: {} in {last} writes", mended(&bench));
        let read = bench.read(&bench.io, 0, 200_000).expect("readable");
        assert!(read == Some(of(last)), "{code}: the last version");
    }
}

/// Reads and mends, and spoils one strip after the other: the next one when the block is whole.
fn read_on(bench: &Bench, number: u64, spoils: bool, is_on: &AtomicBool) {
    let (io, mut rng) = (io_over_all(bench, 90 + number), Rng::new(number));
    let mut out = vec![0; BLOCK_SIZE as usize];
    while is_on.load(Ordering::Acquire) {
        let at = rng.index(bench.layout.code.width()) as u8;
        if spoils {
            nsd_at(bench, at).flip_bit(OBJECT, BLOCK, at, rng.index(1 << 20));
        }
        loop {
            // While the writer is at work, versions are unequal.
            let _ = read_shared(bench, &io, 0, &mut out);
            let _ = io.mend(&bench.layout, BLOCK, Version::NONE, &[StripIndex(at)]);
            let health = io.examine(&bench.layout, BLOCK, Version::NONE).expect("placed");
            if health.is_whole() || !is_on.load(Ordering::Acquire) {
                break;
            }
        }
    }
}

fn mended(bench: &Bench) -> u64 {
    bench.nsds.iter().map(|nsd| nsd.mended()).sum()
}
