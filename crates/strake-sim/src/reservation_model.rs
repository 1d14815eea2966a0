//! Reservations in every state: the real [`Reservation`] of each server of one NSD, the marks on
//! the NSD, and records that name one server after the other.
//!
//! **Clocks.** A server's clock is ahead of the time by nothing or by one second, if the scope lets
//! it. Only the ages of things count, so time passes without an end, and a scope is finite still.
//!
//! **Steps:** a second passes; the records name another server; a server hears of the records, as
//! late as can be, and begins or ends a reservation; a server begins a round, its mark lands, it
//! reads the places, it judges; a mark cannot be read for once; a server begins an I/O; it leaves;
//! its process is told to end, or is killed, and starts anew. A process that is paused takes none
//! of its steps while others take theirs. It looks at its permit and begins the I/O in one step.
//!
//! **The kernel** has done what it was given at the end of the next second. That holds also for a
//! process that is killed: its I/O goes on, and its mark lands late, over newer ones, or never.
//!
//! **Invariants**, in every state:
//! 1. no two servers have a permit that counts, or I/O in the kernel;
//! 2. no server begins an I/O after one with a higher number has begun one;
//! 3. a few rounds without faults give a permit to the server that the records name.
//!
//! A server that has heard of a higher number has no permit under a lower one any more, even if it
//! is named again.

use crate::explore::{Next, Step, Verdict, explore};
use foldhash::fast::FixedState;
use std::hash::{BuildHasher, Hash, Hasher};
use std::time::Duration;
use strake_env::Rng;
use strake_lease::rule::{Rule, obeys};
use strake_lease::{Mark, Reservation, ReservationTimes, Verdict as Judged};

/// The unit of time.
const SECOND: Duration = Duration::from_secs(1);
/// The kernel may still have what it was given for so long, and no second more.
const IN_KERNEL: Duration = SECOND;
/// At most so many servers are modelled.
const SERVERS_MAX: usize = 3;
/// Rounds without faults after which the server that the records name must have a permit.
const ROUNDS_MAX: usize = 16;

/// What is modelled.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// Servers of the NSD.
    pub servers: usize,
    /// The servers that the records name, by number, from 1 on.
    pub names: &'static [usize],
    /// The number of the records at the start. Nobody has heard of more than the first one.
    pub first: usize,
    /// Processes that are killed.
    pub kills: u8,
    /// Processes that are told to end, and leave first.
    pub stops: u8,
    /// A process starts only when the kernel has nothing of the one before it, and relies on that.
    pub is_claimed: bool,
    /// Marks that cannot be read when somebody reads them.
    pub unreadable: u8,
    /// A server reads all places in one step. Otherwise each takes a step of its own.
    pub reads_at_once: bool,
    /// Servers whose clocks may be ahead: a mask.
    pub drift: u32,
    /// How many seconds a permit lasts.
    pub hold: u64,
    /// For how many seconds a later server waits.
    pub patience: u64,
    /// What the servers do wrong.
    pub bug: Option<Bug>,
}

/// A mistake of the code around a [`Reservation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A server writes that it has left before its I/O is done.
    LeavesAmidIo,
    /// A server reads the places before its own mark is on the NSD.
    ReadsBeforeItsMark,
}

/// What a process does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// It is not to serve, or has left.
    Out,
    /// Between two rounds.
    Idle,
    /// In a round.
    Round {
        /// The mark that is not on the NSD yet.
        unwritten: Option<Mark>,
        /// What was read, by place. The inner one is `None` for a mark that cannot be read.
        read: [Option<Option<Mark>>; SERVERS_MAX],
    },
    /// It begins no I/O any more, and is about to leave.
    Ending,
    /// The mark that says so is not on the NSD yet.
    Leaving(Mark),
}

