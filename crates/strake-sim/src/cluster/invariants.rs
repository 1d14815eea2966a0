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

/// The operations on one object as the search for an order wants them. What a dead mount saw of its
/// own changes that are lost counts for nothing.
fn operations(record: &Record, ops: &[&Op]) -> Vec<Operation<Action>> {
    let mut operations = Vec::new();
    for op in ops {
        let is_dead = record.deaths.contains_key(&op.life);
        let is_change = op.action.is_change();
        if !is_change {
            let may_have_lost = |other: &&&Op| {
                other.life == op.life && other.action.is_change() && !record.is_certain(other)
            };
            let lost = ops.iter().filter(may_have_lost).map(|other| other.begin).min();
            let is_own = is_dead && lost.zip(op.end).is_some_and(|(begin, end)| begin < end);
            if op.end.is_none() || is_own {
                continue;
            }
        }
        let is_certain = !is_change || record.is_certain(op);
        let buried = record.deaths.get(&op.life).copied().flatten();
        let end = match op.end.filter(|_| is_certain) {
            Some(end) => end,
            None => buried.unwrap_or(u64::MAX),
        };
        let (begin, step) = (op.begin, op.action);
        let time = op.time.saturating_sub(BOOT).as_secs_f64();
        let who = format!("mount {} at {time:.6}", op.life.0);
        operations.push(Operation { begin, end, is_certain, step, who });
    }
    operations
}
