//! The table beside a slow one that has a mode for each byte and owner, and what random requests do
//! not show.

use super::*;
use strake_env::Rng;
use strake_env::rng::{test_scale, test_seeds};

const BYTES: u64 = 10;
const TERM: Term = Term(4);

type Bytes = [Option<Mode>; BYTES as usize];

/// POSIX locks of one file, byte by byte; each owner waits for one thing at a time.
#[derive(Default)]
struct Slow {
    held: BTreeMap<Who, Bytes>,
    /// In order.
    waiting: Vec<(Who, RequestId, LockWant)>,
}

fn places(range: ByteRange) -> std::ops::Range<usize> {
    range.from as usize..range.to.min(BYTES) as usize
}

impl Slow {
    fn holders(&self, who: Who, want: &LockWant) -> Vec<Who> {
        let Some(mode) = want.mode else { return Vec::new() };
        let others =
            self.held.iter().filter(|(other, _)| **other != who && other.1.kind == who.1.kind);
        let conflicts = others.filter(|(_, bytes)| {
            bytes[places(want.range)].iter().flatten().any(|held| !held.agrees(mode))
        });
        conflicts.map(|(other, _)| *other).collect()
    }

    /// Everybody for whom `who` waits, through any number of others.
    fn awaited(&self, who: Who, in_order: bool) -> BTreeSet<Who> {
        let mut all = BTreeSet::new();
        loop {
            let before = all.len();
            for (at, (other, _, want)) in self.waiting.iter().enumerate() {
                if *other == who || all.contains(other) {
                    all.extend(self.holders(*other, want));
                    if in_order {
                        all.extend(self.ahead(at));
                    }
                }
            }
            if all.len() == before {
                return all;
            }
        }
    }

    /// Owners of earlier requests for what conflicts.
    fn ahead(&self, at: usize) -> Vec<Who> {
        let (who, _, want) = &self.waiting[at];
        let earlier = self.waiting[..at].iter().filter(|(other, _, theirs)| {
            let modes = want.mode.zip(theirs.mode);
            let common = places(want.range).any(|byte| places(theirs.range).contains(&byte));
            other != who
                && other.1.kind == who.1.kind
                && common
                && modes.is_some_and(|(one, two)| !one.agrees(two))
        });
        earlier.map(|(other, _, _)| *other).collect()
    }

    fn put(&mut self, who: Who, want: &LockWant) {
        self.held.entry(who).or_default()[places(want.range)].fill(want.mode);
    }

    /// Who has what it waits for by now.
    fn settle(&mut self, answers: &mut Vec<(ClientId, RequestId, LockOutcome)>) {
        let free = (0..self.waiting.len()).find(|at| {
            let (who, _, want) = &self.waiting[*at];
            let mut ahead = self.ahead(*at).into_iter();
            self.holders(*who, want).is_empty()
                && ahead.all(|other| self.awaited(other, true).contains(who))
        });
        let Some(at) = free else { return };
        let (who, request, want) = self.waiting.remove(at);
        self.put(who, &want);
        answers.push((who.0, request, LockOutcome::Granted));
        self.settle(answers);
    }

    fn ask(
        &mut self,
        client: ClientId,
        request: RequestId,
        op: LockOp,
    ) -> Vec<(ClientId, RequestId, LockOutcome)> {
        let (want, who) = (*op.want(), (client, op.want().owner));
        let mut answers = Vec::new();
        let mut holders = self.holders(who, &want);
        let is_flock = who.1.kind == LockKind::Flock;
        if is_flock && op.changes() && want.mode == WRITE {
            let bytes = self.held.entry(who).or_default();
            if bytes.contains(&READ) {
                *bytes = Bytes::default();
            }
        }
        let outcome = match op {
            LockOp::Test(_) if holders.is_empty() => Some(LockOutcome::Free),
            LockOp::Test(_) => Some(self.first_in_the_way(who, &want)),
            _ if want.mode.is_none() => Some(LockOutcome::Granted),
            LockOp::Set(_) if holders.is_empty() => Some(LockOutcome::Granted),
            LockOp::Set(_) => Some(LockOutcome::WouldBlock),
            _ if !is_flock
                && holders.drain(..).any(|other| self.awaited(other, false).contains(&who)) =>
            {
                Some(LockOutcome::Deadlock)
            }
            _ => None,
        };
        match outcome {
            Some(outcome) => {
                if op.changes() && outcome == LockOutcome::Granted {
                    self.put(who, &want);
                }
                answers.push((client, request, outcome));
            }
            None => self.waiting.push((who, request, want)),
        }
        self.settle(&mut answers);
        answers
    }

