//! The three threads of a replica. The thread `replica` ends at a stop or a fault, the others when
//! nothing is handed to them any more.

use super::{Outcome, Shared, State};
use crate::core::{Batch, Committed, CopyOrder, Output, ReceivedPart};
use crate::entry::{Payload, Snapshot};
use crate::journal::Journal;
use crate::machine::{KeepingMachine, Machine, StateMachine};
use crate::message::{MESSAGE_BYTES_MAX, encode};
use crate::types::{Bytes, Position};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use strake_env::channel::{Receiver, Sender, channel};
use strake_env::thread::{Builder, JoinHandle};
use strake_proto::Term;

/// The core looks at the time so often in each heartbeat.
const TICKS_PER_HEARTBEAT: u32 = 4;

/// An order for the thread `replica-journal`.
enum Order {
    Write(Batch),
    /// Write everything anew, if this epoch is in force.
    Renew(u64),
}

/// The ways of the core's output to the other threads.
pub(super) struct Hands {
    orders: Sender<Order>,
    work: Sender<Work>,
}

/// What the thread `replica-apply` is to do.
enum Work {
    Install(Arc<Snapshot>),
    Apply(Vec<Committed>),
    /// The log is long: take a snapshot, or have the machine save.
    Shorten,
    Receive(ReceivedPart),
    Obey(CopyOrder),
}

/// Starts all three.
pub(super) fn start(
    shared: &Arc<Shared>,
    journal: Journal,
    machine: Machine,
    applied: Position,
) -> io::Result<Vec<JoinHandle<()>>> {
    let (orders, to_write) = channel();
    let (work, to_apply) = channel();
    let spawn =
        |name: &str, run: Box<dyn FnOnce() + Send>| Builder::new().name(name.to_owned()).spawn(run);
    let for_journal = Arc::clone(shared);
    let for_apply = Arc::clone(shared);
    let for_core = Arc::clone(shared);
    let journal = Box::new(move || write_all(&for_journal, journal, &to_write));
    let apply = Box::new(move || match machine {
        Machine::Carried(machine) => apply_all(&for_apply, machine, &to_apply),
        Machine::Keeping(machine) => drive_keeping(&for_apply, machine, applied, &to_apply),
    });
    let threads = vec![spawn("replica-journal", journal)?, spawn("replica-apply", apply)?];
    *shared.hands.lock() = Some(Hands { orders, work });
    let core = spawn("replica", Box::new(move || run_core(&for_core)));
    // Without this thread nobody would end the others.
    let core = core.inspect_err(|_| *shared.hands.lock() = None)?;
    Ok(threads.into_iter().chain([core]).collect())
}

/// Has the core look at the time, and hands on the outputs that callers leave to this thread.
fn run_core(shared: &Shared) {
    let tick = shared.config.heartbeat / TICKS_PER_HEARTBEAT;
    loop {
        let mut state = shared.state.lock();
        if !state.is_due && !state.is_stopping {
            let until = state.core.lingers_until();
            let lingers = until.map(|until| until.saturating_sub(shared.clock.monotonic()));
            let pause = lingers.map_or(tick, |lingers| lingers.min(tick));
            shared.work.wait_for(&mut state, pause.max(Duration::from_millis(1)));
        }
        let is_stopping = state.is_stopping;
        drop(state);
        let mut hands = shared.hands.lock();
        match hands.as_ref() {
            Some(hands) if !is_stopping => shared.step_once(hands),
            _ => {
                *hands = None;
                return;
            }
        }
    }
}

impl Shared {
    /// Takes the core's output once, and hands it on. If another thread is at it, that one sees to
    /// it. The thread `replica` goes on with what comes meanwhile, so no caller is kept.
    pub(super) fn step(&self) {
        match self.hands.try_lock().as_deref() {
            Some(Some(hands)) => self.step_once(hands),
            _ => return,
        }
        if self.state.lock().is_due {
            self.work.notify_one();
        }
    }

    fn step_once(&self, hands: &Hands) {
        let mut state = self.state.lock();
        if state.is_stopping {
            state.is_due = false;
            return;
        }
        state.is_due = false;
        state.core.tick(self.clock.monotonic());
        let output = state.core.output();
        let is_stable = state.core.stable() >= state.applied && !state.core.lacks();
        let takes_snapshot = is_stable && std::mem::take(&mut state.wants_snapshot);
        note_reads(&mut state, &output);
        let renews = state.renews.take();
        drop(state);
        if let Some(fault) = output.fault {
            return self.end(&fault.to_string());
        }
        self.hand_on(output, takes_snapshot, hands);
        if let Some(epoch) = renews {
            let _ = hands.orders.send(Order::Renew(epoch));
        }
        self.done.notify_all();
    }

