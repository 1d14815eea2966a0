//! Grants on the real store: who may write what, and what survives a power cut, a fence and a new
//! list of clients.

use super::super::store_test::*;
use super::*;
use crate::store::{BlockStoreOptions, Service};
use std::sync::Arc;
use std::time::Duration;
use strake_env::disk::sim::SimDisk;
use strake_env::sync::Mutex;
use strake_env::{AlignedBuffer, Clock, Disk, ManualClock, Rng};
use strake_proto::nsd::{AllowList, NsdContext, NsdPort, NsdRequest, SettledStripe, StripHeader};
use strake_proto::{ClientId, Epoch, MapVersion, StripKey, Term, Version};
use strake_store::Container;
use strake_stripe::checksum::strip_checksums;

const STRIP: usize = 64 << 10;

struct World {
    disk: Arc<SimDisk>,
    store: Arc<BlockStore>,
    /// The number of the manager's last message.
    number: u64,
    asks: u64,
}

fn open_managed(disk: &Arc<SimDisk>) -> Arc<BlockStore> {
    let container = Container::open(Arc::clone(disk) as Arc<dyn Disk>).expect("container");
    let options = BlockStoreOptions {
        discard_delay: Duration::ZERO,
        straighten_delay: Duration::MAX,
        service: Service::UnderManager,
        clock: Arc::new(ManualClock::default()) as Arc<dyn Clock>,
        ..BlockStoreOptions::new(&observe())
    };
    BlockStore::open(container, options).expect("block store")
}

fn client(client: u64) -> NsdContext {
    NsdContext { client: ClientId(client), epoch: Epoch(1), ..NsdContext::default() }
}

impl World {
    /// A disk under a manager, for clients 1 to 3.
    fn new() -> World {
        let disk = SimDisk::new(DISK_BYTES);
        drop(format(&disk, 1));
        let store = open_managed(&disk);
        let mut world = World { disk, store, number: 0, asks: 0 };
        world.lease(&[1, 2, 3]);
        world
    }

    fn lease(&mut self, clients: &[u64]) {
        self.number += 1;
        let clients = clients.iter().map(|one| (ClientId(*one), Epoch(1))).collect();
        let list = Some(AllowList { number: self.number, clients });
        let (boot, until) = (self.store.boot(), Duration::from_secs(10));
        self.manage(&NsdRequest::Lease { boot, until, floor: MapVersion(0), list });
    }

    fn fence(&mut self, client: u64) {
        self.number += 1;
        let (number, client, epoch) = (self.number, ClientId(client), Epoch(1));
        self.manage(&NsdRequest::Fence { number, client, epoch });
    }

    fn manage(&self, request: &NsdRequest) {
        let manager =
            NsdContext { client: ClientId::MANAGER, term: Term(1), ..NsdContext::default() };
        self.store.call(manager, request, &[], &mut []).expect("the manager is obeyed");
    }

    fn ask(&mut self, from: u64, need: u64, ahead: u64) -> SpaceGrant {
        self.asks += 1;
        let ask = SpaceAsk { number: self.asks, floor: 0, need, ahead };
        let request = NsdRequest::GrantSpace(ask);
        match self.store.call(client(from), &request, &[], &mut []).expect("answered") {
            NsdReply::Granted { space, .. } => space,
            other => panic!("{other:?}"),
        }
    }

    fn write(&self, from: u64, key: StripKey, counter: u64) -> Result<()> {
        let data = AlignedBuffer::from_slice(&vec![counter as u8; STRIP]);
        let version = version(counter);
        let header = StripHeader { version, block_bytes: STRIP as u32, lacks: 0 };
        let checksums = strip_checksums(&key, version, &data);
        let stable = Version::NONE;
        let request = NsdRequest::Write { key, header, checksums, copy: false, stable };
        self.store.call(client(from), &request, &data, &mut []).map(|_| ())
    }

    /// Writes new strips until there is no space; returns how many.
    fn fill(&self, from: u64) -> u64 {
        let blocks = (0..).take_while(|block| match self.write(from, key(100 + from, *block), 1) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                false
            }
        });
        blocks.count() as u64
    }

    fn commit(&self, from: u64, settled: Vec<SettledStripe>) -> SpaceGrant {
        let request = NsdRequest::Commit { settled };
        match self.store.call(client(from), &request, &[], &mut []).expect("stable") {
            NsdReply::Stable { space, .. } => space,
            other => panic!("{other:?}"),
        }
    }

    fn granted(&self, from: u64) -> u64 {
        let grants = self.store.space.grants();
        grants.check();
        grants.of((ClientId(from), Epoch(1))).map_or(0, |held| held.granted * UNIT_BYTES as u64)
    }

    fn power_cut(&mut self, rng: &mut Rng) {
        self.disk = self.disk.crash(self.disk.position(), rng);
        self.store = open_managed(&self.disk);
    }
}

#[test]
fn others_fill_the_disk_and_a_client_still_has_what_it_was_granted() {
    let mut world = World::new();
    let strips = 40;
    let granted = world.ask(1, strips * STRIP as u64, 0).granted;
    assert_eq!(granted, strips * STRIP as u64);
    let others = world.fill(2) + world.fill(3);
    assert!(others > 100, "there is more than was granted: {others}");
    let had = world.fill(1);
    assert!(had >= strips, "{had} of {strips}");
    assert_eq!(world.granted(1), 0);
}

