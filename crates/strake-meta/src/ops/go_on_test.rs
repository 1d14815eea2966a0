//! A log that goes on without a majority forgets clients, and gives no number again.

use super::NUMBERS_SKIPPED;
use crate::MemoryKv;
use crate::ahead::Ahead;
use crate::check;
use crate::keys;
use crate::log_entry::{LogEntryRef, encode_entry, encode_goes_on};
use crate::query;
use crate::records::{COUNTERS, Counters, decode, encode};
use crate::testing::{configuration, create, new_inode};
use strake_proto::layout::NsdAvailability;
use strake_proto::meta::{CountedEntry, MetaEntry, MetaOp, MetaReply};
use strake_proto::{ClientId, ErrorKind, FileType, Ino, NsdId, Result, Timestamp};
use strake_store::{Batch, KvRead};

/// A replica that applies what is committed.
struct Replica {
    ahead: Ahead<MemoryKv>,
    position: u64,
}

impl Replica {
    /// A file system in which a client makes files.
    fn new() -> Replica {
        let mut replica = Replica::empty();
        replica.plain(MetaOp::Format(Box::new(configuration()))).expect("formats");
        replica.counted(1, MetaOp::Join).expect("joins");
        replica
    }

    fn empty() -> Replica {
        Replica { ahead: Ahead::new(MemoryKv::default(), 0), position: 0 }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<MetaReply> {
        let (answer, _) = self.ahead.decide(bytes, self.position + 1)?;
        self.position += 1;
        self.ahead.commit(Some(bytes), self.position)?;
        answer.outcome
    }

    fn plain(&mut self, op: MetaOp) -> Result<MetaReply> {
        let entry = entry(ClientId(9), 0, op);
        self.take(&encode_entry(LogEntryRef::Plain(&entry))?)
    }

    fn counted(&mut self, sequence: u64, op: MetaOp) -> Result<MetaReply> {
        let entry = entry(ClientId(30), sequence, op);
        let counted = CountedEntry { life: 5, oldest: sequence, entry };
        self.take(&encode_entry(LogEntryRef::Counted(&counted))?)
    }

    /// Makes a file. Returns its number, its object's, and a grant's.
    fn give(&mut self, name: &str, counts: Option<u64>) -> (u64, u64, u64) {
        let make = create(Ino::ROOT, name, new_inode(FileType::Regular));
        let made = match counts {
            Some(sequence) => self.counted(sequence, make),
            None => self.plain(make),
        };
        let Ok(MetaReply::Inode(inode)) = made else { panic!("{made:?}") };
        let ino = inode.attr.ino;
        let object = match self.plain(MetaOp::NewObject { ino }) {
            Ok(MetaReply::Object(layout)) => layout.object.0,
            other => panic!("{other:?}"),
        };
        let grant = match self.plain(MetaOp::ReserveGrants { count: 1 }) {
            Ok(MetaReply::Session { grant }) => grant.0,
            other => panic!("{other:?}"),
        };
        (ino.0, object, grant)
    }

    fn counters(&self) -> Counters {
        decode(&self.ahead.get(&keys::global(COUNTERS)).expect("reads").expect("is there"))
            .expect("decodes")
    }

    fn check(&self) {
        let found = check::check(&self.ahead).expect("walks");
        assert!(found.faults.is_empty(), "{:?}", found.faults);
    }
}

fn entry(client: ClientId, sequence: u64, op: MetaOp) -> MetaEntry {
    let time = Timestamp { seconds: 1 + sequence as i64, nanos: 0 };
    MetaEntry { client, sequence, time, op }
}

#[test]
fn no_number_is_given_that_a_lost_entry_may_have_given() {
    let mut replica = Replica::new();
    let before = replica.give("a", None);
    let (known, map) = (replica.counters(), version(&replica));
    replica.take(&encode_goes_on(&[])).expect("goes on");
    let after = replica.give("b", None);
    for (before, after) in [(before.0, after.0), (before.1, after.1), (before.2, after.2)] {
        assert!(after >= before + NUMBERS_SKIPPED, "{before} {after}");
    }
    assert!(replica.counters().next_pending >= known.next_pending + NUMBERS_SKIPPED);
    assert_eq!(version(&replica), map + NUMBERS_SKIPPED, "an NSD may know a later map");
    // This would not end if it went through the numbers that are left out.
    replica.check();
}

fn version(replica: &Replica) -> u64 {
    query::configuration(&replica.ahead).expect("is there").pool.version.0
}

/// A client that lives on may have been told of changes that are lost.
#[test]
fn a_client_of_before_is_not_known_any_more() {
    let mut replica = Replica::new();
    replica.give("a", Some(2));
    replica.take(&encode_goes_on(&[])).expect("goes on");
    replica.check();
    let make = |name: &str| create(Ino::ROOT, name, new_inode(FileType::Regular));
    for (sequence, name) in [(2, "a"), (3, "b")] {
        let refused = replica.counted(sequence, make(name)).expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
    }
    let reserved = keys::whole(keys::Table::Reserved);
    replica
        .ahead
        .scan(&reserved.from, &reserved.to, &mut |key, _| panic!("{key:?} is reserved"))
        .expect("scans");
}

#[test]
fn a_file_system_that_is_not_made_yet_may_go_on_too() {
    let mut replica = Replica::empty();
    assert!(replica.ahead.decide(&encode_goes_on(&[NsdId(1)]), 1).expect("decides").1.is_empty());
    replica.take(&encode_goes_on(&[])).expect("goes on");
    replica.plain(MetaOp::Format(Box::new(configuration()))).expect("formats");
    replica.check();
}

#[test]
fn numbers_do_not_begin_from_the_first_again() {
    let mut replica = Replica::new();
    let counters = Counters { next_grant: u64::MAX - 5, ..replica.counters() };
    let mut changes = Batch::new();
    changes.put(keys::global(COUNTERS), encode(&counters));
    let mut kv = replica.ahead.base().clone();
    kv.apply(&changes);
    replica.ahead = Ahead::new(kv, replica.position);
    assert_eq!(replica.take(&encode_goes_on(&[])).expect_err("refused").kind(), ErrorKind::Invalid);
}

/// A lost NSD that comes back may have carried out deletions that the metadata does not know.
#[test]
fn lost_disks_are_compared_before_they_are_read() {
    let mut replica = Replica::new();
    let before = query::configuration(&replica.ahead).expect("is there").pool;
    let lost = [before.slots[1].nsd, NsdId(77)];
    replica.take(&encode_goes_on(&lost)).expect("goes on");
    let after = query::configuration(&replica.ahead).expect("is there").pool;
    for (before, after) in before.slots.iter().zip(&after.slots) {
        let is_lost = lost.contains(&before.nsd);
        let availability = after.state.availability;
        assert_eq!(availability == NsdAvailability::Unrecovered, is_lost, "{}", before.nsd);
        assert_eq!(availability == before.state.availability, !is_lost);
    }
}
