//! Stripes over NSDs in memory: every loss pattern, damage, holes, and crashes in the middle of a
//! write.

use super::*;
use strake_env::{ManualClock, Rng};
use strake_proto::layout::NsdAvailability;
use strake_proto::meta::{Configuration, MetaEntry, MetaPort, MetaQuery, MetaReply};
use strake_proto::nsd::{NsdPort, RangeChange};
use strake_proto::{ClientId, ClusterId, LayoutVersion, NsdId, ObjectId, PoolMap, Timestamp};
use strake_testing::{MemoryNsd, memory_nsd::Faults};

pub(crate) const BLOCK_SIZE: u32 = 256 << 10;

/// Metadata that only takes notes, and has a pool map.
struct Notes {
    configuration: Configuration,
    entries: strake_env::sync::Mutex<Vec<MetaEntry>>,
}

impl MetaPort for Notes {
    fn query(&self, query: &MetaQuery) -> Result<MetaReply> {
        match query {
            MetaQuery::Configuration => {
                Ok(MetaReply::Configuration(Box::new(self.configuration.clone())))
            }
            _ => Ok(MetaReply::Done),
        }
    }
    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply> {
        self.entries.lock().push(entry.clone());
        Ok(MetaReply::Done)
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

pub(crate) struct Bench {
    pub(crate) nsds: Vec<Arc<MemoryNsd>>,
    notes: Arc<Notes>,
    pub(crate) layout: ObjectLayout,
    pub(crate) io: StripeIo,
    /// How many later clients were given a grant.
    lives: AtomicU64,
}

fn pool(count: u16) -> PoolMap {
    PoolMap::new((0..u32::from(count)).map(|at| (NsdId(at + 1), at)))
}

fn io_over(nsds: &[Arc<MemoryNsd>], notes: &Arc<Notes>, grant: u64) -> StripeIo {
    let port = |nsd: &Arc<MemoryNsd>| Arc::clone(nsd) as Arc<dyn NsdPort>;
    io_over_ports(nsds.iter().map(port).collect(), notes, grant)
}

fn io_over_ports(ports: Vec<Arc<dyn NsdPort>>, notes: &Arc<Notes>, grant: u64) -> StripeIo {
    let count = ports.len() as u16;
    let ports = ports.into_iter().zip(0u16..).map(|(port, at)| (SlotIndex(at), Some(port)));
    let ports = ports.collect();
    let set = NsdSet::new(
        pool(count),
        Code { data: 1, parity: 3 },
        ports,
        Arc::clone(notes) as Arc<dyn MetaPort>,
        ClientId(1),
        Arc::new(ManualClock::default()),
    );
    let fan = FanOut::new("strips", 2).expect("threads");
    StripeIo::new(Arc::new(set), fan, Versions::new(GrantNumber(grant)))
}

/// A client of its own over the NSDs of a bench.
pub(crate) fn io_over_all(bench: &Bench, grant: u64) -> StripeIo {
    io_over(&bench.nsds, &bench.notes, grant)
}

/// A client of its own that reaches the NSDs of a bench in another way.
pub(crate) fn io_through(bench: &Bench, grant: u64, ports: Vec<Arc<dyn NsdPort>>) -> StripeIo {
    io_over_ports(ports, &bench.notes, grant)
}

pub(crate) fn bench(code: Code, count: u16) -> Bench {
    let nsds: Vec<_> = (0..count).map(|at| MemoryNsd::new(NsdId(u32::from(at) + 1))).collect();
    let configuration = Configuration {
        cluster: ClusterId([7; 16]),
        name: "tests".to_owned(),
        code,
        block_size: BLOCK_SIZE,
        pool: pool(count),
        created: Timestamp::default(),
        settings: Vec::new(),
        incompat_flags: 0,
        compat_flags: 0,
    };
    let notes = Arc::new(Notes { configuration, entries: Default::default() });
    let layout = ObjectLayout {
        object: ObjectId(7),
        code,
        block_size: BLOCK_SIZE,
        layout: LayoutVersion(1),
        key: 0,
    };
    let io = io_over(&nsds, &notes, 1);
    Bench { nsds, notes, layout, io, lives: AtomicU64::new(100) }
}

impl Bench {
    /// The slot that holds this strip of block 0.
    pub(super) fn slot_at(&self, strip: u8) -> SlotIndex {
        let slots = self.io.nsds().stripe(&self.layout, BlockIndex(0)).expect("placed");
        slots[usize::from(strip)]
    }

    pub(super) fn write(&self, io: &StripeIo, block: u64, data: &[u8]) -> Result<Version> {
        let mut padded = vec![0; padded_bytes(self.layout.code, data.len() as u32)];
        padded[..data.len()].copy_from_slice(data);
        let (block, length) = (BlockIndex(block), data.len() as u32);
        let written = io.write_block(&self.layout, block, length, &padded, Version::NONE)?;
        Ok(written.version)
    }

    /// Reads the whole block with a new client, as after a restart. The NSDs in `away` (a mask) are
    /// gone.
    pub(super) fn read_after_restart(&self, block: u64, away: u32) -> Result<Option<Vec<u8>>> {
        for (at, nsd) in self.nsds.iter().enumerate() {
            nsd.set_down(away >> at & 1 == 1);
        }
        let grant = self.lives.fetch_add(1, Ordering::Relaxed);
        let io = io_over(&self.nsds, &self.notes, grant);
        let recovered = io.recover(&self.layout, BlockIndex(block), Version::NONE, true);
        let result = recovered.and_then(|_| self.read(&io, block, BLOCK_SIZE));
        self.nsds.iter().for_each(|nsd| nsd.set_down(false));
        result
    }

    pub(super) fn read(&self, io: &StripeIo, block: u64, expected: u32) -> Result<Option<Vec<u8>>> {
        let mut out = vec![9; BLOCK_SIZE as usize];
        let block = BlockIndex(block);
        let access = Access::Exclusive;
        let found = io.read(&self.layout, block, Version::NONE, expected, 0, &mut out, access)?;
        Ok(found.map(|found| {
            assert!(out[found.block_bytes as usize..].iter().all(|byte| *byte == 0));
            out.truncate(found.block_bytes as usize);
            out
        }))
    }
}

fn codes() -> Vec<Code> {
    ["1", "2x", "4+2p", "8+2p"].iter().map(|name| name.parse().expect("a code")).collect()
}

pub(super) fn data(rng: &mut Rng, length: usize) -> Vec<u8> {
    let mut data = vec![0; length];
    rng.fill(&mut data);
    data
}

const LENGTHS: [usize; 7] =
    [1, 4096, 100_000, 128 << 10, (128 << 10) + 1, 200_001, BLOCK_SIZE as usize];

#[test]
fn every_loss_that_the_code_tolerates_is_read_through_and_one_more_is_an_error() {
    let mut rng = Rng::new(1);
    for code in codes() {
        let bench = bench(code, code.width() as u16);
        for (block, length) in (0u64..).zip(LENGTHS) {
            let written = data(&mut rng, length);
            bench.write(&bench.io, block, &written).expect("all NSDs are up");
            let slots = bench.io.nsds().stripe(&bench.layout, BlockIndex(block)).expect("placed");
            for away in 0u32..1 << code.width() {
                if away.count_ones() > u32::from(code.parity) + 1 {
                    continue;
                }
                let lost = (0..code.width() as u8)
                    .filter(|at| Geometry::is_stored(code, length as u64, *at))
                    .filter(|at| away >> slots[usize::from(*at)].0 & 1 == 1)
                    .count();
                let read = bench.read_after_restart(block, away);
                if lost <= usize::from(code.parity) {
                    let read = read.expect("tolerated").expect("stored");
                    assert!(read == written, "{code} {away:b}");
                } else {
                    assert_eq!(
                        read.expect_err("too many").kind(),
                        ErrorKind::Io,
                        "{code} {away:b}"
                    );
                }
            }
        }
    }
}

#[test]
fn ranges_read_what_the_block_has_whatever_shape_was_guessed_and_whoever_is_away() {
    let mut rng = Rng::new(2);
    for code in codes() {
        let bench = bench(code, code.width() as u16 + 1);
        for (block, length) in (0u64..).zip(LENGTHS) {
            let written = data(&mut rng, length);
            bench.write(&bench.io, block, &written).expect("written");
            let mut whole = written.clone();
            whole.resize(BLOCK_SIZE as usize, 0);
            for _ in 0..40 {
                let offset = rng.index(64) * 4096;
                let length = (1 + rng.index(64 - offset / 4096)) * 4096;
                let expected = 1 + rng.below(u64::from(BLOCK_SIZE)) as u32;
                let away = rng.index(code.width() + 1);
                bench.nsds[away].set_down(code.parity > 0);
                let io = io_over(&bench.nsds, &bench.notes, 50);
                let mut out = vec![7; length];
                let block = BlockIndex(block);
                let access = Access::Shared;
                io.read(&bench.layout, block, Version::NONE, expected, offset, &mut out, access)
                    .expect("readable")
                    .expect("stored");
                assert!(out == whole[offset..offset + length], "{code} {offset} {length}");
                bench.nsds[away].set_down(false);
            }
        }
    }
}

#[test]
fn one_bad_strip_more_than_tolerated_is_an_error_never_wrong_bytes() {
    let code = Code { data: 4, parity: 2 };
    let bench = bench(code, 6);
    bench.write(&bench.io, 0, &data(&mut Rng::new(4), 200_000)).expect("written");
    for strip in [0, 2, 5] {
        let slot = bench.slot_at(strip);
        assert!(bench.nsds[usize::from(slot.0)].flip_bit(ObjectId(7), BlockIndex(0), strip, 1));
    }
    assert_eq!(bench.read(&bench.io, 0, 200_000).expect_err("lost").kind(), ErrorKind::Io);
}

#[test]
fn a_hole_is_believed_only_within_the_tolerance() {
    for code in codes() {
        let bench = bench(code, code.width() as u16);
        let slots = bench.io.nsds().stripe(&bench.layout, BlockIndex(3)).expect("placed");
        for away in 0u32..1 << code.width() {
            let voters = (0..code.width())
                .filter(|at| *at == 0 || *at >= usize::from(code.data))
                .filter(|at| away >> slots[*at].0 & 1 == 0)
                .count();
            let read = bench.read_after_restart(3, away);
            if voters > 0 {
                assert_eq!(read.expect("a hole"), None, "{code} {away:b}");
            } else {
                assert_eq!(read.expect_err("unknown").kind(), ErrorKind::Io, "{code} {away:b}");
            }
        }
    }
}

#[test]
fn strips_below_the_floor_are_a_hole() {
    let bench = bench(Code { data: 4, parity: 2 }, 6);
    let version = bench.write(&bench.io, 0, &[1; 4096]).expect("written");
    let floor = Version { counter: version.counter + 1, ..version };
    let mut out = vec![1; 4096];
    let found = bench
        .io
        .read(&bench.layout, BlockIndex(0), floor, 4096, 0, &mut out, Access::Shared)
        .expect("readable");
    assert_eq!(found, None);
    assert!(out.iter().all(|byte| *byte == 0));
    assert_eq!(bench.io.head(&bench.layout, BlockIndex(0), floor).expect("readable"), None);
}

#[test]
fn a_degraded_write_is_noted_before_it_is_acknowledged() {
    for code in codes().into_iter().filter(|code| code.parity > 0) {
        let bench = bench(code, code.width() as u16);
        bench.nsds[0].set_faults(Faults { write: Some(ErrorKind::Io), ..Faults::default() });
        bench.write(&bench.io, 0, &[5; 200_000]).expect("degraded");
        assert_eq!(bench.notes.entries.lock().len(), 1, "{code}");
        assert_eq!(bench.io.nsds().availability(SlotIndex(0)), NsdAvailability::Unrecovered);
        bench.write(&bench.io, 1, &[5; 200_000]).expect("degraded");
        assert_eq!(bench.notes.entries.lock().len(), 1, "{code}: noted once");
    }
}

#[test]
fn a_full_nsd_fails_the_write_and_is_not_taken_for_lost() {
    let bench = bench(Code { data: 4, parity: 2 }, 6);
    bench.nsds[2].set_capacity(0);
    let error = bench.write(&bench.io, 0, &[5; 200_000]).expect_err("full");
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(bench.io.nsds().availability(SlotIndex(2)), NsdAvailability::Up);
    assert!(bench.notes.entries.lock().is_empty());
}

/// A writer dies after any subset of the strips of its second version was accepted and kept. Then
/// any tolerated set of NSDs is away. All readers get the same one of the two versions, for ever.
/// They get the new version if enough strips of it are there.
#[test]
fn after_a_crash_in_a_write_all_readers_agree_on_one_of_the_two_versions() {
    let mut rng = Rng::new(5);
    for (name, lengths) in [("2x", (200_000, 150_000)), ("4+2p", (200_000, 250_000))] {
        let code: Code = name.parse().expect("a code");
        for kept in 0u32..1 << code.width() {
            let bench = bench(code, code.width() as u16);
            let old = data(&mut rng, lengths.0);
            let new = data(&mut rng, lengths.1);
            bench.write(&bench.io, 0, &old).expect("written");
            bench.io.commit(&[]);
            bench.write(&bench.io, 0, &new).expect("written");
            for (at, nsd) in bench.nsds.iter().enumerate() {
                if kept >> at & 1 == 0 {
                    nsd.crash();
                }
            }
            let first = bench.read_after_restart(0, 0).expect("resolved").expect("stored");
            let forward = kept.count_ones() >= u32::from(code.data);
            if forward {
                assert!(first[..new.len()] == new[..], "{name} {kept:b}");
            } else {
                assert!(first[..old.len()] == old[..], "{name} {kept:b}");
                assert!(first[old.len()..].iter().all(|byte| *byte == 0));
            }
            for away in 0u32..1 << code.width() {
                if away.count_ones() <= u32::from(code.parity) {
                    let again = bench.read_after_restart(0, away).expect("tolerated");
                    assert!(again.as_ref() == Some(&first), "{name} {kept:b} {away:b}");
                }
            }
        }
    }
}

/// Two overwrites are on their way when the power goes. Each NSD has made the first durable, or the
/// second, or both, or none. So the last acknowledged version may be the current one on no NSD.
#[test]
fn after_a_crash_in_two_writes_one_of_the_three_versions_is_read() {
    let mut rng = Rng::new(7);
    let written: Vec<Vec<u8>> = (0..3).map(|_| data(&mut rng, 200_000)).collect();
    for name in ["2x", "4+2p"] {
        let code: Code = name.parse().expect("a code");
        // Two bits for each NSD: whether it made the first write durable before the second came,
        // and whether it made the second durable.
        for kept in 0u32..1 << (2 * code.width()) {
            if code.width() > 2 && kept % 7 != 0 {
                continue;
            }
            let bench = bench(code, code.width() as u16);
            bench.write(&bench.io, 0, &written[0]).expect("written");
            bench.io.commit(&[]);
            for (bit, new) in written[1..].iter().enumerate() {
                bench.write(&bench.io, 0, new).expect("written");
                for (at, nsd) in bench.nsds.iter().enumerate() {
                    if kept >> (2 * at + bit) & 1 == 1 {
                        nsd.keep_all();
                    }
                }
            }
            bench.nsds.iter().for_each(|nsd| nsd.crash());
            let lost = [0, 1, 1 << rng.index(code.width())][rng.index(3)];
            let first = bench.read_after_restart(0, lost).expect("resolved").expect("stored");
            assert!(written.contains(&first), "{name} {kept:b}");
            // An NSD that was away missed the outcome. It is noted, and is not read before it has
            // the outcome.
            let away = if lost == 0 { 1 << rng.index(code.width()) } else { lost };
            let again = bench.read_after_restart(0, away);
            assert!(again.expect("tolerated") == Some(first), "{name} {kept:b}");
        }
    }
}

#[test]
fn more_losses_than_tolerated_are_an_error_and_not_a_hole_once_a_block_is_settled() {
    let code = Code { data: 4, parity: 2 };
    let mut rng = Rng::new(8);
    let written = data(&mut rng, 200_000);
    for lost in 0u32..1 << 6 {
        let bench = bench(code, 6);
        let version = bench.write(&bench.io, 0, &written).expect("written");
        bench.io.commit(&[]);
        let (fs, object) = (bench.io.nsds().fs(), bench.layout.object);
        bench.io.commit(&[SettledStripe { fs, object, block: BlockIndex(0), version, lacks: 0 }]);
        for strip in (0..6).filter(|strip| lost >> strip & 1 == 1) {
            let slot = usize::from(bench.slot_at(strip).0);
            bench.nsds[slot].lose(object, BlockIndex(0), strip);
        }
        let read = bench.read_after_restart(0, 0);
        match lost.count_ones() {
            0..=2 => assert!(read.expect("tolerated") == Some(written.clone()), "{lost:b}"),
            3..=5 => assert_eq!(read.expect_err("lost").kind(), ErrorKind::Io, "{lost:b}"),
            // Here nothing distinguishes it from a hole. `fs check` knows the file's size and sums.
            _ => assert_eq!(read.expect("nothing is left"), None),
        }
    }
}

#[test]
fn an_nsd_that_is_up_and_lacks_a_version_tells_that_it_was_never_acknowledged() {
    let code = Code { data: 4, parity: 2 };
    let mut rng = Rng::new(6);
    let bench = bench(code, 6);
    let old = data(&mut rng, 200_000);
    bench.write(&bench.io, 0, &old).expect("written");
    bench.io.commit(&[]);
    bench.write(&bench.io, 0, &data(&mut rng, 200_000)).expect("written");
    // Only slots 0..4 have the new version. With all NSDs there, enough of it is left to go
    // forward. With two of these away there is not enough, and the witnesses 4 and 5 show that it
    // was never acknowledged.
    bench.nsds[4].crash();
    bench.nsds[5].crash();
    assert!(bench.read_after_restart(0, 0b11).expect("rolled back") == Some(old.clone()));
    // The outcome was written down, so NSDs that return change nothing.
    assert!(bench.read_after_restart(0, 0).expect("all back") == Some(old));
    assert_eq!(bench.read_after_restart(0, 0b111).expect_err("too many").kind(), ErrorKind::Io);
}

#[test]
fn listings_count_each_block_once_and_nothing_below_its_floor() {
    let bench = bench(Code { data: 4, parity: 2 }, 8);
    for block in [0u64, 5, 6, 1000, 1 << 40] {
        bench.write(&bench.io, block, &[1; 5000]).expect("written");
    }
    let none = |_: BlockIndex| Version::NONE;
    let all = (BlockIndex(0), BlockIndex::END);
    let found = bench.io.blocks(&bench.layout, all, &none).expect("listed");
    let blocks: Vec<u64> = found.keys().map(|block| block.0).collect();
    assert_eq!(blocks, [0, 5, 6, 1000, 1 << 40]);
    let first = |from: u64| {
        let range = (BlockIndex(from), BlockIndex::END);
        bench.io.first_block(&bench.layout, range, &none).expect("listed")
    };
    assert_eq!(first(6), Some(BlockIndex(6)));
    assert_eq!(first(7), Some(BlockIndex(1000)));
    assert_eq!(first((1 << 40) + 1), None);
    let version = bench.io.versions().next();
    let floor = move |block: BlockIndex| if block.0 < 1000 { version } else { Version::NONE };
    assert_eq!(bench.io.blocks(&bench.layout, all, &floor).expect("listed").len(), 2);
    let (object, from, to) = (bench.layout.object, BlockIndex(5), BlockIndex(7));
    bench.io.change_everywhere(&[RangeChange::Delete { object, from, to, version }]);
    assert_eq!(bench.io.blocks(&bench.layout, all, &none).expect("listed").len(), 3);
}
