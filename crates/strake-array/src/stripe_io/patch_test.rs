//! Random patches against a model, with NSDs that fail. Also how much a patch reads, and what is
//! not patched.

use super::super::stripe_io_test::{BLOCK_SIZE, Bench, bench, data};
use super::super::write::UNREADY_MAX;
use super::super::{Access, padded_bytes};
use super::*;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use strake_env::Rng;
use strake_env::rng::{test_scale, test_seeds};
use strake_proto::nsd::{NsdContext, NsdPort, NsdReply, StripHeader};
use strake_proto::{FsId, NsdId, ObjectId, StripKey};
use strake_stripe::first_bad_unit;
use strake_testing::MemoryNsd;
use strake_testing::memory_nsd::{Faults, Moment};

const BLOCK: BlockIndex = BlockIndex(0);
const LENGTHS: [usize; 7] =
    [1, 5000, 100_000, 128 << 10, (128 << 10) + 1, 200_001, BLOCK_SIZE as usize];

/// A block and what it should hold.
struct Held {
    bench: Bench,
    bytes: Vec<u8>,
    version: Version,
}

impl Held {
    fn new(code: Code, length: usize, rng: &mut Rng) -> Held {
        let bench = bench(code, code.width() as u16 + 1);
        let bytes = data(rng, length);
        let version = bench.write(&bench.io, BLOCK.0, &bytes).expect("all NSDs are up");
        bench.io.commit(&[]);
        Held { bench, bytes, version }
    }

    fn stripe(&self) -> StripeCode {
        StripeCode::of_block(self.bench.layout.code, self.bytes.len() as u64)
    }

    /// Changes units of what the block should hold. Returns their numbers.
    fn change(&mut self, rng: &mut Rng, count: usize) -> Vec<u32> {
        let all = self.bytes.len().div_ceil(UNIT_BYTES);
        let mut units: Vec<u32> = (0..count).map(|_| rng.index(all) as u32).collect();
        units.sort_unstable();
        units.dedup();
        for unit in &units {
            let from = *unit as usize * UNIT_BYTES;
            let to = self.bytes.len().min(from + UNIT_BYTES);
            rng.fill(&mut self.bytes[from..to]);
        }
        units
    }

    fn patch(&self, base: Version, units: &[u32]) -> Result<Patched> {
        let mut padded = self.bytes.clone();
        padded.resize(self.bytes.len().next_multiple_of(UNIT_BYTES), 0);
        let bytes = |unit: u32| &padded[unit as usize * UNIT_BYTES..][..UNIT_BYTES];
        let units: Vec<(u32, &[u8])> = units.iter().map(|unit| (*unit, bytes(*unit))).collect();
        let block_bytes = self.bytes.len() as u32;
        let patch = Patch { base, block_bytes, units: &units };
        self.bench.io.patch_block(&self.bench.layout, BLOCK, &patch)
    }

    /// Patches the block, or writes it whole if that is not possible.
    fn send(&mut self, units: &[u32]) -> Result<Patched> {
        let patched = self.patch(self.version, units)?;
        self.version = match patched {
            Patched::Accepted(written) => written.version,
            Patched::NotBase => {
                let mut padded =
                    vec![0; padded_bytes(self.bench.layout.code, self.bytes.len() as u32)];
                padded[..self.bytes.len()].copy_from_slice(&self.bytes);
                let (io, length) = (&self.bench.io, self.bytes.len() as u32);
                io.write_block(&self.bench.layout, BLOCK, length, &padded, self.version)?.version
            }
        };
        Ok(patched)
    }

    /// The strips of the present version, by position, as the NSDs have them. They are verified.
    fn strips(&self) -> Vec<(StripIndex, Vec<u8>)> {
        let slots = self.bench.io.nsds().stripe(&self.bench.layout, BLOCK).expect("placed");
        let length = self.bytes.len() as u64;
        let strip_bytes = Geometry::of(self.bench.layout.code, length).strip_bytes;
        let read = |at: StripIndex| {
            let nsd = &self.bench.nsds[usize::from(slots[usize::from(at.0)].0)];
            let object = self.bench.layout.object;
            let key = StripKey { fs: FsId(1), object, block: BLOCK, strip: at };
            let mut strip = vec![0; strip_bytes];
            let (version, length) = (Some(self.version), strip_bytes as u32);
            let request = NsdRequest::Read { key, version, offset: 0, length };
            let context = NsdContext::default();
            let reply = nsd.call(context, &request, &[], &mut strip).ok()?;
            let NsdReply::Strip { header: StripHeader { block_bytes, .. }, checksums, .. } = reply
            else {
                panic!("{reply:?}")
            };
            assert_eq!(block_bytes as usize, self.bytes.len());
            let bad = first_bad_unit(&key, self.version, 0, &strip, &checksums);
            assert_eq!(bad, None, "{key}");
            Some((at, strip))
        };
        self.stripe().positions().filter_map(read).collect()
    }

