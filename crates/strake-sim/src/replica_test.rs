//! Replicas under the scheduler: the threads of `strake-replica` in an order that the seed chooses,
//! with messages that are lost, and power cuts that tear what was not synced. The simulation of the
//! pure core, which meets far more faults, is in `strake-replica` itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use strake_env::rng::{test_scale, test_seeds};
use strake_env::simulation::{self, Options, Outcome};
use strake_env::sync::Mutex;
use strake_env::{Clock, RealClock, Rng, SimDisk, thread};
use strake_proto::ClusterId;
use strake_replica::core::{Config, RoleName};
use strake_replica::journal::{Identity, Journal};
use strake_replica::membership::Membership;
use strake_replica::replica::{Failure, Parts};
use strake_replica::types::{Position, ReplicaId};
use strake_replica::{Machine, Replica, StateMachine, Transport};

const CLUSTER: ClusterId = ClusterId([4; 16]);
const LIMIT: Duration = Duration::from_secs(2);
/// A group that is not whole by then has failed.
const HEALED: Duration = Duration::from_secs(60);
const CALLERS: usize = 3;
const CALLS: usize = 12;
const DISK_BYTES: u64 = 256 << 10;

/// Counts entries. The answer is the count.
#[derive(Default)]
struct Count(u64);

impl StateMachine for Count {
    fn apply(&mut self, _: Position, _: &[u8]) -> Vec<u8> {
        self.0 += 1;
        self.0.to_le_bytes().to_vec()
    }

    fn snapshot(&mut self) -> Vec<u8> {
        self.0.to_le_bytes().to_vec()
    }

    fn install(&mut self, bytes: &[u8]) -> Result<(), String> {
        let bytes = bytes.try_into().map_err(|_| "not a count".to_owned())?;
        self.0 = u64::from_le_bytes(bytes);
        Ok(())
    }
}

/// Brings messages to replicas, or loses them.
struct Room {
    there: Mutex<BTreeMap<ReplicaId, Weak<Replica>>>,
    rng: Mutex<Rng>,
    /// Counts the starts of each replica. Earlier ones reach nobody.
    starts: Mutex<BTreeMap<ReplicaId, usize>>,
}

/// The way from one life of a replica into the room.
struct Way {
    room: Arc<Room>,
    from: ReplicaId,
    start: usize,
}

impl Transport for Way {
    fn send(&self, to: ReplicaId, message: Vec<u8>) {
        let is_up = self.room.starts.lock().get(&self.from) == Some(&self.start);
        if !is_up || self.room.rng.lock().one_in(15) {
            return;
        }
        let there = self.room.there.lock().get(&to).and_then(Weak::upgrade);
        if let Some(replica) = there {
            replica.deliver(|id| id == self.from, &message).expect("what was sent arrives");
        }
    }
}

struct Group {
    room: Arc<Room>,
    disks: Mutex<BTreeMap<ReplicaId, Arc<SimDisk>>>,
    replicas: Mutex<BTreeMap<ReplicaId, Arc<Replica>>>,
}

impl Group {
    fn new(seed: u64) -> Group {
        let room = Room {
            there: Mutex::default(),
            rng: Mutex::new(Rng::new(seed)),
            starts: Mutex::default(),
        };
        let group =
            Group { room: Arc::new(room), disks: Mutex::default(), replicas: Mutex::default() };
        for id in (1..=3).map(ReplicaId) {
            let disk = SimDisk::new(DISK_BYTES);
            let members = Membership::of((1..=3).map(ReplicaId));
            let identity = Identity { cluster: CLUSTER, replica: id };
            Journal::create(disk.clone(), identity, Some(members)).expect("the disk is new");
            group.disks.lock().insert(id, disk);
            group.start(id);
        }
        group
    }

    fn start(&self, id: ReplicaId) {
        let config = Config {
            heartbeat: Duration::from_millis(20),
            election: Duration::from_millis(150),
            lease: Duration::from_millis(100),
            log_bytes_max: 4000,
            kept_entries: 5,
            ..Config::new(id)
        };
        let disk = self.disks.lock()[&id].clone();
        let start = *self.room.starts.lock().entry(id).or_default();
        let parts = Parts {
            cluster: CLUSTER,
            config,
            disk,
            machine: Machine::Carried(Box::new(Count::default())),
            transport: Arc::new(Way { room: self.room.clone(), from: id, start }),
            clock: RealClock::shared(),
            waits: Arc::new(()),
        };
        let replica = Arc::new(Replica::start(parts).expect("its journal is there"));
        self.room.there.lock().insert(id, Arc::downgrade(&replica));
        self.replicas.lock().insert(id, replica);
    }

