//! Tests the door on the real store: what is refused where it would be published, what is refused
//! at the end, who waits for whom, and what survives a restart and a power cut.

use super::super::store_test::*;
use super::*;
use crate::store::{BlockStoreOptions, Service};
use std::sync::Arc;
use std::time::Duration;
use strake_env::disk::sim::{Fate, SimDisk};
use strake_env::{AlignedBuffer, Clock, Disk, ManualClock, Rng};
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::{AllowList, NsdPort, RangeChange, SettledStripe, StripHeader};
use strake_proto::{
    BlockIndex, ClientId, Epoch, FsId, MapVersion, ObjectId, StripKey, Term, Version,
};
use strake_store::Container;
use strake_stripe::checksum::strip_checksums;

/// The lease of these tests ends here on the server's clock.
const END: Duration = Duration::from_secs(10);

fn open_managed(disk: &Arc<SimDisk>, clock: &Arc<ManualClock>) -> Arc<BlockStore> {
    // The clock stands still, so a wait that is not served ends after this time.
    open_within(disk, clock, Duration::from_millis(50))
}

fn open_within(
    disk: &Arc<SimDisk>,
    clock: &Arc<ManualClock>,
    wait_limit: Duration,
) -> Arc<BlockStore> {
    let container = Container::open(Arc::clone(disk) as Arc<dyn Disk>).expect("container");
    let options = BlockStoreOptions {
        straighten_delay: Duration::MAX,
        wait_limit,
        service: Service::UnderManager,
        clock: Arc::clone(clock) as Arc<dyn Clock>,
        ..BlockStoreOptions::new(&observe())
    };
    BlockStore::open(container, options).expect("block store")
}

/// A disk whose store has a lease of term 1 for clients 1 and 2, and its clock.
fn served() -> (Arc<SimDisk>, Arc<BlockStore>, Arc<ManualClock>) {
    let disk = SimDisk::new(DISK_BYTES);
    drop(format(&disk, 1));
    let clock = Arc::new(ManualClock::default());
    let store = open_managed(&disk, &clock);
    lease(&store, 1, 1, &[1, 2]).expect("a lease");
    (disk, store, clock)
}

fn manager(term: u64) -> NsdContext {
    NsdContext { client: ClientId::MANAGER, term: Term(term), ..NsdContext::default() }
}

fn client(client: u64) -> NsdContext {
    NsdContext { client: ClientId(client), epoch: Epoch(1), ..NsdContext::default() }
}

fn ask(store: &BlockStore, context: NsdContext, request: &NsdRequest) -> Result<AdmissionReply> {
    match store.call(context, request, &[], &mut [])? {
        NsdReply::Admission(reply) => Ok(reply),
        other => panic!("{other:?}"),
    }
}

fn lease(store: &BlockStore, term: u64, number: u64, clients: &[u64]) -> Result<AdmissionReply> {
    let clients = clients.iter().map(|one| (ClientId(*one), Epoch(1))).collect();
    let list = Some(AllowList { number, clients });
    let request = NsdRequest::Lease { boot: store.boot(), until: END, floor: MapVersion(0), list };
    ask(store, manager(term), &request)
}

fn fence(number: u64, client: u64) -> NsdRequest {
    NsdRequest::Fence { number, client: ClientId(client), epoch: Epoch(1) }
}

fn strip_data(counter: u64) -> AlignedBuffer {
    AlignedBuffer::from_slice(&vec![counter as u8; UNIT_BYTES])
}

fn write_request(key: StripKey, counter: u64, data: &[u8]) -> NsdRequest {
    let version = version(counter);
    let header = StripHeader { version, block_bytes: data.len() as u32, lacks: 0 };
    let checksums = strip_checksums(&key, version, data);
    NsdRequest::Write { key, header, checksums, copy: false, stable: Version::NONE }
}

fn write_as(store: &BlockStore, context: NsdContext, key: StripKey, counter: u64) -> Result<()> {
    let data = strip_data(counter);
    store.call(context, &write_request(key, counter, &data), &data, &mut []).map(|_| ())
}

