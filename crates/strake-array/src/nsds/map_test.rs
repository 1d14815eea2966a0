//! Requests that NSDs refuse because of an old map. No NSD counts as bad, and each request arrives
//! under the new map.

use super::*;
use crate::stripe_io::{Access, Patch, Patched, StripeIo, Versions, padded_bytes};
use std::sync::Arc;
use strake_env::sync::Mutex;
use strake_env::{FanOut, ManualClock};
use strake_proto::meta::{Configuration, MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply};
use strake_proto::nsd::NsdContext;
use strake_proto::{
    BlockIndex, ClientId, ClusterId, Code, Error, GrantNumber, LayoutVersion, MapVersion, ObjectId,
    ObjectLayout, PoolMap, SlotIndex, Timestamp, Version,
};
use strake_testing::MemoryNsd;

const BLOCK: BlockIndex = BlockIndex(0);
const LENGTH: u32 = 100_000;

/// Metadata that has a pool map.
struct Maps(Mutex<Configuration>);

impl Maps {
    /// The map changes; `change` may change more than its version.
    fn next(&self, change: impl FnOnce(&mut PoolMap)) -> MapVersion {
        let pool = &mut self.0.lock().pool;
        pool.version.0 += 1;
        change(pool);
        pool.version
    }
}

impl MetaPort for Maps {
    fn query(&self, _: &MetaQuery) -> Result<MetaReply> {
        Ok(MetaReply::Configuration(Box::new(self.0.lock().clone())))
    }

    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply> {
        let MetaOp::SetNsdState { nsd, .. } = entry.op else { panic!("{entry:?}") };
        panic!("NSD {nsd} is noted")
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// An NSD with a map floor.
struct Floored {
    inner: Arc<MemoryNsd>,
    floor: Mutex<MapVersion>,
    is_fencing: Mutex<bool>,
}

impl NsdPort for Floored {
    fn call(
        &self,
        context: NsdContext,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        if context.map < *self.floor.lock() {
            return Err(Error::new(ErrorKind::OldMap, "below the floor"));
        }
        if *self.is_fencing.lock() {
            return Err(Error::new(ErrorKind::Fenced, "declared dead"));
        }
        self.inner.call(context, request, send, receive)
    }
}

struct World {
    maps: Arc<Maps>,
    nsds: Vec<Arc<Floored>>,
    io: StripeIo,
    layout: ObjectLayout,
}

impl World {
    fn new(code: &str, count: u16) -> World {
        let code: Code = code.parse().expect("a code");
        let pool = PoolMap::new((0..u32::from(count)).map(|at| (NsdId(at + 1), at)));
        let layout = ObjectLayout {
            object: ObjectId(7),
            code,
            block_size: 256 << 10,
            layout: LayoutVersion(1),
            key: 0,
        };
        let configuration = Configuration {
            cluster: ClusterId([7; 16]),
            name: "tests".to_owned(),
            code,
            block_size: layout.block_size,
            pool: pool.clone(),
            created: Timestamp { seconds: 1_000, nanos: 0 },
            settings: Vec::new(),
            incompat_flags: 0,
            compat_flags: 0,
        };
        let maps = Arc::new(Maps(Mutex::new(configuration)));
        let nsd = |at: u16| {
            let inner = MemoryNsd::new(NsdId(u32::from(at) + 1));
            Arc::new(Floored { inner, floor: Mutex::default(), is_fencing: Mutex::default() })
        };
        let nsds: Vec<Arc<Floored>> = (0..count).map(nsd).collect();
        let port = |nsd: &Arc<Floored>| Some(Arc::clone(nsd) as Arc<dyn NsdPort>);
        let ports = (0..).map(SlotIndex).zip(nsds.iter().map(port)).collect();
        let (meta, clock) = (Arc::clone(&maps) as Arc<dyn MetaPort>, ManualClock::default());
        let set = NsdSet::new(pool, code, ports, meta, ClientId(3), Arc::new(clock));
        let fan = FanOut::new("strips", 2).expect("threads");
        let io = StripeIo::new(Arc::new(set), fan, Versions::new(GrantNumber(1)));
        World { maps, nsds, io, layout }
    }

    /// Every NSD refuses what is below a map from now on.
    fn raise(&self, floor: MapVersion) {
        self.nsds.iter().for_each(|nsd| *nsd.floor.lock() = floor);
    }

    fn write(&self, byte: u8) -> Result<Version> {
        let mut padded = vec![0; padded_bytes(self.layout.code, LENGTH)];
        padded[..LENGTH as usize].fill(byte);
        let written = self.io.write_block(&self.layout, BLOCK, LENGTH, &padded, Version::NONE)?;
        Ok(written.version)
    }

    fn read(&self) -> Result<(Version, u8)> {
        let mut out = vec![0; 4096];
        let (floor, access) = (Version::NONE, Access::Shared);
        let found = self.io.read(&self.layout, BLOCK, floor, LENGTH, 0, &mut out, access)?;
        Ok((found.expect("it was written").version, out[0]))
    }

    fn assert_none_is_bad(&self) {
        for view in self.io.nsds().views() {
            assert_eq!((view.bad_strips, view.repaired), (0, 0), "NSD {}", view.nsd);
        }
    }
}

#[test]
fn what_an_old_map_stopped_is_done_under_the_new_one() {
    for (code, count) in [("1", 1), ("2x", 3), ("4+2p", 7)] {
        let world = World::new(code, count);
        let first = world.write(1).expect("all NSDs are up");
        world.raise(world.maps.next(|_| {}));
        let second = world.write(2).expect("the map is fetched");
        assert!(second.counter > first.counter + 1, "{code}: a version of its own");
        world.raise(world.maps.next(|_| {}));
        assert_eq!(world.read().expect("readable"), (second, 2), "{code}");
        world.raise(world.maps.next(|_| {}));
        let committed = world.io.commit(&[]);
        assert!(committed.unreached.is_empty() && committed.refused.is_none(), "{code}");
        world.raise(world.maps.next(|_| {}));
        let bytes = [3; 4096];
        let units: [(u32, &[u8]); 1] = [(0, &bytes)];
        let patch = Patch { base: second, block_bytes: LENGTH, units: &units };
        let patched = world.io.patch_block(&world.layout, BLOCK, &patch).expect("not lost");
        assert_eq!(patched, Patched::NotBase, "{code}: the whole block is sent instead");
        world.write(3).expect("under the new map");
        assert_eq!(world.read().expect("readable").1, 3, "{code}");
        world.assert_none_is_bad();
        let is_up = |view: &crate::nsds::NsdView| view.state.availability == NsdAvailability::Up;
        assert!(world.io.nsds().views().iter().all(is_up), "{code}");
    }
}

#[test]
fn an_nsd_that_the_new_map_takes_out_is_neither_written_nor_read() {
    let world = World::new("2x", 2);
    world.write(1).expect("all NSDs are up");
    let out = NsdId(2);
    world.raise(world.maps.next(|pool| {
        pool.slots[1].state.availability = NsdAvailability::Unrecovered;
    }));
    let version = world.write(2).expect("one is left");
    assert!(world.io.nsds().is_noted(SlotIndex(1)), "NSD {out} has missed it");
    assert_eq!(world.read().expect("readable"), (version, 2));
    world.assert_none_is_bad();
}

#[test]
fn a_map_that_stays_too_old_is_an_error_and_no_fault_of_the_nsds() {
    let world = World::new("2x", 2);
    world.write(1).expect("all NSDs are up");
    world.raise(MapVersion(1000));
    assert_eq!(world.write(2).expect_err("refused").kind(), ErrorKind::OldMap);
    assert!(world.read().is_err());
    assert_eq!(world.io.commit(&[]).refused.map(|error| error.kind()), Some(ErrorKind::OldMap));
    world.assert_none_is_bad();
    world.raise(MapVersion(0));
    world.write(3).expect("all NSDs are still in use");
}

#[test]
fn a_client_that_was_declared_dead_takes_no_nsd_out_of_use() {
    let world = World::new("2x", 2);
    let version = world.write(1).expect("all NSDs are up");
    world.nsds.iter().for_each(|nsd| *nsd.is_fencing.lock() = true);
    assert_eq!(world.write(2).expect_err("refused").kind(), ErrorKind::Fenced);
    assert!(world.read().is_err());
    let refused = world.io.commit(&[]).refused.expect("refused");
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    world.assert_none_is_bad();
    world.nsds.iter().for_each(|nsd| *nsd.is_fencing.lock() = false);
    assert_eq!(world.read().expect("all NSDs are still in use"), (version, 1));
}
