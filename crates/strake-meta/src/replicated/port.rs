//! The metadata as the leader of one term has it.

use super::ReplicatedMeta;
use super::rule::Rule;
use crate::ahead::Ahead;
use crate::log_entry::{LogEntryRef, encode_entry};
use crate::replicated::node_store::NodeStore;
use crate::store::moves::{self, Walked};
use crate::store::scrub::{Ending, is_damage};
use crate::store::space::{self, PART_FOR_NAMES, part_for};
use crate::{check, machine as state_machine, query};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use strake_env::Stop;
use strake_proto::meta::{
    CountedAnswer, CountedEntry, Counts, MetaCheckReply, MetaEntry, MetaOp, MetaPort, MetaQuery,
    MetaReply,
};
use strake_proto::{Error, ErrorKind, FeatureLevel, Result, Term};
use strake_replica::core::Refusal;
use strake_replica::replica::Failure;
use strake_replica::types::{Position, Stamp};

/// How long a change waits before it looks again whether the log has room.
const ROOM_STEP: Duration = Duration::from_millis(10);
/// So many checkpoints are made for a change that finds no space.
const CHECKPOINTS_MAX: usize = 2;

/// See the file's head.
pub struct TermPort {
    pub(super) meta: Arc<ReplicatedMeta>,
    pub(super) term: Term,
}

/// How an attempt to apply a change ended.
enum Tried {
    Answered(CountedAnswer),
    /// The log has no room until a majority has more of it.
    LogIsFull,
    /// A checkpoint may show that there is space.
    LacksSpace,
}

impl TermPort {
    /// The term. Another one is like another start of a server: clients replay.
    pub fn term(&self) -> Term {
        self.term
    }

    /// Where the next entry is, if the term goes on.
    fn next(&self) -> Result<Stamp> {
        if self.meta.fault.lock().is_some() {
            return Err(gone());
        }
        let is_same = |next: &Stamp| {
            next.term == self.term || !self.meta.options.rules.obeys(Rule::PortsEndWithTheirTerm)
        };
        self.meta.replica.next().filter(is_same).ok_or_else(gone)
    }

    /// An answer, if this node was the leader for sure until after it was there.
    fn under_lease<T>(&self, answer: Result<T>) -> Result<T> {
        let rules = self.meta.options.rules;
        if self.meta.replica.lease() || !rules.obeys(Rule::LeasesGuardAnswers) {
            return answer;
        }
        Err(gone())
    }

    /// If the store cannot be read, another node is to lead. Its store may be sound.
    fn unless_damaged<T>(&self, answer: Result<T>) -> Result<T> {
        match answer {
            Err(fault) if is_damage(&fault) && self.meta.has_others() => {
                self.meta.give_way(fault);
                Err(gone())
            }
            answer => answer,
        }
    }

    /// Decides on an entry and proposes it, after `made` checkpoints were made for it.
    fn try_apply(
        &self,
        entry: LogEntryRef<'_>,
        bytes: &[u8],
        made: usize,
        walked: &Walked<'_>,
    ) -> Result<Tried> {
        let mut ahead = self.meta.ahead.write();
        if let LogEntryRef::Counted(counted) = entry
            && let Some(error) = self.meta.refusals.lock().of(counted)
        {
            return Err(error.clone());
        }
        let moves = self.meta.moves.load(Ordering::Relaxed);
        let is_move = moves::is_move(&*ahead, &entry.entry().op);
        // Entries that no one decides on may come in between. Then the place is another one.
        loop {
            let stamp = self.next()?;
            let known = walked.known(moves);
            let decided = ahead.decide_knowing(bytes, stamp.position.0, known);
            let decided = self.unless_damaged(decided);
            let is_new = decided.as_ref().is_ok_and(|(_, changes)| !changes.is_empty());
            // A log that takes the entry proves the leader. All other answers need the lease.
            let (answer, changes) = if is_new { decided } else { self.under_lease(decided) }?;
            if changes.is_empty() {
                return Ok(Tried::Answered(answer));
            }
            let part = answer.outcome.as_ref().map_or(0, |_| part_for(&entry.entry().op));
            if !self.has_space(part, bytes.len(), &ahead, made)? {
                return Ok(Tried::LacksSpace);
            }
            let level = (self.meta.options.level_of)(&entry.entry().op).in_log();
            let is_urgent = is_urgent(&entry.entry().op);
            match self.meta.replica.propose_at(stamp, level, bytes, is_urgent) {
                Ok(()) => {
                    ahead.add(bytes, stamp.position.0, changes);
                    self.meta.moves.fetch_add(u64::from(is_move), Ordering::Relaxed);
                    return Ok(Tried::Answered(answer));
                }
                Err(Failure::Refused(Refusal::Moved)) => {}
                Err(Failure::Refused(Refusal::Busy)) => return Ok(Tried::LogIsFull),
                Err(Failure::Refused(Refusal::AboveLevel { needed, level })) => {
                    return Err(above(needed, level));
                }
                Err(Failure::Refused(Refusal::TooLarge)) => return Err(ErrorKind::TooBig.into()),
                Err(failure) => return Err(unreachable(entry, &failure)),
            }
        }
    }

