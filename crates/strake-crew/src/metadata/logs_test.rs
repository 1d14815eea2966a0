//! Copies that follow a log, and what a copy is known to have.

use super::super::{Begin, ContainerOf, MetadataParts, Peers, Ways, format};
use super::*;
use std::collections::BTreeSet;
use std::time::Duration;
use strake_env::SimDisk;
use strake_env::sync::Condvar;
use strake_net::ReplicaPort;
use strake_proto::meta::{MetaEntry, MetaOp};
use strake_proto::{ClientId, Term};
use strake_replica::Replica;
use strake_replica::core::Batch;
use strake_replica::replica::Failure;
use strake_replica::types::Position;
use strake_store::UnusedChunks;
use strake_store::container::FormatOptions;

const CLUSTER: ClusterId = ClusterId([7; 16]);
const FS: FsId = FsId(3);
const FIRST: LogId = LogId { generation: 0, origin: NsdId(0) };
const VOTERS: [ReplicaId; 3] = [ReplicaId(1), ReplicaId(2), ReplicaId(3)];

fn log(generation: u32, origin: u32) -> LogId {
    LogId { generation, origin: NsdId(origin) }
}

/// Nobody.
struct Nobody;

impl Peers for Nobody {
    fn ways(&self) -> Arc<dyn Ways> {
        unreachable!("no replica starts")
    }

    fn inbox(&self, _: &Arc<Replica>) -> Arc<dyn ReplicaPort> {
        unreachable!("no replica starts")
    }

    fn tend(&self, _: &Replica, _: Duration) -> std::result::Result<(), Box<Failure>> {
        Ok(())
    }
}

fn parts(nsd: u32, log: LogId) -> MetadataParts {
    let container_of: ContainerOf = Box::new(|_| None);
    let begin: Begin = Box::new(|| unreachable!("nobody leads"));
    MetadataParts {
        fs: FS,
        nsd: NsdId(nsd),
        cluster: CLUSTER,
        log,
        lost: Vec::new(),
        replica: ReplicaId(nsd),
        container_of,
        peers: Box::new(Nobody),
        furnish: |_| Ok(()),
        begin,
        bell: Arc::new(Condvar::new()),
        earlier: None,
    }
}

/// NSD 1 with a copy that has three changes, and what its container needs.
struct Copy {
    container: Container,
    _source: Arc<dyn strake_store::ChunkSource>,
}

impl Copy {
    fn new() -> Copy {
        let options =
            FormatOptions { cluster: CLUSTER, nsd: NsdId(1), fs: FS, failure_group: 1, seed: 7 };
        let container = Container::format(SimDisk::new(64 << 20), &options).expect("formats");
        let source = UnusedChunks::shared();
        container.set_chunk_source(&source);
        let copy = Copy { container, _source: source };
        let own = identity(CLUSTER, FS, FIRST, ReplicaId(1));
        format(&copy.container, own, &VOTERS.into()).expect("formats");
        let (mut journal, ..) = Journal::open(copy.disk(), own, 0).expect("is there");
        let entries = (2..5).map(|position| {
            let op = MetaOp::ReserveGrants { count: 1 };
            let time = Timestamp { seconds: 100 + position as i64, nanos: 0 };
            let entry = MetaEntry { client: ClientId(9), sequence: 0, time, op };
            let bytes = postcard::to_extend(&entry, vec![1u8]).expect("encodes");
            let payload = Payload::Data { level: 0, bytes: bytes.into() };
            Entry { term: Term(1), position: Position(position), payload }
        });
        let (ticket, hard, snapshot, sync) = (1, None, None, true);
        let batch = Batch { ticket, hard, entries: entries.collect(), snapshot, sync };
        journal.write(&batch).and_then(|()| journal.sync()).expect("has room");
        copy
    }

    fn disk(&self) -> Arc<dyn Disk> {
        self.container.metadata_log().into_disk()
    }

    /// The log is in force.
    fn follow(&self, log: LogId) -> Result<()> {
        follow_log(&parts(1, log), &self.disk())
    }

    fn look(&self, log: LogId) -> Result<KnownCopy> {
        look_at(&self.container, identity(CLUSTER, FS, log, ReplicaId(1)))
    }
}

#[test]
fn replicas_of_two_logs_do_not_hear_each_other() {
    let all = [FIRST, log(1, 0), log(1, 1), log(1, 2), log(2, 1), log(256, 1)];
    let groups: BTreeSet<[u8; 16]> =
        all.iter().map(|log| identity(CLUSTER, FS, *log, ReplicaId(1)).cluster.0).collect();
    assert_eq!(groups.len(), all.len());
    for log in all {
        let group = identity(CLUSTER, FS, log, ReplicaId(1)).cluster;
        assert_eq!(log_of(group, CLUSTER, FS), Some(log));
        assert_eq!(log_of(group, CLUSTER, FsId(4)), None);
        assert_eq!(log_of(group, ClusterId([8; 16]), FS), None);
    }
}

#[test]
fn the_copy_that_goes_on_keeps_all_and_is_alone() {
    let copy = Copy::new();
    let before = copy.look(FIRST).expect("whole");
    assert_eq!(
        (before.last.position, before.changed.map(|it| it.seconds)),
        (Position(4), Some(104))
    );
    assert_eq!(before.membership, Membership::of(VOTERS));
    copy.follow(FIRST).expect("it is of this log");
    assert_eq!(copy.look(FIRST), Ok(before.clone()), "nothing was changed");
    copy.follow(log(1, 1)).expect("goes on");
    let after = copy.look(log(1, 1)).expect("whole");
    assert_eq!(after.last.position.0, before.last.position.0 + 2);
    assert!(after.last.term > before.last.term && after.membership.is_alone(ReplicaId(1)));
    assert_eq!(after.changed, before.changed, "the last change of a client is still that one");
    copy.follow(log(1, 1)).expect("it follows already");
    assert_eq!(copy.look(log(1, 1)), Ok(after.clone()));
    copy.follow(FIRST).expect("older records change nothing");
    assert_eq!(copy.look(log(1, 1)), Ok(after));
    assert_eq!(copy.look(FIRST).expect_err("void").kind(), ErrorKind::Stale);
}

#[test]
fn other_copies_give_up_what_they_have() {
    let copy = Copy::new();
    copy.follow(log(3, 2)).expect("begins anew");
    let next = identity(CLUSTER, FS, log(3, 2), ReplicaId(1));
    let found = Journal::peek(copy.disk(), next).expect("is there");
    assert_eq!((found.last(), found.membership()), (Stamp::default(), &Membership::default()));
    let refused = copy.look(log(3, 2)).expect_err("an empty copy must never go on");
    assert_eq!(refused.kind(), ErrorKind::Stale);
}

/// It lacks what was decided in the log between.
#[test]
fn a_copy_of_an_older_log_never_goes_on() {
    let copy = Copy::new();
    let refused = copy.follow(log(2, 1)).expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Corrupt);
    assert!(copy.look(FIRST).is_ok(), "it is as it was");
}

#[test]
fn a_journal_of_another_replica_is_left_alone() {
    let copy = Copy::new();
    follow_log(&parts(2, log(1, 2)), &copy.disk()).expect("nothing is done");
    assert!(copy.look(FIRST).is_ok());
}
