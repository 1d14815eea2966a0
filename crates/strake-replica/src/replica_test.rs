//! Replicas with real threads, on simulated disks: the calls, and what ends a replica. The
//! simulation of threads is in `strake-sim`.

use super::*;
use crate::machine::{KeepingMachine, MadePart, StateMachine};
use crate::message::{Body, CopyId, Envelope, encode};
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

/// A sum that is durable at once: where it is, or that it is not whole.
#[derive(Clone)]
struct Kept(Arc<Mutex<(Option<Position>, u64)>>);

impl Default for Kept {
    fn default() -> Kept {
        Kept(Arc::new(Mutex::new((Some(Position::START), 0))))
    }
}

impl KeepingMachine for Kept {
    fn position(&mut self) -> Option<Position> {
        self.0.lock().0
    }

    fn apply(&mut self, position: Position, bytes: Option<&[u8]>) -> Result<Vec<u8>, String> {
        let (at, sum) = &mut *self.0.lock();
        assert_eq!(at.replace(position), Some(position.previous()), "entries come in order");
        *sum += bytes.unwrap_or_default().iter().map(|&byte| u64::from(byte)).sum::<u64>();
        Ok(sum.to_le_bytes().to_vec())
    }

    fn save(&mut self) -> Result<Position, String> {
        self.0.lock().0.ok_or_else(|| "it is not whole".to_owned())
    }

    fn make_part(
        &mut self,
        _: ReplicaId,
        _: CopyId,
        number: u64,
        _: usize,
    ) -> Result<Option<MadePart>, String> {
        let (whole, sum) = *self.0.lock();
        let whole = whole.filter(|_| number > 0);
        Ok(Some(MadePart { bytes: sum.to_le_bytes().to_vec(), whole }))
    }

    fn end_copy(&mut self, _: ReplicaId) {}

    fn take_part(&mut self, _: u64, bytes: &[u8], whole: Option<Position>) -> Result<(), String> {
        let sum = bytes.try_into().map_err(|_| "not a sum".to_owned())?;
        *self.0.lock() = (whole, u64::from_le_bytes(sum));
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
            replica.deliver(|id| id == from, &message).expect("what was sent arrives");
        }
    }
}

struct Group {
    room: Arc<Room>,
    disks: BTreeMap<ReplicaId, Arc<SimDisk>>,
    replicas: BTreeMap<ReplicaId, Arc<Replica>>,
    /// What machines keep, if they do.
    kept: BTreeMap<ReplicaId, Kept>,
}

impl Group {
    /// Replicas 1 to `voters` decide; those up to `count` know nothing yet.
    fn of(voters: u32, count: u32) -> Group {
        Group::with(voters, count, BTreeMap::new())
    }

    fn with(voters: u32, count: u32, kept: BTreeMap<ReplicaId, Kept>) -> Group {
        let (disks, replicas) = (BTreeMap::new(), BTreeMap::new());
        let mut group = Group { room: Arc::default(), disks, replicas, kept };
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
        let machine = match self.kept.get(&id) {
            Some(kept) => Machine::Keeping(Box::new(kept.clone())),
            None => Machine::Carried(Box::new(Sum::default())),
        };
        let parts = Parts {
            cluster: CLUSTER,
            config,
            disk: self.disks[&id].clone(),
            machine,
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
fn entries_decided_ahead_are_committed_and_a_lost_state_comes_back_as_a_copy() {
    let kept = |number| (ReplicaId(number), Kept::default());
    let mut group = Group::with(3, 3, (1..=3).map(kept).collect());
    // Proposes without waiting, and waits for the last one.
    let add_many = |group: &Group, count: u64| {
        let mut last = None;
        for _ in 0..count {
            last = Some(group.at_leader(|replica| {
                let stamp = replica.next().ok_or(Refusal::NotLeader(None))?;
                replica.propose_at(stamp, 0, &[1], false).map(|()| (replica.status().id, stamp))
            }));
        }
        let (id, stamp) = last.expect("one or more");
        group.replicas[&id].wait_committed(stamp, LONG).expect("it leads");
    };
    add_many(&group, 10);
    let leader = group.at_leader(|replica| {
        let next = replica.next().ok_or(Refusal::NotLeader(None))?;
        let late = Stamp { position: next.position.previous(), ..next };
        assert_eq!(replica.propose_at(late, 0, &[1], false), Err(Refusal::Moved.into()));
        Ok(replica.status().id)
    });
    // The state of another replica is lost, and its log is far behind.
    let other = group.replicas.keys().copied().find(|&id| id != leader).expect("there are three");
    group.stop(other);
    *group.kept[&other].0.lock() = (None, 0);
    add_many(&group, 600);
    group.start(other);
    assert_eq!(group.add(1), 611);
    let last = group.at_leader(|replica| replica.read_barrier(LONG));
    let end = RealClock.monotonic() + LONG;
    while group.replicas[&other].status().applied < last {
        assert!(RealClock.monotonic() < end, "{:?}", group.replicas[&other].status());
        thread::yield_now();
    }
    assert_eq!(group.kept[&other].0.lock().1, 611);
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
    assert!(replica.deliver(|id| id == ReplicaId(2), b"garbage").is_err());
    let envelope = Envelope {
        from: ReplicaId(2),
        from_life: Life::default(),
        to: ReplicaId(1),
        to_life: None,
        term: Term(7),
        body: Body::Ask,
    };
    let message = encode(CLUSTER, &envelope);
    let refused = replica.deliver(|id| id == ReplicaId(3), &message);
    assert_eq!(refused, Err(MessageError::Sender(ReplicaId(2))), "nobody speaks for another");
    replica.deliver(|id| id == ReplicaId(2), &message).expect("its own");
}
