//! Many ranges at once, over NSDs that do all, some or one of them at a time, refuse one, or fail.

use super::super::stripe_io_test::{Bench, bench, io_through};
use super::super::{Access, padded_bytes};
use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use strake_env::Rng;
use strake_env::rng::{test_scale, test_seeds};
use strake_env::sync::Mutex;
use strake_proto::nsd::{NsdContext, NsdPort};
use strake_proto::{BlockIndex, GrantNumber, ObjectLayout};
use strake_testing::MemoryNsd;

/// No NSD deletes anything of it.
const REFUSED: ObjectId = ObjectId(105);
const BLOCKS: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Does all of a request.
    All,
    /// Does the first ones, as one that is busy for long.
    Some,
    /// Knows no request with several changes.
    Old,
    /// Is gone after so many requests.
    Gone(usize),
}

/// An NSD that does changes of ranges in its own way, and refuses those of one object.
struct Picky {
    inner: Arc<MemoryNsd>,
    way: Way,
    rng: Mutex<Rng>,
    requests: AtomicUsize,
}

impl NsdPort for Picky {
    fn call(
        &self,
        context: NsdContext,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        let is_refused = |change: &RangeChange| match change {
            RangeChange::Delete { object, .. } => *object == REFUSED,
            RangeChange::Forget { .. } => false,
        };
        let (fs, changes) = match request {
            NsdRequest::ChangeRanges { fs, changes } => (*fs, changes.clone()),
            NsdRequest::DeleteRange { fs, object, from, to, version } => {
                let (object, from, to, version) = (*object, *from, *to, *version);
                (*fs, vec![RangeChange::Delete { object, from, to, version }])
            }
            NsdRequest::ForgetTombstones { fs, object, version } => {
                (*fs, vec![RangeChange::Forget { object: *object, version: *version }])
            }
            _ => return self.inner.call(context, request, send, receive),
        };
        let before = self.requests.fetch_add(1, Ordering::Relaxed);
        if matches!(self.way, Way::Gone(after) if before >= after) {
            return Err(Error::new(ErrorKind::Unreachable, "gone"));
        }
        let is_many = matches!(request, NsdRequest::ChangeRanges { .. });
        assert!(!is_many || (2..=RANGES_MAX).contains(&changes.len()));
        let possible = changes.iter().position(is_refused).unwrap_or(changes.len());
        let done = match self.way {
            Way::Old if is_many => return Err(ErrorKind::NotSupported.into()),
            Way::Some if possible > 0 => 1 + self.rng.lock().index(possible),
            _ => possible,
        };
        if done == 0 {
            return Err(Error::new(ErrorKind::NoSpace, "refused"));
        }
        for change in &changes[..done] {
            self.inner.call(context, &change.alone(fs), send, receive)?;
        }
        let boot = 1;
        Ok(match is_many {
            true => NsdReply::Changed { boot, done: done as u32 },
            false => NsdReply::Accepted { boot },
        })
    }
}

/// Objects of two blocks, and NSDs of which the second one goes its own way.
struct World {
    bench: Bench,
    ports: Vec<Arc<Picky>>,
    io: StripeIo,
    page: Vec<PendingRange>,
}

fn world(rng: &mut Rng, way: Way, objects: u64) -> World {
    let bench = bench("2x".parse().expect("a code"), 3);
    let picky = |(at, inner): (usize, &Arc<MemoryNsd>)| {
        let way = if at == 1 { way } else { Way::All };
        let (rng, requests) = (Mutex::new(Rng::new(rng.next_u64())), AtomicUsize::new(0));
        Arc::new(Picky { inner: Arc::clone(inner), way, rng, requests })
    };
    let ports: Vec<_> = bench.nsds.iter().enumerate().map(picky).collect();
    let as_port = |port: &Arc<Picky>| Arc::clone(port) as Arc<dyn NsdPort>;
    let io = io_through(&bench, 1, ports.iter().map(as_port).collect());
    let range = |at: u64| {
        let layout = ObjectLayout { object: ObjectId(100 + at), key: at as u32, ..bench.layout };
        let padded = vec![7; padded_bytes(layout.code, 5000)];
        for block in (0..BLOCKS).map(BlockIndex) {
            io.write_block(&layout, block, 5000, &padded, Version::NONE).expect("written");
        }
        let (from, to) = (BlockIndex(0), BlockIndex::END);
        let version = Version { grant: GrantNumber(9), counter: at };
        let waiting = (1..=3).map(NsdId).collect();
        PendingRange { id: at, layout, from, to, version, waiting, object_gone: true }
    };
    let page = (0..objects).map(range).collect();
    World { bench, ports, io, page }
}

#[test]
fn many_ranges_are_deleted_whatever_an_nsd_makes_of_them() {
    for seed in test_seeds(0, 20 * test_scale()) {
        let mut rng = Rng::new(seed);
        for way in [Way::All, Way::Some, Way::Old] {
            let objects = rng.below(300);
            let world = world(&mut rng, way, objects);
            // Some are not asked of some.
            let is_asked =
                |range: &PendingRange, nsd: NsdId| !(range.id + u64::from(nsd.0)).is_multiple_of(5);
            let applied = world.io.delete_ranges(&world.page, is_asked);
            for (range, applied) in world.page.iter().zip(applied) {
                let is_refused = range.layout.object == REFUSED;
                let wanted = range.waiting.iter().filter(|nsd| is_asked(range, **nsd));
                let wanted: Vec<NsdId> = wanted.filter(|_| !is_refused).copied().collect();
                assert_eq!(applied, wanted, "seed {seed}, {way:?}, {}", range.layout.object);
                for (nsd, held) in world.bench.nsds.iter().map(|nsd| (nsd.id(), nsd.objects())) {
                    let is_held = held.contains(&range.layout.object);
                    assert!(!applied.contains(&nsd) || !is_held, "seed {seed}, {way:?}");
                }
            }
            let most = objects as usize / RANGES_MAX + 3;
            let requests = world.ports[0].requests.load(Ordering::Relaxed);
            assert!(requests <= most, "{requests} requests for {objects} objects");
            let gone: Vec<_> = world.page.iter().map(|it| (it.layout.object, it.version)).collect();
            world.io.forget_tombstones(&gone);
            // Without a tombstone an older version is taken again.
            for range in world.page.iter().filter(|range| range.layout.object != REFUSED) {
                let padded = vec![8; padded_bytes(range.layout.code, 5000)];
                let (block, none) = (BlockIndex(0), Version::NONE);
                world.io.write_block(&range.layout, block, 5000, &padded, none).expect("written");
                let mut out = vec![0; 8192];
                let access = Access::Exclusive;
                let found = world.io.read(&range.layout, block, none, 5000, 0, &mut out, access);
                assert!(found.expect("reads").is_some() && out[..5000] == padded[..5000]);
            }
        }
    }
}

#[test]
fn what_an_nsd_did_before_it_failed_counts() {
    let mut rng = Rng::new(1);
    let world = world(&mut rng, Way::Gone(2), 200);
    let applied = world.io.delete_ranges(&world.page, |_, _| true);
    let of = |nsd: u32| applied.iter().filter(|nsds| nsds.contains(&NsdId(nsd))).count();
    assert_eq!([of(1), of(3)], [199, 199], "all but the one that is refused");
    // The first request ends before that one, and it is the first of the second.
    assert_eq!(of(2), 5);
    assert!(!world.io.nsds().availability(SlotIndex(1)).writable(), "it is out of use");
    assert_eq!(world.ports[1].requests.load(Ordering::Relaxed), 3);
}