fn read_as(store: &BlockStore, context: NsdContext, key: StripKey) -> Result<Version> {
    let mut out = AlignedBuffer::zeroed(UNIT_BYTES);
    let length = UNIT_BYTES as u32;
    let request = NsdRequest::Read { key, version: None, offset: 0, length };
    match store.call(context, &request, &[], &mut out)? {
        NsdReply::Strip { header, .. } => Ok(header.version),
        other => panic!("{other:?}"),
    }
}

/// The version of a strip, past the door.
fn held(store: &BlockStore, key: StripKey) -> Option<Version> {
    store.record(&key).expect("index").map(|record| record.current().version())
}

fn kind_of<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.expect_err("refused").kind()
}

/// A client wrote strip 1 of object 1, and a promise and a tombstone are there.
fn fill(store: &BlockStore) {
    write_as(store, client(1), key(1, 1), 3).expect("written");
    let refuse = NsdRequest::Refuse { key: key(7, 0), version: version(1) };
    store.call(client(1), &refuse, &[], &mut []).expect("promised");
    let delete = delete(8, 1);
    store.call(client(1), &delete, &[], &mut []).expect("deleted");
}

fn delete(object: u64, counter: u64) -> NsdRequest {
    let (fs, object, version) = (FsId(1), ObjectId(object), version(counter));
    NsdRequest::DeleteRange { fs, object, from: BlockIndex(0), to: BlockIndex::END, version }
}

fn many_deletes() -> NsdRequest {
    let delete = |object| RangeChange::Delete {
        object: ObjectId(object),
        from: BlockIndex(0),
        to: BlockIndex::END,
        version: version(9),
    };
    NsdRequest::ChangeRanges { fs: FsId(1), changes: vec![delete(1), delete(2)] }
}

fn many_writes() -> NsdRequest {
    let data = strip_data(5);
    let strips = vec![small_strip(key(1, 1), 5, &data), small_strip(key(2, 2), 5, &data)];
    NsdRequest::WriteMany { strips, copy: false }
}

/// Changes something if strip 1 of object 1 is bad.
fn mend_request() -> NsdRequest {
    let checksums = strip_checksums(&key(1, 1), version(3), &strip_data(3));
    NsdRequest::Mend { key: key(1, 1), version: version(3), checksums }
}

/// Makes strip 1 of object 1 bad, or good again.
fn spoil(disk: &SimDisk, store: &BlockStore) {
    let record = store.record(&key(1, 1)).expect("index").expect("held");
    disk.flip(record.extents().next().expect("units").offset(), 1);
}

/// Every request that changes something.
fn changes() -> Vec<(NsdRequest, AlignedBuffer)> {
    let data = strip_data(5);
    let none = || AlignedBuffer::zeroed(0);
    let StripKey { fs, object, block, .. } = key(1, 1);
    let (base, version_5) = (version(3), version(5));
    let header = StripHeader { version: version_5, block_bytes: UNIT_BYTES as u32, lacks: 0 };
    let seed = strake_stripe::ChecksumSeed::new(&key(1, 1), version_5);
    let checksums = vec![seed.unit(0, &data)];
    let (units, stable) = (vec![0], Version::NONE);
    let settled = vec![SettledStripe { fs, object, block, version: version(3), lacks: 0 }];
    vec![
        (write_request(key(1, 1), 5, &data), strip_data(5)),
        (write_request(key(2, 2), 5, &data), strip_data(5)),
        (many_writes(), AlignedBuffer::from_slice(&strip_data(5).repeat(2))),
        (NsdRequest::Patch { key: key(1, 1), header, base, units, checksums, stable }, data),
        (mend_request(), strip_data(3)),
        (delete(1, 9), none()),
        (many_deletes(), none()),
        (NsdRequest::ForgetTombstones { fs, object: ObjectId(8), version: version(9) }, none()),
        (NsdRequest::Refuse { key: key(3, 3), version: version(9) }, none()),
        (NsdRequest::Commit { settled }, none()),
    ]
}