    fn first_in_the_way(&self, who: Who, want: &LockWant) -> LockOutcome {
        let mode = want.mode.expect("a test has one");
        let mut found: Option<(ByteRange, Mode)> = None;
        for (other, bytes) in
            self.held.iter().filter(|(other, _)| **other != who && other.1.kind == who.1.kind)
        {
            let mut from = 0;
            while from < bytes.len() {
                let to =
                    (from..bytes.len()).find(|at| bytes[*at] != bytes[from]).unwrap_or(bytes.len());
                let range = ByteRange { from: from as u64, to: to as u64 };
                let is_in_the_way = bytes[from].is_some_and(|held| !held.agrees(mode));
                if is_in_the_way
                    && range.overlaps(want.range)
                    && found.is_none_or(|(first, _)| range.from < first.from)
                {
                    found = bytes[from].map(|mode| (range, mode));
                }
                from = to;
                let _ = other;
            }
        }
        let (range, mode) = found.expect("somebody is in the way");
        LockOutcome::Held { range, mode, pid: 0 }
    }
}

fn owner(kind: LockKind, id: u64) -> LockOwner {
    LockOwner { kind, id }
}

fn ask(table: &mut LockTable, client: u64, request: u64, op: LockOp) -> Vec<Message> {
    let request = RequestId(request);
    let message = LockRequest::Do { request, below: request, op };
    let messages = table.receive(ClientId(client), TERM, message).expect("it is sound");
    table.check();
    messages
}

/// The outcomes in messages, without repetitions of what waits.
fn outcomes(messages: &[Message]) -> Vec<(ClientId, RequestId, LockOutcome)> {
    let answers = messages.iter().filter_map(|(client, reply)| match reply {
        LockReply::Answer { request, outcome, .. } => Some((*client, *request, *outcome)),
        _ => None,
    });
    answers.collect()
}

#[test]
fn the_table_does_what_a_list_of_bytes_does() {
    let mut seen = BTreeSet::new();
    for seed in test_seeds(0, 200 * test_scale()) {
        let mut rng = Rng::new(seed);
        let mut table = LockTable::new(TERM, &[]);
        (1..=4).for_each(|client| table.join(ClientId(client)));
        let mut slow = Slow::default();
        for request in 0..400 {
            let client = 1 + rng.below(4);
            let kind = if rng.one_in(4) { LockKind::Flock } else { LockKind::Posix };
            let who = (ClientId(client), owner(kind, 0));
            let is_waiting = slow.waiting.iter().any(|(other, _, _)| *other == who);
            let from = rng.below(BYTES);
            let part = ByteRange { from, to: from + 1 + rng.below(BYTES - from) };
            // All that the slow one has: it stands for a whole file.
            let range = if kind == LockKind::Flock { ByteRange::ALL } else { part };
            let mode = [Some(Mode::Shared), Some(Mode::Exclusive), None][rng.index(3)];
            // A program that waits can only be unlocked by another of its threads.
            let mode = if is_waiting { None } else { mode };
            let want = LockWant { ino: Ino(1), owner: who.1, range, mode, pid: 3 };
            let op = match rng.below(5) {
                0 if mode.is_some() && kind == LockKind::Posix => LockOp::Test(want),
                1 => LockOp::Set(want),
                _ => LockOp::SetWaiting(want),
            };
            let expected = slow.ask(who.0, RequestId(request), op);
            let found = outcomes(&ask(&mut table, client, request, op));
            assert_eq!(found, expected, "STRAKE_SEED={seed}, request {request}: {op:?}");
            seen.extend(found.into_iter().map(|(_, _, outcome)| outcome));
            for (who, bytes) in &slow.held {
                let mut held = Bytes::default();
                for lock in table.held(who.0, Ino(1), who.1) {
                    held[places(lock.range)].fill(Some(lock.mode));
                }
                assert_eq!(held, *bytes, "STRAKE_SEED={seed}, request {request}: {who:?}");
            }
        }
    }
    for wanted in [LockOutcome::WouldBlock, LockOutcome::Deadlock, LockOutcome::Free] {
        assert!(seen.contains(&wanted), "no request came out as {wanted:?}");
    }
}

fn posix(client_owner: u64, from: u64, to: u64, mode: Option<Mode>) -> LockWant {
    let range = ByteRange { from, to };
    LockWant { ino: Ino(1), owner: owner(LockKind::Posix, client_owner), range, mode, pid: 9 }
}

fn table() -> LockTable {
    let mut table = LockTable::new(TERM, &[]);
    (1..=3).for_each(|client| table.join(ClientId(client)));
    table
}