    /// Checks that every sufficient choice of strips gives the same strips.
    fn check(&self, away: usize, context: &str) {
        let (stripe, strips) = (self.stripe(), self.strips());
        let stored = stripe.positions().count();
        assert!(strips.len() + away >= stored, "{context}: {} strips", strips.len());
        for (at, strip) in strips.iter().filter(|(at, _)| usize::from(at.0) < stripe.data_strips())
        {
            let from = usize::from(at.0) * strip.len();
            let own = &self.bytes[from..self.bytes.len().min(from + strip.len())];
            assert!(strip[..own.len()] == *own, "{context}: strip {at}");
            assert!(strip[own.len()..].iter().all(|byte| *byte == 0), "{context}: strip {at}");
        }
        for choice in 0u32..1 << strips.len() {
            if choice.count_ones() as usize != stripe.data_strips() {
                continue;
            }
            let chosen = strips.iter().enumerate().filter(|(index, _)| choice >> index & 1 == 1);
            let present: Vec<(StripIndex, &[u8])> =
                chosen.map(|(_, (at, strip))| (*at, &strip[..])).collect();
            let mut rebuilt: Vec<(StripIndex, Vec<u8>)> =
                strips.iter().map(|(at, strip)| (*at, vec![0; strip.len()])).collect();
            let mut wanted: Vec<(StripIndex, &mut [u8])> =
                rebuilt.iter_mut().map(|(at, strip)| (*at, &mut strip[..])).collect();
            stripe.reconstruct(&present, &mut wanted).expect("enough strips");
            assert!(rebuilt == strips, "{context}: from {choice:b}");
        }
    }
}

#[test]
fn random_patches_with_failing_nsds_decode_from_every_choice_of_strips() {
    let (mut patches, mut not_base) = (0, 0);
    for seed in test_seeds(1, 20 * test_scale()) {
        for (name, code) in Code::ALL {
            let mut rng = Rng::new(seed * 16 + code.width() as u64);
            let length = LENGTHS[rng.index(LENGTHS.len())];
            let mut held = Held::new(code, length, &mut rng);
            let mut away = Vec::new();
            for step in 0..6 {
                let context = format!("seed {seed}, code {name}, {length} bytes, step {step}");
                let victim = rng.index(held.bench.nsds.len());
                let may_fail = away.len() < usize::from(code.parity) && !away.contains(&victim);
                if may_fail && rng.one_in(3) {
                    let (down, fails) = [(true, None), (false, Some(ErrorKind::Io))][rng.index(2)];
                    let faults = Faults { down, write: fails, ..Faults::default() };
                    held.bench.nsds[victim].set_faults(faults);
                    away.push(victim);
                } else if !away.contains(&victim) && rng.one_in(4) {
                    held.bench.nsds[victim].crash();
                }
                let most = [1, 3, 40][rng.index(3)];
                let count = 1 + rng.index(most);
                let units = held.change(&mut rng, count);
                let patched = held.send(&units).expect("tolerated");
                patches += u64::from(matches!(patched, Patched::Accepted(_)));
                not_base += u64::from(patched == Patched::NotBase);
                held.bench.io.commit(&[]);
                held.check(away.len(), &context);
            }
            let read = held.bench.read(&held.bench.io, BLOCK.0, 1).expect("readable");
            assert!(read == Some(held.bytes), "code {name}, {length} bytes");
        }
    }
    println!("{patches} patches, {not_base} times the whole block");
    assert!(patches > 500 && not_base > 0, "{patches} patches, {not_base} times the whole block");
}