#[derive(Clone, Debug)]
struct Process {
    stage: Stage,
    /// `None` while it is out.
    reservation: Option<Reservation>,
    /// The end of the permit, by its own clock.
    permit: Option<Duration>,
    /// What it has given the kernel is done by this time.
    io: Option<Duration>,
    /// When the present round began, by its own clock. The reservation has it too, but shows it
    /// to nobody.
    begun: Duration,
    /// From when on patience counts. The same holds.
    since: Option<Duration>,
    /// From then on, by its own clock, the kernel has nothing of an earlier process.
    settled: Duration,
    /// It ends when it has left.
    is_stopping: bool,
}

#[derive(Clone, Debug)]
struct Server {
    process: Option<Process>,
    is_ahead: bool,
    /// The newest number of the records that it has heard of.
    known: u64,
    /// I/O of processes that were killed is done by this time.
    orphaned_io: Option<Duration>,
    /// Marks that processes which were killed had given the kernel, and by when they land.
    orphaned_marks: Vec<(Mark, Duration)>,
}

/// Two worlds are equal if they are so in everything that counts: see [`World::write_key`].
#[derive(Clone, Debug)]
struct World {
    times: ReservationTimes,
    now: Duration,
    servers: Vec<Server>,
    /// The marks on the NSD, by place. Rounds are not counted.
    places: [Mark; SERVERS_MAX],
    names: &'static [usize],
    /// The present number of the records.
    latest: u64,
    /// The highest number under which an I/O has begun.
    served: u64,
    kills: u8,
    stops: u8,
    unreadable: u8,
    fault: Option<String>,
    key: (u64, u64),
}

impl PartialEq for World {
    fn eq(&self, other: &World) -> bool {
        self.key == other.key
    }
}

impl Eq for World {}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

/// Visits a whole scope.
///
/// # Panics
/// If there are more states than a test has time for.
pub fn check(scope: &Scope) -> Verdict {
    explore(World::new(scope), &|world: &World| successors(scope, world))
}

/// Walks through a scope at random; returns what went wrong. Now and then all servers but one pause
/// for a while.
pub fn wander(scope: &Scope, seed: u64, steps: usize) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let mut world = World::new(scope);
    let mut way: Vec<String> = Vec::new();
    let mut alone = None;
    for _ in 0..steps {
        let mut next = successors(scope, &world)
            .map_err(|fault| format!("{fault}. Steps: {}", way.join("; ")))?;
        let kind = |(step, after): &(Step, World)| match *step == pass() {
            true => Kind::Second,
            false if after.rest() < world.rest() || after.heard() > world.heard() => Kind::Rare,
            false => Kind::Work,
        };
        let wanted = match rng.index(32) {
            0 => Kind::Rare,
            1..5 => Kind::Second,
            _ => Kind::Work,
        };
        if next.iter().any(|next| kind(next) == wanted) {
            next.retain(|next| kind(next) == wanted);
        }
        if rng.index(32) == 0 {
            alone = Some(rng.index(scope.servers + 1)).filter(|at| *at < scope.servers);
        }
        if wanted == Kind::Work && next.iter().any(|(step, _)| step.who() == alone) {
            next.retain(|(step, _)| step.who() == alone);
        }
        if next.is_empty() {
            return Ok(());
        }
        let (step, after) = next.swap_remove(rng.index(next.len()));
        way.push(step.text());
        world = after;
    }
    Ok(())
}

/// How often a step is to be taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Work,
    Second,
    Rare,
}

fn pass() -> Step {
    Step::new("a second passes")
}