    /// The receivers are there for as long as their threads run. A thread that has ended has said
    /// why.
    fn hand_on(&self, output: Output, takes_snapshot: bool, hands: &Hands) {
        if let Some(batch) = output.persist {
            let _ = hands.orders.send(Order::Write(batch));
        }
        for envelope in output.send {
            self.transport.send(envelope.to, encode(self.cluster, &envelope));
        }
        if let Some(snapshot) = output.install {
            let _ = hands.work.send(Work::Install(snapshot));
        }
        if !output.committed.is_empty() {
            let _ = hands.work.send(Work::Apply(output.committed));
        }
        let received = output.received.into_iter().map(Work::Receive);
        for next in received.chain(output.orders.into_iter().map(Work::Obey)) {
            let _ = hands.work.send(next);
        }
        if takes_snapshot {
            let _ = hands.work.send(Work::Shorten);
        }
    }
}

fn note_reads(state: &mut State, output: &Output) {
    for (number, position) in &output.reads {
        if let Some(read) = state.reads.get_mut(number) {
            *read = Some(*position);
        }
    }
}

/// Writes steps. All that wait share one sync.
fn write_all(shared: &Shared, mut journal: Journal, orders: &Receiver<Order>) {
    while let Ok(first) = orders.recv() {
        let mut waiting = vec![first];
        waiting.extend(std::iter::from_fn(|| orders.try_recv().ok()));
        let batches = waiting.iter().filter_map(|order| match order {
            Order::Write(batch) => Some(batch),
            Order::Renew(_) => None,
        });
        let is_synced = batches.clone().any(|batch| batch.sync);
        let ticket = batches.map(|batch| batch.ticket).max();
        let mut renewed = None;
        let last = waiting.len() - 1;
        let mut obey = |(at, order): (usize, &Order)| match order {
            Order::Write(batch) if at == last && is_synced => journal.write_and_sync(batch),
            Order::Write(batch) => journal.write(batch),
            Order::Renew(epoch) => {
                renewed = journal.renew(*epoch)?.then_some(*epoch).or(renewed);
                Ok(())
            }
        };
        let written = waiting.iter().enumerate().try_for_each(&mut obey);
        // Nothing is left to do for it, as a rule.
        let outcome = written.and_then(|()| if is_synced { journal.sync() } else { Ok(()) });
        if let Err(fault) = outcome {
            return shared.end(&fault.to_string());
        }
        let now = shared.clock.monotonic();
        let mut state = shared.state.lock();
        state.span = journal.span();
        state.renewed = renewed.or(state.renewed);
        if let Some(ticket) = ticket {
            state.core.persisted(now, ticket, is_synced);
        }
        state.is_due = true;
        drop(state);
        // This also tells those who wait for a journal that is written anew.
        shared.step();
    }
}

/// Applies entries, and takes snapshots when the log has grown.
fn apply_all(shared: &Shared, mut machine: Box<dyn StateMachine>, works: &Receiver<Work>) {
    let mut applied = Position::START;
    while let Ok(work) = works.recv() {
        match work {
            Work::Install(snapshot) => {
                if let Err(reason) = machine.install(&snapshot.bytes) {
                    return shared.end(&format!("the snapshot cannot be installed: {reason}"));
                }
                applied = snapshot.stamp.position;
                // It does not say which entries it has.
                note_applied(shared, applied, Vec::new(), || Outcome::Skipped);
            }
            Work::Apply(committed) => {
                let mut answers = Vec::new();
                for Committed { entry, applies } in committed {
                    if entry.position <= applied {
                        continue;
                    }
                    assert_eq!(entry.position, applied.next(), "entries come in order");
                    applied = entry.position;
                    if let (Payload::Data { bytes, .. }, true) = (&entry.payload, applies) {
                        let answer = machine.apply(entry.position, bytes);
                        answers.push((entry.position, entry.term, answer));
                    }
                }
                // Other entries of these places are gone for good.
                note_applied(shared, applied, answers, || Outcome::Replaced);
            }
            Work::Receive(_) | Work::Obey(_) => {}
            Work::Shorten => {
                let bytes = machine.snapshot();
                if bytes.len() > shared.config.snapshot_bytes_max {
                    return shared.end("the state machine's snapshot is larger than the limit");
                }
                let mut state = shared.state.lock();
                if !state.core.snapshot_taken(applied, bytes.into()) {
                    state.wants_snapshot = true;
                    state.core.sync();
                }
                shared.wake(&mut state);
            }
        }
    }
}

