//! A simulated group: nodes, network, disks, clients, faults, and time.

use super::judge::{Judge, Operation, chain};
use super::machine::{Copies, Machine};
use crate::core::{Batch, Committed, Config, CopyOrder, Core, Output, ReceivedPart, Word};
use crate::journal::{Identity, Journal};
use crate::membership::Membership;
use crate::message::{CopyId, decode, encode};
use crate::types::{Bytes, Position, ReplicaId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use strake_env::{Rng, SimDisk};
use strake_proto::{ClusterId, Term};

const CLUSTER: ClusterId = ClusterId([7; 16]);
const DISK_BYTES: u64 = 288 << 10;
const TICK: Duration = Duration::from_millis(20);
/// How long faults happen, and how long the group then has to be whole again.
const FAULTY: Duration = Duration::from_secs(16);
const HEALED_MAX: Duration = Duration::from_secs(30);

/// What kind of group it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Three,
    Five,
    /// Three voters of five replicas at first.
    Changing,
    /// One voter that commits in memory, of four replicas.
    Solo,
    /// As three, with machines that keep their own state.
    Keeping,
    /// As changing, with such machines.
    KeepingChanging,
    /// As solo, with such machines.
    KeepingSolo,
}

impl Kind {
    pub(super) const ALL: [Kind; 7] = [
        Kind::Three,
        Kind::Five,
        Kind::Changing,
        Kind::Solo,
        Kind::Keeping,
        Kind::KeepingChanging,
        Kind::KeepingSolo,
    ];

    fn keeps(self) -> bool {
        matches!(self, Kind::Keeping | Kind::KeepingChanging | Kind::KeepingSolo)
    }

    fn is_solo(self) -> bool {
        matches!(self, Kind::Solo | Kind::KeepingSolo)
    }

    fn changes(self) -> bool {
        self.is_solo() || matches!(self, Kind::Changing | Kind::KeepingChanging)
    }
}

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    commits: u64,
    reads: u64,
    leaders: u64,
    crashes: u64,
    put_back: u64,
    words: u64,
    /// Machines whose state was lost in a crash.
    emptied: u64,
    /// Snapshots that were installed, and copies that were whole.
    snapshots: u64,
    changes: u64,
    /// Steps after which a replica held a lease.
    leases: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Counts) {
        self.commits += other.commits;
        self.reads += other.reads;
        self.leaders += other.leaders;
        self.crashes += other.crashes;
        self.put_back += other.put_back;
        self.words += other.words;
        self.emptied += other.emptied;
        self.snapshots += other.snapshots;
        self.changes += other.changes;
        self.leases += other.leases;
    }

    /// A simulation in which little happens proves little.
    pub(super) fn assert_enough(&self, kind: Kind, seeds: u64) {
        assert!(self.commits > 40 * seeds && self.reads > 5 * seeds, "{self:?}");
        assert!(self.leases > 100 * seeds, "{self:?}");
        assert!(self.leaders > seeds && self.crashes > seeds && self.snapshots > 0, "{self:?}");
        assert!(self.changes > seeds || !kind.changes(), "{self:?}");
        assert!(self.words > seeds / 2, "{self:?}");
        assert!(self.put_back > seeds / 2 || kind.is_solo(), "{self:?}");
        assert!(self.emptied > seeds / 4 || kind != Kind::Keeping, "{self:?}");
    }
}

enum Event {
    Deliver(Vec<u8>, ReplicaId),
    Tick(ReplicaId),
    Write(ReplicaId, u64),
    Sync(ReplicaId, u64),
    /// A machine has made a part of a copy for the second replica.
    Made(ReplicaId, u64, (ReplicaId, CopyId, u64), Option<(Bytes, Option<Position>)>),
    /// A machine has taken a part of a copy.
    Taken(ReplicaId, u64, CopyId, u64),
    Restart(ReplicaId),
    Client,
    Mischief,
}

/// What a replica loses in a crash, beside what was not synced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loss {
    Nothing,
    PutBack,
    Machine,
}

