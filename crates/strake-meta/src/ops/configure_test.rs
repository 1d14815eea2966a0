//! NSDs that change their state or are replaced.

use crate::testing::TestFs;
use strake_proto::layout::{NsdAvailability, NsdState, NsdStatus, PoolMap};
use strake_proto::limits::SLOTS_MAX;
use strake_proto::meta::{MetaOp, MetaQuery, MetaReply, PendingRange};
use strake_proto::{BlockIndex, ErrorKind, FileType, GrantNumber, Ino, NsdId, SlotIndex, Version};

fn pool(fs: &TestFs) -> PoolMap {
    match fs.query(&MetaQuery::Configuration) {
        MetaReply::Configuration(configuration) => configuration.pool,
        other => panic!("{other:?}"),
    }
}

fn set(fs: &mut TestFs, nsd: u32, status: NsdStatus) {
    let state = NsdState { status, availability: NsdAvailability::Up };
    fs.apply(MetaOp::SetNsdState { nsd: NsdId(nsd), state }).expect("sets");
}

#[test]
fn new_files_are_laid_out_over_those_that_take_new_data_while_they_suffice() {
    let mut fs = TestFs::new();
    set(&mut fs, 2, NsdStatus::Suspended);
    let layouts = pool(&fs).layouts;
    let slots: Vec<SlotIndex> = layouts[1].members.iter().map(|(slot, _)| *slot).collect();
    assert_eq!((layouts.len(), slots), (2, vec![SlotIndex(0), SlotIndex(2)]));
    // 2x needs two NSDs. A second suspended disk stays in use because there is no other.
    set(&mut fs, 3, NsdStatus::Suspended);
    assert_eq!(pool(&fs).layouts.len(), 2);
    set(&mut fs, 3, NsdStatus::Ready);
    assert_eq!(pool(&fs).layouts.len(), 2);
    set(&mut fs, 2, NsdStatus::Ready);
    let layouts = pool(&fs).layouts;
    assert_eq!((layouts.len(), layouts[2].members.len()), (3, 3));
    let file = fs.make(Ino::ROOT, "a", FileType::Regular);
    let MetaReply::Object(layout) = fs.apply(MetaOp::NewObject { ino: file }).expect("reserves")
    else {
        panic!("no object");
    };
    assert_eq!(layout.layout.0, 3);
}

#[test]
fn who_takes_a_slot_takes_its_pending_deletions() {
    let mut fs = TestFs::new();
    let file = fs.make(Ino::ROOT, "a", FileType::Regular);
    fs.apply(MetaOp::NewObject { ino: file }).expect("reserves");
    let version = Version { grant: GrantNumber(1), counter: 1 };
    let (from, to) = (BlockIndex(1), BlockIndex(5));
    let op = MetaOp::DeleteBlocks { ino: file, from, to, version, allocated_delta: 0 };
    fs.apply(op).expect("queues");
    let state = NsdState { status: NsdStatus::Ready, availability: NsdAvailability::Unrecovered };
    let replace = |old, new| MetaOp::ReplaceNsd { old: NsdId(old), new: NsdId(new), state };
    assert_eq!(fs.kind(replace(9, 4)), ErrorKind::NotFound);
    assert_eq!(fs.kind(replace(1, 3)), ErrorKind::Exists);
    for _ in 0..2 {
        fs.apply(replace(1, 4)).expect("replaces, and again changes nothing");
        let slots = pool(&fs).slots;
        assert_eq!((slots[0].nsd, slots[0].state, slots[0].failure_group), (NsdId(4), state, 1));
    }
    let pending = fs.query(&MetaQuery::PendingRanges { after: 0, limit: 10 });
    let MetaReply::PendingRanges(ranges) = pending else { panic!("{pending:?}") };
    let waiting: Vec<&PendingRange> = ranges.iter().filter(|range| range.from == from).collect();
    assert!(waiting.iter().all(|range| range.waiting.contains(&NsdId(4))), "{waiting:?}");
    assert!(waiting.iter().all(|range| !range.waiting.contains(&NsdId(1))), "{waiting:?}");
    fs.check();
}