fn successors(scope: &Scope, world: &World) -> Next<World> {
    world.judge()?;
    world.clone().come_to_rest()?;
    let mut next: Vec<(Step, World)> = Vec::new();
    let mut add = |step: Step, change: &dyn Fn(&mut World)| {
        let mut changed = world.clone();
        change(&mut changed);
        changed.key = changed.key();
        if changed != *world {
            next.push((step, changed));
        }
    };
    for ahead in (0..1u32 << scope.servers).filter(|ahead| ahead & !scope.drift == 0) {
        add(pass(), &|world| world.pass(ahead));
    }
    if (world.latest as usize) < world.names.len() {
        let named = world.named(world.latest + 1);
        add(Step::of("the records name server {}", named), &|world| world.latest += 1);
    }
    for (at, server) in world.servers.iter().enumerate() {
        for mark in 0..server.orphaned_marks.len() {
            add(Step::of("a late mark of server {} lands", at), &|world| {
                world.places[at] = world.servers[at].orphaned_marks.remove(mark).0;
            });
        }
        match &server.process {
            None => {
                let is_idle = server.orphaned_io.is_none() && server.orphaned_marks.is_empty();
                let numbers = server.known..=world.latest;
                for number in numbers.filter(|number| world.named(*number) == at) {
                    if is_idle || !scope.is_claimed {
                        add(Step::of("server {} starts", at), &|world| {
                            world.start(at, number, scope.is_claimed);
                        });
                    }
                }
            }
            Some(process) => process_steps(scope, world, at, process, &mut add),
        }
    }
    Ok(next)
}

type Add<'a> = &'a mut dyn FnMut(Step, &dyn Fn(&mut World));

fn process_steps(scope: &Scope, world: &World, at: usize, process: &Process, add: Add<'_>) {
    if world.kills > 0 {
        add(Step::of("server {} is killed", at), &|world| {
            world.kills -= 1;
            world.kill(at);
        });
    }
    if process.writes().is_none() && !process.is_stopping {
        let numbers = world.servers[at].known + 1..=world.latest;
        let serves = !matches!(process.stage, Stage::Out | Stage::Ending);
        for number in numbers.filter(|number| serves || world.named(*number) == at) {
            add(Step::of("server {} hears of the records", at), &|world| world.hear(at, number));
        }
    }
    if process.permit.is_some_and(|until| world.clock(at) < until) {
        add(Step::of("server {} begins an I/O", at), &|world| world.begin_io(at));
    }
    let reads_first = scope.bug == Some(Bug::ReadsBeforeItsMark);
    match &process.stage {
        Stage::Out => {}
        Stage::Idle => {
            add(Step::of("server {} begins a round", at), &|world| world.begin(at));
            if world.stops > 0 {
                add(Step::of("server {} is told to end", at), &|world| {
                    world.stops -= 1;
                    world.process(at).is_stopping = true;
                    world.end_use(at);
                });
            }
        }
        Stage::Round { unwritten, read } => {
            let others = (0..scope.servers).filter(|other| *other != at);
            let has_read = others.clone().all(|other| read[other].is_some());
            if unwritten.is_some() && (has_read || !reads_first) {
                add(Step::of("the mark of server {} lands", at), &|world| world.land(at));
            }
            if unwritten.is_none() && has_read {
                add(Step::of("server {} judges", at), &|world| world.end_round(at));
            }
            if unwritten.is_none() || reads_first {
                if scope.reads_at_once && !has_read {
                    add(Step::of("server {} reads all places", at), &|world| {
                        (0..scope.servers).for_each(|other| world.read(at, other));
                    });
                }
                for other in others.filter(|other| read[*other].is_none() && !scope.reads_at_once) {
                    add(Step::of("server {} reads a place", at), &|world| world.read(at, other));
                    if world.unreadable > 0 {
                        add(Step::of("server {} cannot read a place", at), &|world| {
                            world.unreadable -= 1;
                            world.note(at, other, None);
                        });
                    }
                }
            }
        }
        Stage::Ending => {
            let amid_io = scope.bug == Some(Bug::LeavesAmidIo);
            add(Step::of("server {} leaves", at), &|world| world.leave(at, amid_io));
        }
        Stage::Leaving(_) => {
            add(Step::of("server {} has left", at), &|world| world.land(at));
        }
    }
}