struct Running {
    core: Core,
    journal: Journal,
    machine: Machine,
    copies: Copies,
    /// What the journal has to write, and the last ticket that it has written.
    queue: VecDeque<Batch>,
    written: Option<(u64, bool)>,
    is_writing: bool,
    /// Committed in memory and not yet stable, with the state after it.
    unstable: VecDeque<(Committed, Machine)>,
    /// The last stable state.
    stable: Machine,
    writes: BTreeMap<Position, (Term, usize)>,
    reads: BTreeMap<u64, usize>,
    ready: Vec<(usize, Position)>,
}

struct Node {
    disk: Arc<SimDisk>,
    /// Counts starts, so that events of earlier ones are void.
    start: u64,
    run: Option<Running>,
    paused_until: Duration,
    /// What a machine that keeps its own state has durable. `None` if it lacks its state.
    kept: Option<Machine>,
    /// What its last life had said, if the process has outlived the disk.
    word: Option<Word>,
    /// An older state of the disk, and of what the machine keeps.
    saved: Option<(Arc<SimDisk>, Option<Machine>)>,
}

pub(super) struct World {
    kind: Kind,
    rng: Rng,
    now: Duration,
    serial: u64,
    events: BTreeMap<(Duration, u64), Event>,
    nodes: BTreeMap<ReplicaId, Node>,
    cuts: BTreeSet<(ReplicaId, ReplicaId)>,
    is_healed: bool,
    /// Whether writes may linger.
    lingers: bool,
    /// The replica whose disk was put back, until it has found out what it had.
    forgetful: Option<ReplicaId>,
    mischief_ms: u64,
    loss_one_in: u64,
    delay_max: u64,
    judge: Judge,
    hash: u64,
    pub(super) counts: Counts,
}