/// Counts, in units, what is read at exactly the base and what is written, from now on.
fn count(bench: &Bench, base: Version) -> (Arc<AtomicU64>, Arc<AtomicU64>) {
    let (read, written) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    for nsd in &bench.nsds {
        let (read, written) = (Arc::clone(&read), Arc::clone(&written));
        nsd.set_watch(Some(Arc::new(move |moment, request| match request {
            _ if moment == Moment::After => {}
            NsdRequest::Read { version, length, .. } => {
                assert_eq!(*version, Some(base));
                read.fetch_add(u64::from(*length) / UNIT_BYTES as u64, Ordering::Relaxed);
            }
            NsdRequest::Patch { units, .. } => {
                written.fetch_add(units.len() as u64, Ordering::Relaxed);
            }
            _ => {}
        })));
    }
    (read, written)
}

#[test]
fn a_patch_reads_as_little_as_it_can() {
    let mut rng = Rng::new(1);
    let all = |row: u32, strips: u32, strip: u32| (0..strips).map(|at| at * strip + row).collect();
    // One unit. Then all units of a row but one, so that only the one that stays is read.
    for (name, units, reads, writes) in [
        ("1", vec![7], 0, 1),
        ("3x", vec![7], 0, 3),
        ("4+2p", vec![7], 3, 3),
        ("8+3p", vec![7], 4, 4),
        ("4+2p", vec![7, 9], 6, 6),
        ("4+2p", all(5, 3, 16), 1, 5),
        ("4+2p", all(5, 4, 16), 0, 6),
        ("8+3p", all(5, 7, 8), 1, 10),
    ] {
        let mut held = Held::new(name.parse().expect("a code"), BLOCK_SIZE as usize, &mut rng);
        for unit in &units {
            held.bytes[*unit as usize * UNIT_BYTES] ^= 1;
        }
        let (read, written) = count(&held.bench, held.version);
        let patched = held.send(&units).expect("accepted");
        assert!(matches!(patched, Patched::Accepted(_)), "{name} {units:?}");
        let found = (read.load(Ordering::Relaxed), written.load(Ordering::Relaxed));
        // Two units close to each other are read together with the units between them.
        let between = if units == [7, 9] { 3 } else { 0 };
        assert_eq!(found, (reads + between, writes), "{name} {units:?}");
        held.bench.nsds.iter().for_each(|nsd| nsd.set_watch(None));
        held.check(0, name);
    }
}

/// Checks that a patch is refused, for several codes, after `spoil` made it impossible.
fn refused(what: &str, spoil: impl Fn(&mut Held)) {
    let mut rng = Rng::new(3);
    for name in ["2x", "4+2p", "8+3p"] {
        let mut held = Held::new(name.parse().expect("a code"), 200_001, &mut rng);
        let before = held.bench.io.send_counts().not_base;
        spoil(&mut held);
        let units = held.change(&mut rng, 3);
        let base = held.version;
        assert_eq!(held.send(&units).expect("written"), Patched::NotBase, "{what}, {name}");
        assert!(held.version > base);
        assert_eq!(held.bench.io.send_counts().not_base, before + 1, "{what}, {name}");
        held.bench.io.commit(&[]);
        let read = held.bench.read(&held.bench.io, BLOCK.0, 1).expect("readable");
        assert!(read.as_ref() == Some(&held.bytes), "{what}, {name}");
        let code = held.bench.layout.code;
        held.check(code.parity.into(), &format!("{what}, {name}"));
    }
}

fn version_of(held: &Held, strip: u8) -> Option<Version> {
    let nsd = &held.bench.nsds[usize::from(held.bench.slot_at(strip).0)];
    nsd.version(ObjectId(7), BLOCK, strip)
}

#[test]
fn what_does_not_fit_is_written_whole_under_a_newer_version() {
    refused("another base", |held| held.version.counter += 1);
    refused("a strip of the base is gone from one NSD", |held| {
        let parity = held.bench.layout.code.data;
        let slot = held.bench.slot_at(parity);
        assert!(held.bench.nsds[usize::from(slot.0)].lose_strip(ObjectId(7), BLOCK, parity));
    });
}