#[test]
fn a_refused_write_costs_nothing_and_a_commit_tops_up() {
    let mut world = World::new();
    let granted = world.ask(1, 1 << 20, 0).granted;
    world.write(1, key(1, 1), 5).expect("room");
    assert_eq!(world.granted(1), granted - STRIP as u64);
    assert_eq!(world.write(1, key(1, 1), 4).expect_err("older").kind(), ErrorKind::Stale);
    assert_eq!(world.granted(1), granted - STRIP as u64);
    let stable = world.commit(1, Vec::new());
    assert_eq!((stable.granted, stable.target), (granted, granted));
    assert_eq!(world.commit(2, Vec::new()), SpaceGrant::default(), "it never asked");
}

#[test]
fn what_was_granted_is_granted_after_a_power_cut() {
    for seed in 1..6 {
        let mut rng = Rng::new(seed);
        let mut world = World::new();
        let granted = world.ask(1, 2 << 20, 0).granted;
        world.write(1, key(1, 1), 1).expect("room");
        world.power_cut(&mut rng);
        let is_held = world.store.record(&key(1, 1)).expect("index").is_some();
        let used = if is_held { STRIP as u64 } else { 0 };
        assert_eq!(world.granted(1), granted - used, "seed {seed}: as much as the writes say");
        world.lease(&[1, 2, 3]);
        world.fill(2);
        assert!(world.fill(1) * STRIP as u64 >= granted - used, "seed {seed}: others took it");
        let less = world.ask(1, 0, 1 << 20);
        assert!(less.granted < granted);
        world.power_cut(&mut rng);
        assert_eq!(world.granted(1), less.granted, "what was given back stays given back");
    }
}

/// A write that has taken its space and has no entry yet is not written after a power cut. Its
/// space is granted then.
#[test]
fn space_of_a_write_under_way_is_granted_after_a_power_cut() {
    let mut world = World::new();
    let granted = world.ask(1, 2 << 20, 0).granted;
    let (disk, seen) = (Arc::clone(&world.disk), Arc::new(Mutex::new(None)));
    let image = Arc::clone(&seen);
    *world.store.before_publish.lock() = Some(Box::new(move |store| {
        // Another write of the same client, and a commit, while the first is under way.
        let ticket = store.enter(client(1)).expect("in");
        let data = AlignedBuffer::from_slice(&vec![7; STRIP]);
        let header = StripHeader { version: version(1), block_bytes: STRIP as u32, lacks: 0 };
        let checksums = strip_checksums(&key(2, 2), version(1), &data);
        let parts = (&key(2, 2), &header, &checksums[..]);
        store.write(&ticket, parts, (false, Version::NONE), &data).expect("room");
        store.make_durable().expect("a good disk");
        *image.lock() = Some(disk.crash(disk.position(), &mut Rng::new(1)));
    }));
    world.write(1, key(1, 1), 1).expect("room");
    assert_eq!(world.granted(1), granted - 2 * STRIP as u64);
    world.disk = seen.lock().take().expect("crashed");
    world.store = open_managed(&world.disk);
    assert_eq!(world.granted(1), granted - STRIP as u64, "one of two is there");
}

#[test]
fn a_fence_frees_what_a_client_held_and_so_does_a_list_without_it() {
    let mut world = World::new();
    for from in [1, 2] {
        world.ask(from, 8 << 20, 0);
    }
    world.fence(1);
    assert_eq!((world.granted(1), world.granted(2)), (0, 8 << 20));
    let late = NsdRequest::GrantSpace(SpaceAsk { number: 99, need: 1 << 20, ..Default::default() });
    let refused = world.store.call(client(1), &late, &[], &mut []).expect_err("fenced");
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    assert_eq!(world.granted(1), 0);
    world.lease(&[3]);
    assert_eq!(world.granted(2), 0);
    world.commit(3, Vec::new());
    world.power_cut(&mut Rng::new(1));
    assert_eq!((world.granted(1), world.granted(2)), (0, 0), "also after a restart");
}

#[test]
fn an_ask_that_a_new_list_overtakes_leaves_nothing() {
    let mut world = World::new();
    world.ask(2, 1 << 20, 0);
    let store = Arc::clone(&world.store);
    let ticket = store.enter(client(1)).expect("in");
    world.lease(&[2, 3]);
    let ask = SpaceAsk { number: 1, need: 1 << 20, ..SpaceAsk::default() };
    let refused = store.grant_space(&ticket, &ask).expect_err("it is not on the list any more");
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    assert_eq!((world.granted(1), world.granted(2)), (0, 1 << 20));
}

#[test]
fn the_metadata_gets_nothing_of_what_is_granted() {
    let mut world = World::new();
    let all = world.ask(1, u64::MAX, 0).granted;
    let mut allocator = world.store.space.allocator.lock();
    let before = allocator.free_for_data();
    allocator.keep_more(0, u32::MAX);
    let unit = UNIT_BYTES as u64;
    assert!(allocator.free_for_data() >= all / unit && allocator.free_for_data() <= before);
}