impl World {
    pub(super) fn new(kind: Kind, seed: u64) -> World {
        let mut rng = Rng::new(seed ^ (kind as u64) << 56);
        let (count, voters) = match kind {
            Kind::Three | Kind::Keeping => (3, 3),
            Kind::Five => (5, 5),
            Kind::Changing | Kind::KeepingChanging => (5, 3),
            Kind::Solo | Kind::KeepingSolo => (4, 1),
        };
        let mut world = World {
            kind,
            now: Duration::from_secs(1),
            serial: 0,
            events: BTreeMap::new(),
            nodes: BTreeMap::new(),
            cuts: BTreeSet::new(),
            is_healed: false,
            lingers: seed.is_multiple_of(2),
            forgetful: None,
            mischief_ms: [100, 300, 1000][rng.index(3)],
            loss_one_in: [5, 20, 100][rng.index(3)],
            delay_max: [3, 20, 200][rng.index(3)],
            judge: Judge::default(),
            hash: 0,
            counts: Counts::default(),
            rng,
        };
        for number in 1..=count {
            let id = ReplicaId(number);
            let disk = SimDisk::new(DISK_BYTES);
            let members = Membership::of((1..=voters).map(ReplicaId));
            let members = (number <= voters).then_some(members);
            Journal::create(disk.clone(), identity(id), members).expect("a new disk");
            let (paused_until, kept) = (Duration::ZERO, Some(Machine::default()));
            let node =
                Node { disk, start: 0, run: None, paused_until, kept, word: None, saved: None };
            world.nodes.insert(id, node);
            world.restart(id);
        }
        world.schedule(1, Event::Client);
        world.schedule(100, Event::Mischief);
        world
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// Runs with faults, then without, and judges.
    pub(super) fn run(&mut self) {
        while self.now < FAULTY {
            self.step();
        }
        self.heal();
        let first = self.judge.operations.len();
        let is_served = |world: &World| {
            let is_done = |operation: &Operation| operation.ended.is_some() && !operation.is_read;
            world.judge.operations[first..].iter().filter(|done| is_done(done)).count() >= 3
        };
        while !(is_served(self) && self.is_level()) {
            assert!(self.now < FAULTY + HEALED_MAX, "the group does not heal: {}", self.describe());
            self.step();
        }
        self.judge.judge_history();
        self.counts.commits = self.judge.last_chosen().0;
    }

    /// Whether all members have applied what was committed when it was asked first.
    fn is_level(&self) -> bool {
        let Some(leader) = self.leader() else { return false };
        let Some(run) = &self.nodes[&leader].run else { return false };
        let behind = |id: ReplicaId| {
            let run = self.nodes[&id].run.as_ref().expect("all run");
            run.stable.applied.0 + 20 < self.judge.last_chosen().0
        };
        !run.core.membership().all().into_iter().any(behind)
    }

    fn describe(&self) -> String {
        let describe = |(id, node): (&ReplicaId, &Node)| match &node.run {
            None => format!("\n{id} is down"),
            Some(run) => format!(
                "\n{id}: {:?} term {} last {:?} committed {} applied {} threshold-whole {} {:?} {:?}",
                run.core.role(),
                run.core.term(),
                run.core.last(),
                run.core.committed(),
                run.machine.applied,
                run.core.is_whole(),
                run.core.membership(),
                run.core.members()
            ),
        };
        self.nodes.iter().map(describe).collect()
    }

    fn heal(&mut self) {
        self.is_healed = true;
        self.cuts.clear();
        let ids: Vec<ReplicaId> = self.nodes.keys().copied().collect();
        for id in ids {
            let node = self.nodes.get_mut(&id).expect("it exists");
            node.paused_until = Duration::ZERO;
            if node.run.is_none() {
                self.restart(id);
            }
        }
    }

    fn schedule(&mut self, after_ms: u64, event: Event) {
        let spread = Duration::from_micros(self.rng.below(1000));
        self.serial += 1;
        let at = self.now + Duration::from_millis(after_ms) + spread;
        self.events.insert((at, self.serial), event);
    }

    fn step(&mut self) {
        let ((at, _), event) = self.events.pop_first().expect("ticks go on");
        self.now = self.now.max(at);
        if let Some(paused_until) = self.paused_until(&event) {
            let after = (paused_until - self.now).as_millis() as u64 + 1;
            return self.schedule(after, event);
        }
        match event {
            Event::Tick(id) => {
                self.touch(id, |run, now| run.core.tick(now));
                self.serial += 1;
                self.events.insert((self.now + TICK, self.serial), Event::Tick(id));
            }
            Event::Deliver(bytes, to) => {
                let Ok(envelope) = decode(CLUSTER, &bytes) else { panic!("what was sent arrives") };
                self.hash =
                    bytes.iter().fold(self.hash, |hash, &byte| chain(hash, u64::from(byte)));
                self.hash = chain(self.hash, self.now.as_micros() as u64);
                self.touch(to, |run, now| run.core.receive(now, envelope));
            }
            Event::Write(id, start) => self.write(id, start),
            Event::Sync(id, start) => self.sync(id, start),
            Event::Made(id, start, (to, copy, number), part) => {
                if self.running(id, start).is_some() {
                    self.touch(id, |run, _| run.core.copy_made(to, copy, number, part));
                }
            }
            Event::Taken(id, start, copy, number) => {
                if self.running(id, start).is_some() {
                    self.touch(id, |run, now| run.core.copy_taken(now, copy, number));
                }
            }
            Event::Restart(id) => self.restart(id),
            Event::Client => {
                self.client();
                let after = if self.is_healed { 50 } else { self.rng.below(40) };
                self.schedule(after, Event::Client);
            }
            Event::Mischief => {
                if !self.is_healed {
                    self.mischief();
                    let after = self.rng.below(self.mischief_ms);
                    self.schedule(after, Event::Mischief);
                }
            }
        }
    }

    /// What disks and machines have done is heard of when the pause is over.
    fn paused_until(&self, event: &Event) -> Option<Duration> {
        let id = match event {
            Event::Write(id, _) | Event::Sync(id, _) => id,
            Event::Made(id, ..) | Event::Taken(id, ..) => id,
            _ => return None,
        };
        Some(self.nodes[id].paused_until).filter(|until| self.now < *until)
    }

    /// Does something to a replica that runs and is not paused, and what follows from it.
    fn touch(&mut self, id: ReplicaId, change: impl FnOnce(&mut Running, Duration)) {
        let now = self.now;
        let node = self.nodes.get_mut(&id).expect("it exists");
        if now < node.paused_until {
            return;
        }
        let Some(run) = &mut node.run else { return };
        change(run, now);
        let output = run.core.output();
        self.follow_up(id, output);
        self.judge_leases();
    }

    /// At most one replica holds a lease, also of those that are paused: such a one may go on at
    /// any moment, before it hears anything.
    fn judge_leases(&mut self) {
        let now = self.now;
        let holds = |node: &&Node| {
            let until = node.run.as_ref().and_then(|run| run.core.lease_until());
            until.is_some_and(|until| now < until)
        };
        let holders = self.nodes.values().filter(holds).count();
        assert!(holders <= 1, "{holders} replicas hold a lease at {now:?}");
        self.counts.leases += holders as u64;
    }

    fn follow_up(&mut self, id: ReplicaId, output: Output) {
        let node = self.nodes.get_mut(&id).expect("it exists");
        let (start, run) = (node.start, node.run.as_mut().expect("it runs"));
        assert_eq!(output.fault, None, "{id} must end");
        if run.core.is_leader() {
            let (term, life) = (run.core.term(), run.core.life());
            self.counts.leaders += u64::from(self.judge.leads(term, id, life));
        }
        if let Some(snapshot) = output.install {
            run.machine = Machine::of(&snapshot.bytes);
            (run.stable, run.unstable) = (run.machine.clone(), VecDeque::new());
            self.judge.installed(id, snapshot.stamp.position, run.machine.state());
            self.counts.snapshots += 1;
        }
        for committed in output.committed {
            let changed = run.machine.apply(&committed);
            run.copies.note(&changed);
            run.unstable.push_back((committed, run.machine.clone()));
        }
        run.ready.extend(output.reads.into_iter().filter_map(|(number, position)| {
            let operation = run.reads.remove(&number)?;
            Some((operation, position?))
        }));
        let persists = output.persist.is_some();
        run.queue.extend(output.persist);
        let writes = persists && !run.is_writing;
        run.is_writing |= persists;
        self.settle(id);
        output.received.into_iter().for_each(|part| self.take_part(id, start, &part));
        output.orders.into_iter().for_each(|order| self.obey(id, start, order));
        if writes {
            let slow = if !self.is_healed && self.rng.one_in(400) { 1500 } else { 0 };
            let after = self.rng.below(3) + slow;
            self.schedule(after, Event::Write(id, start));
        }
        for envelope in output.send {
            let way = (envelope.from, envelope.to);
            let bytes = encode(CLUSTER, &envelope);
            let copies = if self.is_healed {
                1
            } else if self.cuts.contains(&way) || self.rng.one_in(self.loss_one_in) {
                0
            } else {
                1 + u64::from(self.rng.one_in(20))
            };
            for _ in 0..copies {
                let max = if self.is_healed { 3 } else { self.delay_max };
                let mut delay = self.rng.below(max);
                if !self.is_healed && self.rng.one_in(100) {
                    delay += self.rng.below(3000);
                }
                self.schedule(delay, Event::Deliver(bytes.clone(), envelope.to));
            }
        }
    }

    /// A machine takes a part of a copy.
    fn take_part(&mut self, id: ReplicaId, start: u64, part: &ReceivedPart) {
        let node = self.nodes.get_mut(&id).expect("it exists");
        let run = node.run.as_mut().expect("it runs");
        assert!(run.unstable.is_empty(), "such a machine has what is stable only");
        run.machine.take(part.number, &part.bytes, part.whole);
        run.stable = run.machine.clone();
        // What it had is gone with the first part, also after a crash.
        node.kept = part.whole.map(|_| run.machine.clone());
        if let Some(position) = part.whole {
            self.judge.installed(id, position, run.machine.state());
            self.counts.snapshots += 1;
        }
        let after = self.rng.below(8);
        self.schedule(after, Event::Taken(id, start, part.copy, part.number));
    }

    /// A machine does what others need of it.
    fn obey(&mut self, id: ReplicaId, start: u64, order: CopyOrder) {
        let gives_up = self.rng.one_in(60);
        let run = self.running(id, start).expect("it runs");
        match order {
            CopyOrder::End { to } => run.copies.end(to),
            CopyOrder::Make { to, copy, number } => {
                if gives_up {
                    run.copies.end(to);
                }
                let part = run.copies.make(&run.machine, to, copy, number);
                let after = self.rng.below(8);
                self.schedule(after, Event::Made(id, start, (to, copy, number), part));
            }
        }
    }

    /// Judges what is stable by now, and answers clients.
    fn settle(&mut self, id: ReplicaId) {
        self.serial += 1;
        let (moment, run) =
            (self.serial, self.nodes.get_mut(&id).and_then(|node| node.run.as_mut()));
        let run = run.expect("it runs");
        let stable = run.core.stable();
        while run.unstable.front().is_some_and(|(front, _)| front.entry.position <= stable) {
            let (committed, machine) = run.unstable.pop_front().expect("there is a front");
            let entry = &committed.entry;
            self.judge.committed(id, entry, machine.state());
            run.stable = machine;
            if let Some((term, operation)) = run.writes.remove(&entry.position)
                && term == entry.term
            {
                let operation = &mut self.judge.operations[operation];
                operation.ended = Some(moment);
                operation.position = Some(entry.position);
            }
        }
        for (operation, position) in std::mem::take(&mut run.ready) {
            if run.stable.applied < position {
                run.ready.push((operation, position));
                continue;
            }
            let operation = &mut self.judge.operations[operation];
            operation.ended = Some(moment);
            operation.position = Some(run.stable.written_at());
            self.counts.reads += 1;
        }
        let is_long = run.core.log_bytes() > 6000;
        if !self.kind.keeps() {
            if is_long && run.unstable.is_empty() {
                run.core.snapshot_taken(run.machine.applied, run.machine.snapshot());
            }
        } else if !run.core.lacks() && (is_long || self.rng.one_in(30)) {
            let (applied, kept) = (run.machine.applied, run.machine.clone());
            if is_long {
                run.core.snapshot_taken(applied, Bytes::from(&[][..]));
            }
            self.nodes.get_mut(&id).expect("it exists").kept = Some(kept);
        }
    }

    fn running(&mut self, id: ReplicaId, start: u64) -> Option<&mut Running> {
        let node = self.nodes.get_mut(&id).expect("it exists");
        if node.start == start { node.run.as_mut() } else { None }
    }

    /// The journal writes what is queued. It becomes durable some time later.
    fn write(&mut self, id: ReplicaId, start: u64) {
        let Some(run) = self.running(id, start) else { return };
        let mut written = None;
        for batch in run.queue.drain(..) {
            run.journal.write(&batch).expect("the disk works");
            let synced = written.is_some_and(|(_, synced)| synced);
            written = Some((batch.ticket, batch.sync || synced));
        }
        run.written = written;
        let after = self.rng.below(4);
        self.schedule(after, Event::Sync(id, start));
    }

    fn sync(&mut self, id: ReplicaId, start: u64) {
        let Some(run) = self.running(id, start) else { return };
        run.is_writing = false;
        if let Some((ticket, synced)) = run.written.take() {
            if synced {
                run.journal.sync().expect("the disk works");
            }
            let now = self.now;
            let run = self.running(id, start).expect("it runs");
            run.core.persisted(now, ticket, synced);
            let output = run.core.output();
            self.follow_up(id, output);
        }
        let Some(run) = self.running(id, start) else { return };
        if !run.queue.is_empty() && !std::mem::replace(&mut run.is_writing, true) {
            self.schedule(0, Event::Write(id, start));
        }
    }

    fn config(&self, id: ReplicaId) -> Config {
        Config {
            heartbeat: Duration::from_millis(60),
            election: Duration::from_millis(300),
            lease: Duration::from_millis(280),
            append_bytes: 600,
            window_entries: 16,
            linger: Duration::from_millis(30),
            log_bytes_max: 24 << 10,
            part_bytes: 300,
            snapshot_bytes_max: 8 << 10,
            kept_entries: 10,
            commits_when_appended: self.kind.is_solo(),
            ..Config::new(id)
        }
    }

    fn restart(&mut self, id: ReplicaId) {
        let (seed, chance) = (self.rng.next_u64(), self.rng.next_u64() as u32);
        let (config, now) = (self.config(id), self.now);
        let node = self.nodes.get_mut(&id).expect("it exists");
        if node.run.is_some() {
            return;
        }
        let opened = Journal::open(node.disk.clone(), identity(id), chance);
        let (journal, hard, log) = opened.expect("a crash damages nothing");
        node.start += 1;
        let config = Config { earlier: node.word.take(), ..config };
        self.counts.words += u64::from(config.earlier.is_some());
        let is_first = node.start == 1;
        let (core, machine) = if self.kind.keeps() {
            let position = node.kept.as_ref().map(|kept| kept.applied);
            let core = Core::keeping(config, hard, log, position, now, seed);
            (core, node.kept.clone().unwrap_or_default())
        } else {
            (Core::new(config, hard, log, now, seed), Machine::default())
        };
        node.run = Some(Running {
            core,
            journal,
            stable: machine.clone(),
            machine,
            copies: Copies::default(),
            queue: VecDeque::new(),
            written: None,
            is_writing: false,
            unstable: VecDeque::new(),
            writes: BTreeMap::new(),
            reads: BTreeMap::new(),
            ready: Vec::new(),
        });
        if is_first {
            self.schedule(0, Event::Tick(id));
        }
        self.touch(id, |_, _| {});
    }

    fn leader(&self) -> Option<ReplicaId> {
        let leads = |node: &Node| node.run.as_ref().is_some_and(|run| run.core.is_leader());
        let leaders = self.nodes.iter().filter(|(_, node)| leads(node)).map(|(id, _)| *id);
        leaders.max_by_key(|id| self.nodes[id].run.as_ref().map(|run| run.core.term()))
    }

    fn some_node(&mut self) -> ReplicaId {
        let at = self.rng.index(self.nodes.len());
        *self.nodes.keys().nth(at).expect("it is below the count")
    }

    /// A client writes or reads, mostly at the leader, sometimes at whoever thinks it leads.
    fn client(&mut self) {
        let some = self.some_node();
        let id = if self.rng.one_in(3) { some } else { self.leader().unwrap_or(some) };
        let (is_read, with_sync) = (self.rng.one_in(4), self.rng.one_in(5));
        self.serial += 1;
        let (begun, number) = (self.serial, self.judge.operations.len());
        let value = number as u64 + 1;
        let length = 8 + self.rng.index(200);
        let lingers = self.lingers;
        let mut taken = false;
        let operation = Operation { is_read, begun, ended: None, position: None, value };
        self.judge.operations.push(operation);
        self.touch(id, |run, now| {
            if is_read {
                taken = run.core.read(value).is_ok();
                if taken {
                    run.reads.insert(value, number);
                }
            } else {
                let mut bytes = value.to_be_bytes().to_vec();
                bytes.resize(length, 1);
                // In half of the worlds every other write may linger.
                let next = run.core.next().filter(|_| lingers && number.is_multiple_of(2));
                let proposed = match next {
                    Some(stamp) => run.core.propose_at(now, stamp, 0, bytes.into()).map(|()| stamp),
                    None => run.core.propose(0, bytes.into()),
                };
                if let Ok(stamp) = proposed {
                    run.writes.insert(stamp.position, (stamp.term, number));
                    taken = true;
                }
            }
            if with_sync {
                run.core.sync();
                run.core.hurry();
            }
        });
        if !taken {
            self.judge.operations.pop();
        }
    }

    fn mischief(&mut self) {
        let id = self.some_node();
        match self.rng.below(12) {
            0..=2 => {
                let is_emptied = self.kind == Kind::Keeping && self.rng.one_in(8);
                self.crash(id, if is_emptied { Loss::Machine } else { Loss::Nothing });
            }
            3 => {
                let mut save =
                    |node: &mut Node| node.saved = Some((node.disk.copy(), node.kept.clone()));
                self.nodes.values_mut().for_each(&mut save);
            }
            4 => self.crash(id, Loss::PutBack),
            5 => {
                let length = Duration::from_millis(self.rng.below(1500));
                self.nodes.get_mut(&id).expect("it exists").paused_until = self.now + length;
            }
            6 | 7 => {
                let other = self.some_node();
                self.cuts.insert((id, other));
                if self.rng.one_in(2) {
                    self.cuts.insert((other, id));
                }
            }
            8 | 9 => self.cuts.clear(),
            10 => {
                // Everyone at once.
                let ids: Vec<ReplicaId> = self.nodes.keys().copied().collect();
                if self.rng.one_in(4) {
                    ids.into_iter().for_each(|id| self.crash(id, Loss::Nothing));
                }
            }
            _ => self.change_members(),
        }
    }

    /// The power of a replica goes. Its disk may come back as it was some time ago, if no other
    /// replica has lost what it promised at the moment, and if the members are the same. Or its
    /// machine may lose what it kept.
    fn crash(&mut self, id: ReplicaId, loss: Loss) {
        // Of this replica it must be known that it has no promises of before to find out.
        if let Some(other) = self.forgetful
            && let Some(run) = &self.nodes[&other].run
            && run.core.is_whole()
            && !run.core.lacks()
        {
            self.forgetful = None;
        }
        let others_whole = self.forgetful.is_none_or(|other| other == id);
        let after = self.rng.below(1000);
        let node = self.nodes.get_mut(&id).expect("it exists");
        let Some(run) = node.run.take() else { return };
        node.word = run.core.word().filter(|_| self.rng.one_in(3));
        self.counts.crashes += 1;
        node.disk = node.disk.crash(node.disk.position(), &mut self.rng);
        let may_put_back = loss == Loss::PutBack && others_whole && !self.kind.is_solo();
        if let Some((disk, kept)) = node.saved.take_if(|_| may_put_back) {
            (node.disk, node.kept) = (disk, kept);
            self.forgetful = Some(id);
            self.counts.put_back += 1;
        }
        if loss == Loss::Machine && others_whole {
            node.kept = None;
            self.forgetful = Some(id);
            self.counts.emptied += 1;
        }
        self.schedule(after, Event::Restart(id));
    }

    fn change_members(&mut self) {
        let Some(leader) = self.leader() else { return };
        if !self.kind.changes() {
            return;
        }
        let Some(run) = &self.nodes[&leader].run else { return };
        let Membership { mut voters, mut learners, .. } = run.core.membership().clone();
        let id = self.some_node();
        match self.rng.below(4) {
            0 | 1 if learners.is_empty() && voters.len() < self.nodes.len() => {
                let all = self.nodes.keys().copied();
                learners.extend(all.filter(|id| !voters.contains(id)));
            }
            0..=2 => voters.extend(std::mem::take(&mut learners)),
            _ if voters.len() > 2 => {
                voters.remove(&id);
            }
            _ => return,
        }
        let mut changed = false;
        self.touch(leader, |run, _| changed = run.core.change(voters, learners).is_ok());
        self.counts.changes += u64::from(changed);
        // A disk from before a change of members needs the replica's `known`; see decision 0041.
        if changed {
            self.nodes.values_mut().for_each(|node| node.saved = None);
        }
    }
}

fn identity(replica: ReplicaId) -> Identity {
    Identity { cluster: CLUSTER, replica }
}