const WRITE: Option<Mode> = Some(Mode::Exclusive);
const READ: Option<Mode> = Some(Mode::Shared);

#[test]
fn a_test_names_processes_of_the_same_client_only() {
    let mut table = table();
    ask(&mut table, 1, 0, LockOp::Set(posix(1, 5, 9, WRITE)));
    let test = LockOp::Test(posix(2, 0, 7, READ));
    let range = ByteRange { from: 5, to: 9 };
    for (client, pid) in [(1, 9), (2, 0)] {
        let found = outcomes(&ask(&mut table, client, 10, test));
        let held = LockOutcome::Held { range, mode: Mode::Exclusive, pid };
        assert_eq!(found, [(ClientId(client), RequestId(10), held)]);
    }
}

#[test]
fn two_readers_that_both_want_to_write_are_a_circle() {
    let mut table = table();
    for client in [1, 2] {
        ask(&mut table, client, 0, LockOp::Set(posix(1, 0, 4, READ)));
    }
    assert_eq!(outcomes(&ask(&mut table, 1, 1, LockOp::SetWaiting(posix(1, 0, 4, WRITE)))), []);
    let second = outcomes(&ask(&mut table, 2, 1, LockOp::SetWaiting(posix(1, 0, 4, WRITE))));
    assert_eq!(second, [(ClientId(2), RequestId(1), LockOutcome::Deadlock)]);
    // The first one has kept what it had.
    assert_eq!(table.held(ClientId(1), Ino(1), owner(LockKind::Posix, 1)).len(), 1);
    let unlocked = outcomes(&ask(&mut table, 2, 2, LockOp::Set(posix(1, 0, 4, None))));
    assert!(unlocked.contains(&(ClientId(1), RequestId(1), LockOutcome::Granted)));
}

#[test]
fn a_reader_that_the_writer_ahead_waits_for_does_not_wait_behind_it() {
    let mut table = table();
    ask(&mut table, 1, 0, LockOp::Set(posix(1, 0, 4, READ)));
    ask(&mut table, 2, 0, LockOp::SetWaiting(posix(1, 0, 8, WRITE)));
    let more = outcomes(&ask(&mut table, 1, 1, LockOp::SetWaiting(posix(1, 2, 6, READ))));
    assert_eq!(more, [(ClientId(1), RequestId(1), LockOutcome::Granted)]);
    let behind = outcomes(&ask(&mut table, 3, 0, LockOp::SetWaiting(posix(1, 2, 6, READ))));
    assert_eq!(behind, [], "the third one is not waited for");
    let at_once = outcomes(&ask(&mut table, 3, 1, LockOp::Set(posix(1, 2, 6, READ))));
    let granted = |request| (ClientId(3), RequestId(request), LockOutcome::Granted);
    // Nobody holds it; and the writer waits for the third one now.
    assert_eq!(at_once, [granted(1), granted(0)]);
}

#[test]
fn the_death_of_a_client_frees_its_locks_and_ends_its_waits() {
    let mut table = table();
    ask(&mut table, 1, 0, LockOp::Set(posix(1, 0, 4, WRITE)));
    ask(&mut table, 2, 0, LockOp::SetWaiting(posix(1, 0, 4, WRITE)));
    ask(&mut table, 3, 0, LockOp::SetWaiting(posix(1, 0, 4, WRITE)));
    let wait = table.waits()[0];
    assert_eq!((wait.client, wait.holder), (ClientId(2), ClientId(1)));
    assert_eq!(outcomes(&table.dead(ClientId(2))), []);
    let free = outcomes(&table.dead(ClientId(1)));
    assert_eq!(free, [(ClientId(3), RequestId(0), LockOutcome::Granted)]);
    table.check();
    let gone = LockRequest::Cancel { request: RequestId(0) };
    assert_eq!(table.receive(ClientId(1), TERM, gone), Err(Refusal::Unknown));
}