#[test]
fn a_patch_that_one_position_refuses_is_not_accepted_although_others_hold_it() {
    let mut rng = Rng::new(4);
    let mut held = Held::new("4+2p".parse().expect("a code"), 200_001, &mut rng);
    let base = held.version;
    // Strip 3 does not change, so it is not read before it refuses.
    assert!(held.bench.nsds[usize::from(held.bench.slot_at(3).0)].lose_strip(
        ObjectId(7),
        BLOCK,
        3
    ));
    held.bytes[0] ^= 1;
    assert_eq!(held.patch(base, &[0]).expect("no NSD failed"), Patched::NotBase);
    assert!(version_of(&held, 0).expect("held") > base, "others have accepted it");
    // The NSDs that hold the first patch refuse it again, and the base is still there.
    assert_eq!(held.send(&[0]).expect("written whole"), Patched::NotBase);
    held.bench.io.commit(&[]);
    held.check(0, "written whole");
}

#[test]
fn units_that_do_not_match_their_checksums_are_never_taken_over_into_parity() {
    let mut rng = Rng::new(5);
    for (strip, unit) in [(0, 0), (4, 0), (5, 0)] {
        let mut held = Held::new("4+2p".parse().expect("a code"), 200_001, &mut rng);
        let nsd = &held.bench.nsds[usize::from(held.bench.slot_at(strip).0)];
        assert!(nsd.flip_bit(ObjectId(7), BLOCK, strip, 100));
        held.bytes[unit as usize * UNIT_BYTES] ^= 1;
        assert_eq!(held.send(&[unit]).expect("written"), Patched::NotBase, "strip {strip}");
        held.check(0, &format!("strip {strip}"));
    }
}

#[test]
fn a_stripe_with_a_shadow_or_an_heir_is_not_patched() {
    for is_shadow in [true, false] {
        refused(if is_shadow { "a shadow" } else { "an heir" }, |held| {
            let (nsds, slot) = (held.bench.io.nsds(), held.bench.slot_at(0));
            if is_shadow {
                let port = MemoryNsd::new(NsdId(99)) as Arc<dyn NsdPort>;
                nsds.begin_shadow(slot, NsdId(99), port).expect("it answers");
            } else {
                nsds.begin_deletion(slot).expect("noted");
                nsds.follow_with_heirs();
            }
            for nsd in &held.bench.nsds {
                nsd.set_watch(Some(Arc::new(|_, request| {
                    assert!(!matches!(request, NsdRequest::Patch { .. }), "nothing is sent");
                })));
            }
        });
    }
}

#[test]
fn patches_pass_over_an_nsd_that_is_brought_up_to_date_until_it_has_the_base() {
    let mut rng = Rng::new(6);
    let mut held = Held::new("4+2p".parse().expect("a code"), 200_001, &mut rng);
    let slot = held.bench.slot_at(2);
    let nsd = Arc::clone(&held.bench.nsds[usize::from(slot.0)]);
    nsd.set_down(true);
    held.bytes[0] ^= 1;
    // The parity of the other strips covers the change to the missing strip.
    let in_strip_2 = 2 * 13;
    held.bytes[in_strip_2 * UNIT_BYTES] ^= 1;
    let patched = held.send(&[0, in_strip_2 as u32]).expect("one is away");
    assert!(matches!(patched, Patched::Accepted(_)));
    held.bench.io.commit(&[]);
    held.check(1, "one is away");
    nsd.set_down(false);
    let nsds = held.bench.io.nsds();
    assert!(nsds.begin_recovery(slot));
    for turn in 1..=UNREADY_MAX + 1 {
        held.bytes[0] ^= 1;
        let before = held.bench.io.send_counts().whole;
        let patched = held.send(&[0]).expect("written");
        // Then the block is sent whole, so that the recovery can end.
        let is_whole = turn == UNREADY_MAX;
        assert_eq!(held.bench.io.send_counts().whole - before, u64::from(is_whole), "turn {turn}");
        if let Patched::Accepted(written) = patched {
            let lacks = if turn < UNREADY_MAX { 1 << 2 } else { 0 };
            assert_eq!(written.lacks, lacks, "turn {turn}");
        }
        held.bench.io.commit(&[]);
        let missed = held.bench.io.nsds().missed().take(slot);
        assert_eq!(missed.is_clean(), turn >= UNREADY_MAX, "turn {turn}");
        held.check(usize::from(turn < UNREADY_MAX), "it has what the others have");
    }
    let mut out = vec![0; UNIT_BYTES];
    let (layout, length) = (held.bench.layout, held.bytes.len() as u32);
    let found = held
        .bench
        .io
        .read(&layout, BLOCK, Version::NONE, length, 0, &mut out, Access::Shared)
        .expect("readable");
    assert_eq!(found.map(|found| found.version), Some(held.version));
}
