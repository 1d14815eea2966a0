//! What must always hold, one file for each.

pub(crate) mod a_fenced_client_changes_nothing;
pub(crate) mod names_are_linearizable;
pub(crate) mod no_two_conflicting_tokens;
pub(crate) mod replicas_are_equal;
pub(crate) mod stripes_decode;
pub(crate) mod units_are_linearizable;

use super::linear::Operation;
use super::record::{Action, Op, Record};
use strake_env::simulation::BOOT;

/// The operations on one object as the search for an order wants them. What a mount saw of its own
/// changes that are lost counts for nothing, until a living mount has told of the loss.
fn operations(record: &Record, ops: &[&Op]) -> Vec<Operation<Action>> {
    let changes = ops.iter().filter(|op| op.action.is_change());
    let lost: Vec<Lost<'_>> = changes.filter_map(|op| Lost::of(record, op)).collect();
    let mut operations = Vec::new();
    for op in ops {
        let is_change = op.action.is_change();
        if !is_change && (op.end.is_none() || lost.iter().any(|lost| lost.may_be_seen_by(op))) {
            continue;
        }
        let is_certain = !is_change || record.is_certain(op);
        let end = match op.end.filter(|_| is_certain) {
            Some(end) => end,
            None => buried(record, op).or_else(|| record.loss_heard(op)).unwrap_or(u64::MAX),
        };
        let (begin, step) = (op.begin, op.action);
        let time = op.time.saturating_sub(BOOT).as_secs_f64();
        let who = format!("mount {} at {time:.6}", op.life.0);
        operations.push(Operation { begin, end, is_certain, step, who });
    }
    operations
}

/// The moment from which on the mount of an operation changes nothing any more.
fn buried(record: &Record, op: &Op) -> Option<u64> {
    record.deaths.get(&op.life).copied().flatten()
}

/// A change that its mount may have lost.
struct Lost<'a> {
    change: &'a Op,
    /// From then on the mount does not see it as there.
    until: u64,
}

impl Lost<'_> {
    fn of<'a>(record: &Record, change: &'a Op) -> Option<Lost<'a>> {
        let until = match record.deaths.contains_key(&change.life) {
            true => Some(u64::MAX).filter(|_| !record.is_certain(change)),
            false => record.loss_heard(change),
        };
        until.map(|until| Lost { change, until })
    }

    fn may_be_seen_by(&self, op: &Op) -> bool {
        let ended_since = op.end.is_some_and(|end| self.change.begin < end);
        op.life == self.change.life && ended_since && op.begin < self.until
    }
}