impl Process {
    fn new(settled: Duration) -> Process {
        Process {
            stage: Stage::Out,
            reservation: None,
            permit: None,
            io: None,
            begun: Duration::ZERO,
            since: None,
            settled,
            is_stopping: false,
        }
    }

    /// The mark that the kernel was given and that is not on the NSD yet.
    fn writes(&self) -> Option<Mark> {
        match &self.stage {
            Stage::Round { unwritten, .. } => *unwritten,
            Stage::Leaving(mark) => Some(*mark),
            Stage::Out | Stage::Idle | Stage::Ending => None,
        }
    }

    fn reservation(&mut self) -> &mut Reservation {
        self.reservation.as_mut().expect("a process that is not out has a reservation")
    }
}

/// A mark without its round, which means nothing to anybody, and would never let a scope end.
fn plain(mark: Mark) -> Mark {
    Mark { round: 0, ..mark }
}

/// How long ago something was. Anything older than `cap` counts as that old.
fn age(now: Duration, then: Duration, cap: Duration) -> i64 {
    let cap = cap.as_secs() as i64;
    (now.as_secs() as i64 - then.as_secs() as i64).min(cap)
}

impl World {
    fn new(scope: &Scope) -> World {
        let server = |at: usize| Server {
            process: (at > 0).then(|| Process::new(Duration::ZERO)),
            is_ahead: false,
            known: 1,
            orphaned_io: None,
            orphaned_marks: Vec::new(),
        };
        let mut world = World {
            times: ReservationTimes {
                round: SECOND,
                hold: Duration::from_secs(scope.hold),
                patience: Duration::from_secs(scope.patience),
            },
            now: Duration::ZERO,
            servers: (0..scope.servers).map(server).collect(),
            places: [Mark::default(); SERVERS_MAX],
            names: scope.names,
            latest: scope.first as u64,
            served: 0,
            kills: scope.kills,
            stops: scope.stops,
            unreadable: scope.unreadable,
            fault: None,
            key: (0, 0),
        };
        world.key = world.key();
        world
    }

    /// Hashes of everything that counts.
    fn key(&self) -> (u64, u64) {
        let hash = |salt| {
            let mut hasher = FixedState::with_seed(salt).build_hasher();
            self.write_key(&mut hasher);
            hasher.finish()
        };
        (hash(0), hash(1))
    }

    /// Of times only the ages count, and only up to where they change nothing any more.
    fn write_key(&self, hasher: &mut impl Hasher) {
        let rest = (self.served, self.latest, self.kills, self.stops, self.unreadable);
        (rest, &self.places, &self.fault).hash(hasher);
        for (at, server) in self.servers.iter().enumerate() {
            let left = |until: &Duration| until.checked_sub(self.now);
            (server.is_ahead, server.known).hash(hasher);
            server.orphaned_io.as_ref().map(left).hash(hasher);
            for (mark, until) in &server.orphaned_marks {
                (mark, left(until)).hash(hasher);
            }
            let Some(process) = &server.process else {
                continue;
            };
            let in_round = matches!(process.stage, Stage::Round { .. });
            let permit = process.permit.filter(|until| self.clock(at) < *until);
            let mark = process.reservation.as_ref();
            let mark = mark.and_then(|reservation| reservation.left(Duration::MAX)).map(plain);
            let is_held = mark.is_some_and(|mark| mark.is_held);
            let settled = (in_round && process.begun >= process.settled, left(&process.settled));
            let begun = in_round.then(|| age(self.now, process.begun, self.times.hold));
            let since = process.since.filter(|_| !is_held);
            let since = since.map(|since| age(self.now, since, self.times.patience));
            (&process.stage, process.is_stopping, mark, begun, since, settled).hash(hasher);
            (permit.as_ref().map(left), process.io.as_ref().map(left)).hash(hasher);
        }
    }