    /// Whether the store may take an entry, as in `store/space.rs`. False asks for a checkpoint.
    ///
    /// # Errors
    /// `NoSpace`.
    fn has_space(
        &self,
        part: u64,
        bytes: usize,
        ahead: &Ahead<NodeStore>,
        made: usize,
    ) -> Result<bool> {
        let (kv, is_full) = (&self.meta.kv, self.meta.saver.is_full());
        let tail = usize::try_from(ahead.tail_bytes()).unwrap_or(usize::MAX);
        let may_grow = || space::may_grow(kv, bytes.saturating_add(tail), part);
        if part > 0 && (is_full || !may_grow()) {
            // Records removed lately count until a checkpoint.
            if !is_full && made == 0 && kv.overlay_bytes() > 0 {
                return Ok(false);
            }
            let detail = "no space for more metadata: delete something, or add disks";
            return Err(Error::new(ErrorKind::NoSpace, detail));
        }
        Ok(is_full || made >= CHECKPOINTS_MAX || !kv.is_due(2 + made as u64))
    }

    fn apply_logged(&self, entry: LogEntryRef<'_>) -> Result<CountedAnswer> {
        let bytes = encode_entry(entry)?;
        let (clock, waits) = (&self.meta.options.clock, &self.meta.options.waits);
        let wait_max = self.meta.options.wait_max;
        let look = |see: &mut dyn FnMut(&dyn strake_store::KvRead, u64)| {
            let ahead = self.meta.ahead.read();
            see(&*ahead, self.meta.moves.load(Ordering::Relaxed));
        };
        let walked = moves::walk_before(&entry.entry().op, &self.meta.moving, wait_max, &look)?;
        let (mut made, mut end, mut wait) = (0, None, None);
        let outcome = loop {
            match self.try_apply(entry, &bytes, made, &walked) {
                Ok(Tried::Answered(answer)) => {
                    if is_urgent(&entry.entry().op) {
                        self.meta.replica.hurry();
                    }
                    break Ok(answer);
                }
                Err(error) => break Err(error),
                Ok(Tried::LacksSpace) => {
                    made += 1;
                    let wait = waits.begin_wait("metadata space", "waits for a checkpoint");
                    let saved = self.meta.saver.save_now();
                    waits.end_wait(wait);
                    if let Err(error) = saved {
                        break self.unless_damaged(Err(error));
                    }
                }
                Ok(Tried::LogIsFull) => {
                    let end = *end.get_or_insert_with(|| clock.monotonic() + wait_max);
                    if clock.monotonic() >= end {
                        break Err(gone());
                    }
                    let detail = "waits until a majority has it";
                    wait.get_or_insert_with(|| waits.begin_wait("metadata log full", detail));
                    clock.sleep(ROOM_STEP);
                }
            }
        };
        wait.into_iter().for_each(|wait| waits.end_wait(wait));
        outcome
    }

    /// The records as they are at one moment.
    fn view(&self) -> Result<Ahead<NodeStore>> {
        let ahead = self.meta.ahead.read();
        self.next()?;
        Ok(ahead.over(ahead.base().view()))
    }

    /// Checks all records as they are at one moment. Everything else goes on meanwhile.
    fn check(&self, stop: &Stop) -> Result<MetaCheckReply> {
        let Some(_alone) = self.meta.checking.try_lock() else {
            let detail = "another check of the metadata is under way: try again when it has ended";
            return Err(Error::new(ErrorKind::Busy, detail));
        };
        let view = self.view()?;
        let checked = check::check(&Ending { kv: &view, stop });
        self.under_lease(self.unless_damaged(checked))
    }