/// Drives a machine that keeps its own state.
fn drive_keeping(
    shared: &Shared,
    mut machine: Box<dyn KeepingMachine>,
    mut applied: Position,
    works: &Receiver<Work>,
) {
    while let Ok(work) = works.recv() {
        let outcome = match work {
            Work::Install(_) => Ok(()),
            Work::Apply(committed) => apply_kept(shared, machine.as_mut(), &mut applied, committed),
            Work::Shorten => machine.save().map(|position| shorten(shared, position)),
            Work::Receive(part) => take_part(shared, machine.as_mut(), &mut applied, &part),
            Work::Obey(order) => obey(shared, machine.as_mut(), order),
        };
        if let Err(reason) = outcome {
            return shared.end(&format!("the state machine has failed: {reason}"));
        }
    }
}

fn apply_kept(
    shared: &Shared,
    machine: &mut dyn KeepingMachine,
    applied: &mut Position,
    committed: Vec<Committed>,
) -> Result<(), String> {
    let mut answers = Vec::new();
    for Committed { entry, applies } in committed {
        assert_eq!(entry.position, applied.next(), "entries come in order");
        *applied = entry.position;
        match &entry.payload {
            Payload::Data { bytes, .. } if applies => {
                let answer = machine.apply(entry.position, Some(bytes))?;
                answers.push((entry.position, entry.term, answer));
            }
            _ => drop(machine.apply(entry.position, None)?),
        }
    }
    note_applied(shared, *applied, answers, || Outcome::Replaced);
    Ok(())
}

/// The machine has everything up to a position durable.
fn shorten(shared: &Shared, position: Position) {
    let mut state = shared.state.lock();
    state.core.snapshot_taken(position, Bytes::from(&[][..]));
    // The thread `replica` asks again with its next tick.
    state.wants_snapshot = state.core.log_bytes() >= shared.config.log_bytes_max / 2;
}

fn take_part(
    shared: &Shared,
    machine: &mut dyn KeepingMachine,
    applied: &mut Position,
    part: &ReceivedPart,
) -> Result<(), String> {
    machine.take_part(part.number, &part.bytes, part.whole)?;
    let now = shared.clock.monotonic();
    let mut state = shared.state.lock();
    state.core.copy_taken(now, part.copy, part.number);
    shared.wake(&mut state);
    drop(state);
    if let Some(position) = part.whole {
        *applied = position;
        // It does not say which entries it has.
        note_applied(shared, position, Vec::new(), || Outcome::Skipped);
    }
    Ok(())
}

fn obey(shared: &Shared, machine: &mut dyn KeepingMachine, order: CopyOrder) -> Result<(), String> {
    let CopyOrder::Make { to, copy, number } = order else {
        let CopyOrder::End { to } = order else { return Ok(()) };
        machine.end_copy(to);
        return Ok(());
    };
    let part = machine.make_part(to, copy, number, shared.config.part_bytes)?;
    let is_long = |bytes: &[u8]| bytes.len() > MESSAGE_BYTES_MAX / 2;
    if part.as_ref().is_some_and(|part| is_long(&part.bytes)) {
        return Err("it has made a part that no message takes".to_owned());
    }
    let mut state = shared.state.lock();
    state.core.copy_made(to, copy, number, part.map(|part| (part.bytes.into(), part.whole)));
    shared.wake(&mut state);
    Ok(())
}

/// Answers those who wait, and asks for a snapshot if it is time. Proposals up to here that have
/// no answer have ended in the `other` way.
fn note_applied(
    shared: &Shared,
    applied: Position,
    answers: Vec<(Position, Term, Vec<u8>)>,
    other: impl Fn() -> Outcome,
) {
    let mut state = shared.state.lock();
    state.applied = applied;
    for (position, term, answer) in answers {
        if let Some(outcome) = state.proposals.get_mut(&(position, term)) {
            *outcome = Some(Outcome::Applied(answer));
        }
    }
    let end = (applied, Term(u64::MAX));
    for outcome in state.proposals.range_mut(..=end).map(|(_, outcome)| outcome) {
        outcome.get_or_insert_with(&other);
    }
    let is_long = state.core.log_bytes() >= shared.config.log_bytes_max / 2;
    if is_long && !state.wants_snapshot {
        state.wants_snapshot = true;
        state.core.sync();
        shared.wake(&mut state);
    }
    drop(state);
    shared.done.notify_all();
}