    fn clock(&self, at: usize) -> Duration {
        self.now + if self.servers[at].is_ahead { SECOND } else { Duration::ZERO }
    }

    /// The server that the records name under a number.
    fn named(&self, number: u64) -> usize {
        self.names[number as usize - 1]
    }

    /// What may still go wrong, and how often the records may change.
    fn rest(&self) -> usize {
        let faults = self.kills + self.stops + self.unreadable;
        usize::from(faults) + self.names.len() - self.latest as usize
    }

    /// It rises when a server hears of the records.
    fn heard(&self) -> u64 {
        self.servers.iter().map(|server| server.known).sum()
    }

    fn process(&mut self, at: usize) -> &mut Process {
        self.servers[at].process.as_mut().expect("only a process takes steps")
    }

    /// A second passes. `ahead` has a bit for each server's clock.
    fn pass(&mut self, ahead: u32) {
        self.now += SECOND;
        let now = self.now;
        for (at, server) in self.servers.iter_mut().enumerate() {
            server.is_ahead = ahead >> at & 1 == 1;
            server.orphaned_io = server.orphaned_io.filter(|until| *until >= now);
            server.orphaned_marks.retain(|(_, until)| *until >= now);
            if let Some(process) = &mut server.process {
                process.io = process.io.filter(|until| *until >= now);
            }
        }
    }

    /// A process starts and hears of the records as they were under `number`.
    fn start(&mut self, at: usize, number: u64, is_claimed: bool) {
        let now = self.clock(at);
        let settled = if is_claimed { now } else { now + self.times.in_kernel() };
        self.servers[at].process = Some(Process::new(settled));
        self.hear(at, number);
    }

    fn hear(&mut self, at: usize, number: u64) {
        self.servers[at].known = number;
        let (before, times) = (self.places[at], self.times);
        let is_named = self.named(number) == at;
        let process = self.process(at);
        if is_named {
            let settled = process.settled;
            process.permit = None;
            process.since = None;
            process.reservation = Some(Reservation::new(at, number, before, settled, times));
            process.stage = Stage::Idle;
        } else if process.reservation.is_some() {
            self.end_use(at);
        }
    }

    /// A server begins no I/O any more.
    fn end_use(&mut self, at: usize) {
        let process = self.process(at);
        process.permit = None;
        process.stage = Stage::Ending;
    }

    fn kill(&mut self, at: usize) {
        let until = self.now + IN_KERNEL;
        let server = &mut self.servers[at];
        let process = server.process.take().expect("only a process is killed");
        server.orphaned_io = server.orphaned_io.max(process.io);
        server.orphaned_marks.extend(process.writes().map(|mark| (mark, until)));
    }

    fn begin_io(&mut self, at: usize) {
        let number = self.servers[at].known;
        // Invariant 2.
        if number < self.served {
            self.fault = Some(format!("server {at} begins an I/O after a later one"));
        }
        self.served = self.served.max(number);
        self.process(at).io = Some(self.now + IN_KERNEL);
    }

    fn begin(&mut self, at: usize) {
        let now = self.clock(at);
        let process = self.process(at);
        let mark = plain(process.reservation().begin(now));
        process.begun = now;
        process.stage = Stage::Round { unwritten: Some(mark), read: Default::default() };
    }

    /// The mark that a process writes is on the NSD.
    fn land(&mut self, at: usize) {
        let process = self.process(at);
        let mark = process.writes().expect("a process writes a mark");
        let is_over = process.is_stopping;
        match &mut process.stage {
            Stage::Round { unwritten, .. } => *unwritten = None,
            Stage::Out | Stage::Idle | Stage::Ending | Stage::Leaving(_) => {
                process.stage = Stage::Out;
                process.reservation = None;
                process.since = None;
            }
        }
        self.places[at] = mark;
        if is_over {
            self.kill(at);
        }
    }

    fn read(&mut self, at: usize, other: usize) {
        self.note(at, other, Some(self.places[other]));
    }