#[test]
fn a_deleted_nsd_holds_no_slot_and_nothing_waits_for_it() {
    let mut fs = TestFs::new();
    let file = fs.make(Ino::ROOT, "a", FileType::Regular);
    fs.apply(MetaOp::NewObject { ino: file }).expect("reserves");
    let version = Version { grant: GrantNumber(1), counter: 1 };
    let (from, to) = (BlockIndex(1), BlockIndex(5));
    fs.apply(MetaOp::DeleteBlocks { ino: file, from, to, version, allocated_delta: 0 })
        .expect("queues");
    let ranges = |fs: &TestFs| match fs.query(&MetaQuery::PendingRanges { after: 0, limit: 10 }) {
        MetaReply::PendingRanges(ranges) => ranges,
        other => panic!("{other:?}"),
    };
    let id = ranges(&fs)[0].id;
    let delete = |nsd| MetaOp::DeleteNsd { nsd: NsdId(nsd) };
    assert_eq!(fs.kind(delete(9)), ErrorKind::NotFound);
    assert_eq!(fs.kind(delete(2)), ErrorKind::Invalid, "it must be emptied before");
    set(&mut fs, 2, NsdStatus::BeingEmptied);
    assert_eq!(pool(&fs).being_emptied(), Some(SlotIndex(1)));
    assert_eq!(pool(&fs).layouts.len(), 2, "new files do without it");
    let emptied = |status| MetaOp::SetNsdState {
        nsd: NsdId(3),
        state: NsdState { status, availability: NsdAvailability::Up },
    };
    assert_eq!(fs.kind(emptied(NsdStatus::BeingEmptied)), ErrorKind::Busy, "one at a time");
    assert_eq!(fs.kind(emptied(NsdStatus::Deleted { order: 0 })), ErrorKind::Invalid);
    let state = NsdState { status: NsdStatus::Ready, availability: NsdAvailability::Up };
    let replace = MetaOp::ReplaceNsd { old: NsdId(2), new: NsdId(4), state };
    assert_eq!(fs.kind(replace.clone()), ErrorKind::Busy);
    // The others have applied the deletion. Only the NSD that is deleted has not.
    fs.apply(MetaOp::RangeApplied { id, nsds: vec![NsdId(1), NsdId(3)] }).expect("notes");
    assert_eq!(ranges(&fs)[0].waiting, [NsdId(2)]);
    fs.apply(MetaOp::MoveMetadataCopy { nsd: NsdId(2) }).expect("has no copy to move");
    for _ in 0..2 {
        fs.apply(delete(2)).expect("deletes, and again changes nothing");
        assert_eq!((pool(&fs).deleted(), pool(&fs).being_emptied()), (vec![SlotIndex(1)], None));
        assert_eq!(ranges(&fs)[0].waiting, [NsdId(1), NsdId(3)], "for the tombstones' sake");
    }
    assert_eq!(fs.kind(replace), ErrorKind::Busy);
    let op = MetaOp::SetNsdState { nsd: NsdId(2), state };
    assert_eq!(fs.kind(op), ErrorKind::NotFound);
    fs.apply(MetaOp::DeleteBlocks { ino: file, from, to, version, allocated_delta: 0 })
        .expect("queues");
    assert!(ranges(&fs).iter().all(|range| !range.waiting.contains(&NsdId(2))));
    fs.check();
}

#[test]
fn an_nsd_that_is_added_has_a_slot_of_its_own_and_gets_strips_of_new_files() {
    let mut fs = TestFs::new();
    let before = pool(&fs);
    let add = |nsd, failure_group| MetaOp::AddNsd { nsd: NsdId(nsd), failure_group };
    for _ in 0..2 {
        fs.apply(add(9, 77)).expect("adds, and again changes nothing");
        let after = pool(&fs);
        assert_eq!((after.slots.len(), after.version.0), (4, before.version.0 + 1));
        assert_eq!((after.slots[3].nsd, after.slots[3].failure_group), (NsdId(9), 77));
        assert_eq!(after.slots[3].state.availability, NsdAvailability::Up);
        let members = &after.layouts.last().expect("a layout").members;
        assert_eq!((after.layouts.len(), members[3]), (2, (SlotIndex(3), 77)));
        assert_eq!(after.layouts[0], before.layouts[0], "files that exist lie where they lay");
    }
    set(&mut fs, 9, NsdStatus::BeingEmptied);
    fs.apply(MetaOp::DeleteNsd { nsd: NsdId(9) }).expect("deletes");
    assert_eq!(fs.kind(add(9, 77)), ErrorKind::Exists, "a number is not used again");
    for nsd in 10..10 + SLOTS_MAX as u32 - 4 {
        fs.apply(add(nsd, nsd)).expect("adds");
    }
    assert_eq!(fs.kind(add(5000, 1)), ErrorKind::NoSpace);
    fs.check();
}