#[test]
fn a_cancel_and_a_grant_have_one_outcome() {
    let mut table = table();
    let cancel = |table: &mut LockTable, request| {
        let cancel = LockRequest::Cancel { request: RequestId(request) };
        outcomes(&table.receive(ClientId(2), TERM, cancel).expect("it is sound"))
    };
    ask(&mut table, 1, 0, LockOp::Set(posix(1, 0, 4, WRITE)));
    ask(&mut table, 2, 0, LockOp::SetWaiting(posix(1, 0, 4, WRITE)));
    ask(&mut table, 1, 1, LockOp::Set(posix(1, 0, 4, None)));
    for _ in 0..2 {
        let late = cancel(&mut table, 0);
        assert_eq!(late, [(ClientId(2), RequestId(0), LockOutcome::Granted)]);
    }
    // A cancel that overtakes its request.
    for _ in 0..2 {
        let early = cancel(&mut table, 5);
        assert_eq!(early, [(ClientId(2), RequestId(5), LockOutcome::Cancelled)]);
    }
    let then = outcomes(&ask(&mut table, 2, 5, LockOp::SetWaiting(posix(2, 6, 8, WRITE))));
    assert_eq!(then, [(ClientId(2), RequestId(5), LockOutcome::Cancelled)]);
}

#[test]
fn what_waited_for_a_new_leader_is_looked_at_in_order() {
    let clients = [ClientId(1), ClientId(2)];
    let mut table = LockTable::new(TERM, &clients);
    let own = owner(LockKind::Posix, 1);
    let say = |table: &mut LockTable, client, message| {
        let messages = table.receive(client, TERM, message).expect("it is sound");
        table.check();
        outcomes(&messages)
    };
    // Each holds a byte and waits for that of the other.
    for (at, client) in clients.into_iter().enumerate() {
        let from = 1 - at as u64;
        let op = LockOp::SetWaiting(posix(1, from, from + 1, WRITE));
        let (request, below) = (RequestId(7), RequestId(7));
        assert_eq!(say(&mut table, client, LockRequest::Do { request, below, op }), []);
    }
    let mut last = Vec::new();
    for (at, client) in clients.into_iter().enumerate() {
        let range = ByteRange { from: at as u64, to: at as u64 + 1 };
        let locks = vec![LockHeld { range, mode: Mode::Exclusive, pid: 1 }];
        let part = LockRequest::Reassert { part: 0, ino: Ino(1), owner: own, locks };
        assert_eq!(say(&mut table, client, part), []);
        last = say(&mut table, client, LockRequest::Reasserted { parts: 1 });
    }
    assert!(!table.is_in_grace());
    assert_eq!(last, [(ClientId(2), RequestId(7), LockOutcome::Deadlock)], "the later one");
    assert_eq!(table.waits().len(), 1);
}

#[test]
fn two_clients_cannot_reassert_one_lock() {
    let clients = [ClientId(1), ClientId(2)];
    let mut table = LockTable::new(TERM, &clients);
    let range = ByteRange { from: 0, to: 5 };
    let (ino, owner) = (Ino(1), owner(LockKind::Posix, 1));
    let part = |mode| {
        let locks = vec![LockHeld { range, mode, pid: 1 }];
        LockRequest::Reassert { part: 0, ino, owner, locks }
    };
    table.receive(clients[0], TERM, part(Mode::Shared)).expect("the first one");
    let refused = table.receive(clients[1], TERM, part(Mode::Exclusive));
    assert_eq!(refused, Err(Refusal::Conflict));
    table.receive(clients[1], TERM, part(Mode::Shared)).expect("they agree");
    table.check();
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut table = table();
    let part = LockWant { owner: owner(LockKind::Flock, 1), ..posix(1, 0, 4, WRITE) };
    for op in [LockOp::Set(part), LockOp::Test(posix(1, 0, 4, None))] {
        let message = LockRequest::Do { request: RequestId(0), below: RequestId(0), op };
        assert_eq!(table.receive(ClientId(1), TERM, message), Err(Refusal::Invalid));
    }
    // Too many pieces: what unlocks is taken all the same.
    let mut request = 0;
    let mut set = |table: &mut LockTable, from: u64, to: u64, mode| {
        request += 1;
        outcomes(&ask_unchecked(table, request, LockOp::Set(posix(1, from, to, mode))))[0].2
    };
    for piece in 0..PIECES_MAX as u64 {
        assert_eq!(set(&mut table, 3 * piece, 3 * piece + 2, READ), LockOutcome::Granted);
    }
    assert_eq!(set(&mut table, u64::from(u32::MAX), ByteRange::END, READ), LockOutcome::Full);
    assert_eq!(set(&mut table, 0, 1, None), LockOutcome::Granted);
    assert_eq!(set(&mut table, 1, ByteRange::END, None), LockOutcome::Granted);
    assert_eq!(set(&mut table, 7, 8, READ), LockOutcome::Granted);
    table.check();
}

fn ask_unchecked(table: &mut LockTable, request: u64, op: LockOp) -> Vec<Message> {
    let request = RequestId(request);
    let message = LockRequest::Do { request, below: request, op };
    table.receive(ClientId(1), TERM, message).expect("it is sound")
}