    fn note(&mut self, at: usize, other: usize, mark: Option<Mark>) {
        if let Stage::Round { read, .. } = &mut self.process(at).stage {
            read[other] = Some(mark);
        }
    }

    fn end_round(&mut self, at: usize) {
        let (now, servers) = (self.clock(at), self.servers.len());
        let process = self.process(at);
        let Stage::Round { read, .. } = &process.stage else {
            return;
        };
        // The own place is not read.
        let marks: Vec<Option<Mark>> =
            read[..servers].iter().map(|mark| mark.unwrap_or_default()).collect();
        process.stage = Stage::Idle;
        if process.begun >= process.settled || !obeys(Rule::PatienceCountsFromALastingMark) {
            process.since.get_or_insert(now);
        }
        match process.reservation().judge(now, &marks) {
            Judged::Permit { until } => process.permit = Some(until),
            Judged::Waits { .. } => {}
            Judged::Lost { .. } => self.end_use(at),
        }
    }

    /// The I/O is done, and the server writes that it has left.
    fn leave(&mut self, at: usize, amid_io: bool) {
        let now = self.clock(at);
        let process = self.process(at);
        if let Some(mark) = process.reservation().left(now) {
            process.io = process.io.filter(|_| amid_io);
            process.stage = Stage::Leaving(plain(mark));
        }
    }

    fn has_permit(&self, at: usize) -> bool {
        let permit = self.servers[at].process.as_ref().and_then(|process| process.permit);
        permit.is_some_and(|until| self.clock(at) < until)
    }

    /// Invariants 1 and 2.
    fn judge(&self) -> Result<(), String> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let uses = |at: &usize| {
            let server = &self.servers[*at];
            let own = server.process.as_ref().and_then(|process| process.io);
            self.has_permit(*at) || own.or(server.orphaned_io).is_some()
        };
        let users: Vec<usize> = (0..self.servers.len()).filter(uses).collect();
        match users.len() {
            0 | 1 => Ok(()),
            _ => Err(format!("servers {users:?} use the NSD at once")),
        }
    }

    /// Invariant 3.
    fn come_to_rest(mut self) -> Result<(), String> {
        let named = self.named(self.latest);
        let ahead = (0..).zip(&self.servers);
        let ahead = ahead.fold(0, |mask, (at, server)| mask | u32::from(server.is_ahead) << at);
        for _ in 0..ROUNDS_MAX {
            for at in 0..self.servers.len() {
                while let Some((mark, _)) = self.servers[at].orphaned_marks.pop() {
                    self.places[at] = mark;
                }
                if self.servers[at].process.is_some() {
                    self.take_a_round(at);
                } else if at == named {
                    self.start(at, self.latest, false);
                }
            }
            if self.has_permit(named) {
                return Ok(());
            }
            self.pass(ahead);
        }
        Err(format!("server {named} gets no permit"))
    }

    /// A process hears of the newest records, and takes its steps to the end of a round.
    fn take_a_round(&mut self, at: usize) {
        let latest = self.latest;
        if self.process(at).writes().is_some() {
            self.land(at);
        }
        let server = &self.servers[at];
        if server.known < latest && server.process.as_ref().is_some_and(|it| !it.is_stopping) {
            self.hear(at, latest);
        }
        if self.is_at(at, &Stage::Idle) {
            self.begin(at);
            self.land(at);
        }
        if self.servers[at].process.is_some() {
            (0..self.servers.len()).for_each(|other| self.read(at, other));
            self.end_round(at);
        }
        if self.is_at(at, &Stage::Ending) {
            self.leave(at, false);
        }
    }

    fn is_at(&self, at: usize, stage: &Stage) -> bool {
        self.servers[at].process.as_ref().is_some_and(|process| process.stage == *stage)
    }
}

#[cfg(test)]
#[path = "reservation_model_test.rs"]
mod reservation_model_test;