/// Carries out each change by `sender` although `meanwhile` happened after it came in. Each must be
/// refused with `kind`, and must leave nothing behind.
fn late_changes_leave_nothing(
    sender: NsdContext,
    kind: ErrorKind,
    meanwhile: &dyn Fn(&BlockStore, &ManualClock),
) {
    for (request, data) in changes() {
        let (disk, store, clock) = served();
        fill(&store);
        store.call(client(1), &NsdRequest::Commit { settled: Vec::new() }, &[], &mut []).expect("");
        spoil(&disk, &store);
        let before = store.journal.last();
        let ticket = store.enter(sender).expect("let in");
        meanwhile(&store, &clock);
        let refused = store.carry_out(&ticket, &request, &data, &mut []);
        assert_eq!(kind_of(refused), kind, "{request:?}");
        assert_eq!(store.journal.last(), before, "{request:?}");
        assert_eq!(held(&store, key(1, 1)), Some(version(3)));
        drop(ticket);
        spoil(&disk, &store);
        check_managed(&store);
    }
}

/// The units of what was refused are free again, and so on.
fn check_managed(store: &BlockStore) {
    store.space.allocator.lock().check();
    match store.check(true).expect("check") {
        NsdReply::Checked(found) => assert_eq!(found.faults, Vec::<String>::new()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_waited_inside_past_a_fence_publishes_nothing() {
    late_changes_leave_nothing(client(1), ErrorKind::Fenced, &|store, _| {
        // It is refused at once, and acknowledged when the request has ended.
        assert_eq!(kind_of(ask(store, manager(1), &fence(2, 1))), ErrorKind::TimedOut);
    });
}

#[test]
fn what_waited_inside_past_a_list_without_its_client_publishes_nothing() {
    late_changes_leave_nothing(client(1), ErrorKind::Fenced, &|store, _| {
        lease(store, 2, 1, &[2]).expect("a lease");
    });
}

#[test]
fn what_waited_inside_past_a_raised_floor_publishes_nothing() {
    late_changes_leave_nothing(client(1), ErrorKind::OldMap, &|store, _| {
        let raise = NsdRequest::RaiseFloor { floor: MapVersion(1) };
        assert_eq!(kind_of(ask(store, manager(1), &raise)), ErrorKind::TimedOut);
    });
}

#[test]
fn what_waited_inside_past_the_end_of_the_lease_publishes_nothing() {
    late_changes_leave_nothing(client(1), ErrorKind::Unreachable, &|_, clock| clock.advance(END));
}

#[test]
fn what_a_manager_sent_and_the_next_one_overtook_publishes_nothing() {
    late_changes_leave_nothing(manager(1), ErrorKind::Fenced, &|store, _| {
        lease(store, 2, 1, &[1, 2]).expect("a lease");
    });
}

#[test]
fn a_fence_while_a_strip_is_written_leaves_the_old_one() {
    let (_, store, _) = served();
    fill(&store);
    *store.before_publish.lock() = Some(Box::new(|store| {
        assert_eq!(kind_of(ask(store, manager(1), &fence(2, 1))), ErrorKind::TimedOut);
    }));
    assert_eq!(kind_of(write_as(&store, client(1), key(1, 1), 5)), ErrorKind::Fenced);
    assert_eq!(held(&store, key(1, 1)), Some(version(3)));
    ask(&store, manager(1), &fence(2, 1)).expect("the request has ended");
    assert_eq!(kind_of(write_as(&store, client(1), key(1, 1), 6)), ErrorKind::Fenced);
    write_as(&store, client(2), key(1, 1), 7).expect("others go on");
}

#[test]
fn a_read_that_lasts_past_a_fence_a_floor_or_the_lease_is_not_answered() {
    let raise = NsdRequest::RaiseFloor { floor: MapVersion(1) };
    for (request, kind) in [(fence(2, 1), ErrorKind::Fenced), (raise, ErrorKind::OldMap)] {
        let (_, store, _) = served();
        fill(&store);
        *store.before_publish.lock() = Some(Box::new(move |store| {
            assert_eq!(kind_of(ask(store, manager(1), &request)), ErrorKind::TimedOut);
        }));
        assert_eq!(kind_of(read_as(&store, client(1), key(1, 1))), kind);
        assert_eq!(kind_of(read_as(&store, client(1), key(1, 1))), kind, "at the door");
    }
    let (_, store, clock) = served();
    *store.before_publish.lock() = Some(Box::new(move |_| clock.advance(END)));
    let absent = read_as(&store, client(1), key(9, 9));
    assert_eq!(kind_of(absent), ErrorKind::Unreachable, "that nothing is there is an answer too");
}

#[test]
fn a_fence_and_a_floor_wait_for_the_requests_that_they_refuse_and_no_others() {
    let (_, store, _) = served();
    let new_map = NsdContext { map: MapVersion(1), ..client(1) };
    let others = [store.enter(client(2)).expect("in"), store.enter(manager(1)).expect("in")];
    ask(&store, manager(1), &fence(2, 7)).expect("nobody is inside for client 7");
    let inside = store.enter(new_map).expect("in");
    assert_eq!(kind_of(ask(&store, manager(1), &fence(3, 1))), ErrorKind::TimedOut);
    assert!(inside.test().is_err() && others.iter().all(|ticket| ticket.test().is_ok()));
    drop(inside);
    ask(&store, manager(1), &fence(3, 1)).expect("it has ended");
    ask(&store, manager(1), &NsdRequest::Allow { number: 4, client: ClientId(1), epoch: Epoch(1) })
        .expect("its number is higher");
    let inside = store.enter(new_map).expect("in");
    let raise = NsdRequest::RaiseFloor { floor: MapVersion(1) };
    assert_eq!(kind_of(ask(&store, manager(1), &raise)), ErrorKind::TimedOut, "others are inside");
    drop(others);
    ask(&store, manager(1), &raise).expect("the new map is above the floor");
    drop(inside);
}

#[test]
fn a_waiting_fence_is_told_when_the_last_request_has_ended() {
    let disk = SimDisk::new(DISK_BYTES);
    drop(format(&disk, 1));
    let clock = Arc::new(ManualClock::default());
    let store = open_within(&disk, &clock, Duration::from_secs(60));
    for number in 1..50 {
        lease(&store, 1, 2 * number, &[1]).expect("a lease");
        let tickets: Vec<_> = (0..3).map(|_| store.enter(client(1)).expect("in")).collect();
        strake_env::thread::scope(|scope| {
            let waits = scope.spawn(|| ask(&store, manager(1), &fence(2 * number + 1, 1)));
            tickets.into_iter().for_each(drop);
            waits.join().expect("no panic").expect("acknowledged");
        });
    }
}

#[test]
fn an_older_manager_is_refused_also_after_a_restart() {
    let (disk, store, clock) = served();
    lease(&store, 2, 1, &[1]).expect("the next term");
    let refused = |store: &BlockStore| {
        assert_eq!(kind_of(lease(store, 1, 9, &[1, 2])), ErrorKind::Fenced);
        assert_eq!(kind_of(ask(store, manager(1), &fence(9, 1))), ErrorKind::Fenced);
        let raise = NsdRequest::RaiseFloor { floor: MapVersion(5) };
        assert_eq!(kind_of(ask(store, manager(1), &raise)), ErrorKind::Fenced);
    };
    refused(&store);
    assert_eq!(kind_of(write_as(&store, manager(1), key(1, 1), 5)), ErrorKind::Fenced);
    write_as(&store, manager(2), key(1, 1), 5).expect("the manager copies strips");
    drop(store);
    let store = open_managed(&disk, &clock);
    refused(&store);
    assert_eq!(kind_of(lease(&store, 1, 10, &[])), ErrorKind::Fenced);
    lease(&store, 2, 2, &[1]).expect("a lease");
}

#[test]
fn without_a_lease_nobody_is_served_and_a_renewal_goes_on() {
    let (_, store, clock) = served();
    fill(&store);
    clock.advance(END);
    for (request, data) in changes() {
        let refused = store.call(client(1), &request, &data, &mut []);
        assert_eq!(kind_of(refused), ErrorKind::Unreachable, "{request:?}");
    }
    assert_eq!(kind_of(read_as(&store, client(1), key(1, 1))), ErrorKind::Unreachable);
    let list = NsdRequest::ListUnsettled { after: None, limit: 9 };
    assert_eq!(kind_of(store.call(client(1), &list, &[], &mut [])), ErrorKind::Unreachable);
    // Those who look for the server find it.
    store.call(client(1), &NsdRequest::Status, &[], &mut []).expect("status");
    let found = ask(&store, client(1), &NsdRequest::Admission).expect("admission");
    assert_eq!((found.clock, found.until, found.term), (END, Some(END), Term(1)));
    let (boot, floor) = (found.boot, MapVersion(0));
    let renew = NsdRequest::Lease { boot, until: END * 2, floor, list: None };
    ask(&store, manager(1), &renew).expect("renewed");
    assert_eq!(read_as(&store, client(1), key(1, 1)), Ok(version(3)));
}

#[test]
fn a_fence_survives_a_restart() {
    let (disk, store, clock) = served();
    let old_boot = store.boot();
    ask(&store, manager(1), &fence(2, 1)).expect("fenced");
    drop(store);
    let store = open_managed(&disk, &clock);
    assert_eq!(kind_of(write_as(&store, client(1), key(1, 1), 5)), ErrorKind::Unreachable);
    assert_eq!(kind_of(write_as(&store, client(2), key(1, 1), 5)), ErrorKind::Unreachable);
    // A list from before the fence, late. And a renewal for the life before.
    let clients = vec![(ClientId(1), Epoch(1)), (ClientId(2), Epoch(1))];
    let list = Some(AllowList { number: 1, clients });
    let floor = MapVersion(0);
    let late = NsdRequest::Lease { boot: old_boot, until: END, floor, list };
    assert_eq!(kind_of(ask(&store, manager(1), &late)), ErrorKind::Stale);
    let renewal = NsdRequest::Lease { boot: store.boot(), until: END, floor, list: None };
    assert_eq!(kind_of(ask(&store, manager(1), &renewal)), ErrorKind::Stale);
    lease(&store, 1, 3, &[2]).expect("a fresh list");
    assert_eq!(kind_of(write_as(&store, client(1), key(1, 1), 5)), ErrorKind::Fenced);
    write_as(&store, client(2), key(1, 1), 5).expect("it is on the list");
}

/// Cuts the power at every position while terms begin and clients write.
#[test]
fn after_any_power_cut_a_term_that_was_answered_is_known() {
    let (disk, store, clock) = served();
    disk.forget_log();
    let mut answered = vec![(disk.position(), 1)];
    for term in 2..6 {
        lease(&store, term, 1, &[1]).expect("a lease");
        answered.push((disk.position(), term));
        write_as(&store, client(1), key(1, 1), term * 10).expect("written");
        store.call(client(1), &NsdRequest::Commit { settled: Vec::new() }, &[], &mut []).expect("");
    }
    drop(store);
    let mut rng = Rng::new(3);
    let mut images = 0;
    for position in answered[0].0..=disk.position() {
        for fate in [Some(Fate::Kept), Some(Fate::Lost), None] {
            let after = match fate {
                Some(fate) => disk.image(position, |_| fate.clone()),
                None => disk.crash(position, &mut rng),
            };
            let store = open_managed(&after, &clock);
            let known = answered.iter().rev().find(|(at, _)| *at <= position);
            let (_, term) = *known.expect("the first is before all");
            let found = ask(&store, client(1), &NsdRequest::Admission).expect("admission");
            assert!(found.term >= Term(term), "at {position}: {} and not {term}", found.term);
            assert_eq!(found.until, None);
            images += 1;
        }
    }
    assert!(images > 100, "{images} images");
}

#[test]
fn a_store_of_one_process_and_one_under_a_manager_do_not_mix() {
    let disk = SimDisk::new(DISK_BYTES);
    let store = format(&disk, 1);
    assert_eq!(kind_of(lease(&store, 1, 1, &[1])), ErrorKind::NotSupported);
    write_as(&store, client(77), key(1, 1), 5).expect("everybody");
    drop((disk, store));
    let (disk, store, _) = served();
    drop(store);
    let container = Container::open(disk as Arc<dyn Disk>).expect("container");
    let options = BlockStoreOptions::new(&observe());
    let Err(refused) = BlockStore::open(container, options) else { panic!("it is the manager's") };
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.detail().contains("belongs to a cluster"), "{refused}");
}
