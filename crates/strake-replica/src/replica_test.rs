//! Replicas with real threads, on simulated disks: the calls, and what ends a replica. The
//! simulation of threads is in `strake-sim`.

use super::*;
use crate::message::{Body, Envelope, encode};
use crate::types::Life;
use std::sync::Weak;
use strake_env::{RealClock, SimDisk, thread};

const CLUSTER: ClusterId = ClusterId([4; 16]);
const LONG: Duration = Duration::from_secs(20);
const DISK_BYTES: u64 = 1 << 20;

/// Adds numbers up. The answer is the sum.
#[derive(Default)]
struct Sum(u64);

impl StateMachine for Sum {
    fn apply(&mut self, _: Position, bytes: &[u8]) -> Vec<u8> {
        self.0 += bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        self.0.to_le_bytes().to_vec()
    }

    fn snapshot(&mut self) -> Vec<u8> {
        self.0.to_le_bytes().to_vec()
    }

    fn install(&mut self, bytes: &[u8]) -> Result<(), String> {
        let bytes = bytes.try_into().map_err(|_| "not a sum".to_owned())?;
        self.0 = u64::from_le_bytes(bytes);
        Ok(())
    }
}

/// Hands messages to replicas on threads of the senders' receivers.
#[derive(Default)]
struct Room(Mutex<BTreeMap<ReplicaId, Weak<Replica>>>);

impl Transport for Room {
    fn send(&self, to: ReplicaId, message: Vec<u8>) {
        let there = self.0.lock().get(&to).and_then(Weak::upgrade);
        if let Some(replica) = there {
            let from = decode(CLUSTER, &message).expect("a message").from;
            replica.deliver(from, &message).expect("what was sent arrives");
        }
    }
}

struct Group {
    room: Arc<Room>,
    disks: BTreeMap<ReplicaId, Arc<SimDisk>>,
    replicas: BTreeMap<ReplicaId, Arc<Replica>>,
}

impl Group {
    /// Replicas 1 to `voters` decide; those up to `count` know nothing yet.
    fn of(voters: u32, count: u32) -> Group {
        let mut group =
            Group { room: Arc::default(), disks: BTreeMap::new(), replicas: BTreeMap::new() };
        for id in (1..=count).map(ReplicaId) {
            let disk = SimDisk::new(DISK_BYTES);
            let members = Membership::of((1..=voters).map(ReplicaId));
            let members = (id.0 <= voters).then_some(members);
            let identity = Identity { cluster: CLUSTER, replica: id };
            Journal::create(disk.clone(), identity, members).expect("the disk is new");
            group.disks.insert(id, disk);
            group.start(id);
        }
        group
    }

    fn start(&mut self, id: ReplicaId) {
        let config = Config {
            heartbeat: Duration::from_millis(20),
            election: Duration::from_millis(200),
            lease: Duration::from_millis(150),
            log_bytes_max: 20_000,
            kept_entries: 5,
            commits_when_appended: true,
            supports: 2,
            ..Config::new(id)
        };
        let parts = Parts {
            cluster: CLUSTER,
            config,
            disk: self.disks[&id].clone(),
            machine: Box::new(Sum::default()),
            transport: self.room.clone(),
            clock: RealClock::shared(),
            waits: Arc::new(()),
        };
        let replica = Arc::new(Replica::start(parts).expect("its journal is there"));
        self.room.0.lock().insert(id, Arc::downgrade(&replica));
        self.replicas.insert(id, replica);
    }

    fn stop(&mut self, id: ReplicaId) {
        self.room.0.lock().remove(&id);
        self.replicas.remove(&id).expect("it runs").stop();
    }

    /// Does something at the leader, whoever that is, until it is not refused.
    fn at_leader<T>(&self, mut call: impl FnMut(&Replica) -> Result<T, Failure>) -> T {
        let end = RealClock.monotonic() + LONG;
        loop {
            for replica in self.replicas.values() {
                match call(replica) {
                    Ok(outcome) => return outcome,
                    Err(Failure::Refused(_) | Failure::NotChanged(_)) => {}
                    Err(failure) => panic!("{failure}"),
                }
            }
            assert!(RealClock.monotonic() < end, "nobody leads");
            thread::yield_now();
        }
    }