    /// The power of a replica goes at this moment, and it starts again.
    fn crash(&self, id: ReplicaId, rng: &mut Rng) {
        *self.room.starts.lock().entry(id).or_default() += 1;
        self.room.there.lock().remove(&id);
        let replica = self.replicas.lock().remove(&id).expect("it runs");
        // What it does from here on is on a disk that nobody sees again. It reaches no replica.
        let disk = self.disks.lock()[&id].clone();
        let left = disk.crash(disk.position(), rng);
        replica.stop();
        self.disks.lock().insert(id, left);
        self.start(id);
    }

    fn some(&self, at: usize) -> Arc<Replica> {
        let replicas = self.replicas.lock();
        let at = at % replicas.len();
        Arc::clone(replicas.values().nth(at).expect("it is below the count"))
    }
}

/// What one caller got: answered calls, and how many may or may not have happened.
fn call(group: &Group, caller: usize) -> (Vec<(Position, u64)>, usize) {
    let (mut answers, mut unknown, mut at) = (Vec::new(), 0, caller);
    let end = RealClock.monotonic() + HEALED;
    while answers.len() + unknown < CALLS {
        assert!(RealClock.monotonic() < end, "the group does not answer");
        match group.some(at).propose(0, b"one", LIMIT) {
            Ok(applied) => {
                let count = applied.answer.try_into().expect("a count");
                answers.push((applied.position, u64::from_le_bytes(count)));
            }
            Err(Failure::Unknown | Failure::Ended(_)) => unknown += 1,
            Err(Failure::Refused(_) | Failure::NotChanged(_) | Failure::Replaced) => {
                at += 1;
                RealClock.sleep(Duration::from_millis(7));
            }
        }
    }
    (answers, unknown)
}

fn history(seed: u64) -> usize {
    let group = Group::new(seed);
    let mut rng = Rng::new(seed ^ 1);
    let outcomes: Vec<_> = thread::scope(|scope| {
        let group = &group;
        let callers = (0..CALLERS).map(|caller| scope.spawn(move || call(group, caller)));
        let callers: Vec<_> = callers.collect();
        for _ in 0..2 {
            RealClock.sleep(Duration::from_millis(rng.below(800)));
            group.crash(ReplicaId(1 + rng.below(3) as u32), &mut rng);
        }
        callers.into_iter().map(|caller| caller.join().expect("no panic")).collect()
    });
    let unknown: usize = outcomes.iter().map(|(_, unknown)| unknown).sum();
    let mut answers: Vec<_> = outcomes.into_iter().flat_map(|(answers, _)| answers).collect();
    answers.sort_unstable();
    let rises = answers.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1);
    assert!(rises, "each entry has a place and an answer of its own: {answers:?}");
    let most = answers.last().map_or(0, |(_, count)| *count as usize);
    assert!(most <= answers.len() + unknown, "{most} of {} and {unknown}", answers.len());
    // Every replica gets to know what it once promised, and all that was answered.
    let last = answers.last().map_or(Position::START, |(position, _)| *position);
    let end = RealClock.monotonic() + HEALED;
    for at in 0..3 {
        loop {
            let status = group.some(at).status();
            assert_eq!(status.ended, None);
            if status.applied >= last && status.role != RoleName::Asking {
                break;
            }
            assert!(RealClock.monotonic() < end, "it does not catch up: {status:?}");
            RealClock.sleep(Duration::from_millis(50));
        }
    }
    group.replicas.lock().values().for_each(|replica| replica.stop());
    answers.len()
}

fn simulate(seed: u64) -> Outcome<usize> {
    let options = Options { keep_trace: true, ..Options::new(seed) };
    simulation::run(Options { time_max: HEALED * 3, ..options }, move || history(seed))
}

#[test]
fn replicas_with_threads_keep_what_they_answered() {
    let mut answered = 0;
    for seed in test_seeds(0, 12 * test_scale()) {
        println!("seed {seed}");
        let outcome = simulate(seed);
        assert!(outcome.left.is_empty(), "seed {seed}: {:?} did not end", outcome.left);
        answered += outcome.expect();
    }
    assert!(answered > CALLERS * CALLS, "most calls are answered: {answered}");
}

#[test]
fn same_seed_same_trace_of_replicas() {
    for seed in test_seeds(0, 2) {
        let (one, other) = (simulate(seed), simulate(seed));
        if let Some(difference) = one.trace.difference(&other.trace) {
            panic!("two runs of seed {seed} differ: {difference}");
        }
        assert_eq!(one.expect(), other.expect());
    }
}