    fn add_space(&self, counts: &mut Counts) {
        counts.metadata_bytes = self.meta.kv.weight();
        let free = || space::free(&self.meta.kv, PART_FOR_NAMES);
        counts.metadata_free = if self.meta.saver.is_full() { 0 } else { free() };
    }
}

/// Whether a sync follows such a change at once, as a rule, and somebody waits for it: a hardened
/// write, or the times of a file that was overwritten. The other replicas may have it by then.
fn is_urgent(op: &MetaOp) -> bool {
    match op {
        MetaOp::Harden { .. } => true,
        MetaOp::Update { data: None, allocated_delta: 0, mtime, ctime, .. } => {
            mtime.is_some() || ctime.is_some()
        }
        _ => false,
    }
}

impl MetaPort for TermPort {
    fn query(&self, query: &MetaQuery) -> Result<MetaReply> {
        match query {
            // Each copy is scrubbed with the NSD that it is on ([`ReplicatedMeta::scrub`]).
            MetaQuery::ScrubCopy { .. } => return Ok(MetaReply::CopyScrubbed(None)),
            MetaQuery::Check => return self.check(&Stop::default()).map(MetaReply::Checked),
            MetaQuery::CheckAs { number } => {
                let check = |stop: &Stop| self.check(stop);
                return self.meta.stops.run(*number, check).map(MetaReply::Checked);
            }
            MetaQuery::EndCheck { number } => {
                self.meta.stops.end(*number);
                return Ok(MetaReply::Done);
            }
            _ => {}
        }
        let mut reply = {
            let ahead = self.meta.ahead.read();
            self.next()?;
            query::query(&*ahead, query)
        };
        if let Ok(MetaReply::Counts(counts)) = &mut reply {
            self.add_space(counts);
        }
        self.under_lease(self.unless_damaged(reply))
    }

    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply> {
        self.apply_logged(LogEntryRef::Plain(entry))?.outcome
    }

    fn apply_counted(&self, counted: &CountedEntry) -> Result<CountedAnswer> {
        let answer = self.apply_logged(LogEntryRef::Counted(counted));
        if let Err(error) = &answer
            && error.kind() == ErrorKind::NoSpace
        {
            // Another copy of the request may have been applied meanwhile.
            let ahead = self.meta.ahead.write();
            if let Ok(Some(answer)) = state_machine::answer_of(&*ahead, counted) {
                return Ok(answer);
            }
            self.meta.refusals.lock().note(counted, error);
        }
        let answer = answer?;
        let is_late = {
            let ahead = self.meta.ahead.read();
            state_machine::durable_first(&*ahead, counted, &answer)? > ahead.committed()
        };
        if is_late && self.meta.options.rules.obeys(Rule::NumbersAreDurableFirst) {
            self.sync()?;
        }
        Ok(answer)
    }

    fn position(&self) -> Option<u64> {
        Some(self.meta.ahead.read().last())
    }

    fn sync(&self) -> Result<()> {
        let stamp = {
            let ahead = self.meta.ahead.read();
            let Stamp { term, .. } = self.next()?;
            Stamp { term, position: Position(ahead.last()) }
        };
        if !self.meta.options.rules.obeys(Rule::SyncsWaitForCommits) {
            return Ok(());
        }
        let waited = self.meta.replica.wait_committed(stamp, self.meta.options.wait_max);
        waited.map_err(|failure| {
            Error::new(ErrorKind::Unreachable, format!("the metadata's log: {failure}"))
        })
    }
}

/// This node does not lead any more, or not for sure. Another one may.
fn gone() -> Error {
    Error::new(ErrorKind::Unreachable, "another node serves the metadata, or will soon")
}

/// The change is in no log. Replicas of older programs would not understand it.
fn above(needed: u32, level: u32) -> Error {
    let level = FeatureLevel::of_log(level);
    let detail = format!(
        "this needs feature level {needed}, and the metadata has {level}: `strake cluster upgrade`"
    );
    Error::new(ErrorKind::NotSupported, detail)
}

fn unreachable(entry: LogEntryRef<'_>, failure: &Failure) -> Error {
    let client = entry.entry().client;
    let detail = format!("a change of client {client} has no place in the log: {failure}");
    Error::new(ErrorKind::Unreachable, detail)
}
