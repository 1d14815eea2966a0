//! Each unit of a file is one register: every read has the value of the write before it, in an
//! order that the programs could have seen. So what was written is seen on every mount from then
//! on. What was synced survives the death of its mount, too; other writes of a dead mount are there
//! or not, and stay so (P1, P2, R19).

use crate::cluster::linear::{Object, Operation, find_order};
use crate::cluster::record::{Action, Op, Record, Unit, Value};
use std::collections::BTreeSet;

struct Register;

impl Object for Register {
    type Step = Action;
    type State = Value;

    fn apply(&self, state: &Value, step: &Action) -> Option<Value> {
        match step {
            Action::Write(_, value) => Some(*value),
            Action::Read(_, value) => (state == value).then_some(*value),
            _ => None,
        }
    }
}

fn unit_of(action: &Action) -> Option<Unit> {
    match action {
        Action::Write(unit, _) | Action::Read(unit, _) => Some(*unit),
        _ => None,
    }
}

/// Judges all units.
///
/// # Errors
/// The unit, and the operations that no order explains.
pub(crate) fn judge(record: &Record) -> Result<(), String> {
    let units: BTreeSet<Unit> = record.ops.iter().filter_map(|op| unit_of(&op.action)).collect();
    for unit in units {
        let of_unit = |op: &&Op| unit_of(&op.action) == Some(unit);
        let ops: Vec<&Op> = record.ops.iter().filter(of_unit).collect();
        let mut operations = super::operations(record, &ops);
        // A write that nobody has seen, and that may never have been, explains nothing.
        let seen: BTreeSet<Value> = operations.iter().filter_map(value_read).collect();
        operations.retain(|operation| match operation.step {
            Action::Write(_, value) => operation.is_certain || seen.contains(&value),
            _ => true,
        });
        find_order(&Register, 0, &operations)
            .map_err(|report| format!("file {}, unit {}: {report}", unit.0, unit.1))?;
    }
    Ok(())
}

fn value_read(operation: &Operation<Action>) -> Option<Value> {
    match operation.step {
        Action::Read(_, value) => Some(value),
        _ => None,
    }
}