    fn add(&self, number: u8) -> u64 {
        let applied = self.at_leader(|replica| replica.propose(0, &[number], LONG));
        u64::from_le_bytes(applied.answer.try_into().expect("a sum"))
    }
}

#[test]
fn three_replicas_answer_restart_and_lose_nothing() {
    let mut group = Group::of(3, 3);
    let mut sum = 0;
    // Enough for snapshots.
    for number in 0..600u64 {
        sum += number % 100;
        assert_eq!(group.add((number % 100) as u8), sum);
    }
    let barrier = group.at_leader(|replica| replica.read_barrier(LONG));
    assert!(barrier.0 >= 600);
    group.at_leader(|replica| replica.raise_level(2, LONG));
    group.at_leader(|replica| replica.propose(2, &[1], LONG));
    group.stop(ReplicaId(1));
    assert_eq!(group.add(1), sum + 2);
    group.start(ReplicaId(1));
    // It needs the answers of both others before its word counts.
    let end = RealClock.monotonic() + LONG;
    while group.replicas[&ReplicaId(1)].status().role == RoleName::Asking {
        assert!(RealClock.monotonic() < end, "both others are there");
        thread::yield_now();
    }
    group.stop(ReplicaId(2));
    assert_eq!(group.add(1), sum + 3, "the one that returned has caught up");
    let leader = group.at_leader(|replica| replica.read_barrier(LONG).map(|_| replica.status()));
    assert_eq!((leader.role, leader.members.len()), (RoleName::Leader, 3));
}

#[test]
fn a_replica_alone_answers_at_once_syncs_and_grows() {
    let group = Group::of(1, 3);
    assert_eq!(group.add(7), 7);
    group.at_leader(|replica| replica.sync(LONG));
    let status = group.replicas[&ReplicaId(1)].status();
    assert!(status.applied <= status.committed && status.leader == Some(ReplicaId(1)));
    let (one, rest) = (BTreeSet::from([ReplicaId(1)]), BTreeSet::from([2, 3].map(ReplicaId)));
    group.replicas[&ReplicaId(1)].change(&one, &rest, LONG).expect("learners may come");
    let all: BTreeSet<ReplicaId> = one.union(&rest).copied().collect();
    group.at_leader(|replica| replica.change(&all, &BTreeSet::new(), LONG));
    assert_eq!(group.add(1), 8);
    let status = group.at_leader(|replica| replica.read_barrier(LONG).map(|_| replica.status()));
    assert_eq!(status.membership, Membership::of(all));
}

#[test]
fn a_replica_ends_when_its_journal_fails_and_says_so() {
    let group = Group::of(1, 1);
    assert_eq!(group.add(7), 7);
    let replica = &group.replicas[&ReplicaId(1)];
    replica.sync(LONG).expect("the disk works");
    group.disks[&ReplicaId(1)].set_faults(|faults| faults.sync_failure = true);
    // Committed in memory, as it asked for. Then the sync fails.
    let _ = replica.propose(0, &[1], LONG);
    let failed = replica.sync(LONG).expect_err("the disk is dead");
    assert!(matches!(&failed, Failure::Ended(reason) if reason.contains("journal")), "{failed}");
    assert!(matches!(replica.propose(0, &[1], LONG), Err(Failure::Ended(_))));
    assert!(replica.status().ended.is_some());
}

#[test]
fn waits_have_limits_and_others_than_the_leader_refuse() {
    let group = Group::of(3, 1);
    let replica = &group.replicas[&ReplicaId(1)];
    let refused = replica.propose(0, &[1], LONG);
    assert_eq!(refused, Err(Failure::Refused(Refusal::NotLeader(None))));
    assert_eq!(replica.read_barrier(LONG), Err(Failure::Refused(Refusal::NotLeader(None))));
    assert_eq!(replica.status().role, RoleName::Asking, "nobody answers");
    assert!(replica.deliver(ReplicaId(2), b"garbage").is_err());
    let envelope = Envelope {
        from: ReplicaId(2),
        from_life: Life::default(),
        to: ReplicaId(1),
        to_life: None,
        term: Term(7),
        body: Body::Ask,
    };
    let message = encode(CLUSTER, &envelope);
    let refused = replica.deliver(ReplicaId(3), &message);
    assert_eq!(refused, Err(MessageError::Sender(ReplicaId(2))), "nobody speaks for another");
    replica.deliver(ReplicaId(2), &message).expect("its own");
}
