//! The names of a directory are one object: creations that must be the first, lookups, removals and
//! renames have outcomes of one order, that all mounts could have seen (P1, R19, R21). What was
//! synced survives the death of its mount.

use crate::cluster::linear::{Object, find_order};
use crate::cluster::record::{Action, Name, Op, Record, Tag};
use std::collections::BTreeMap;

struct Directory;

type Names = BTreeMap<Name, Tag>;

impl Object for Directory {
    type Step = Action;
    type State = Names;

    fn apply(&self, state: &Names, step: &Action) -> Option<Names> {
        let mut names = state.clone();
        let has = |name: &Name| state.contains_key(name);
        let is_possible = match step {
            Action::Create(name, tag, made) => {
                if *made {
                    names.insert(*name, *tag);
                }
                has(name) != *made
            }
            Action::Look(name, found) => state.get(name) == found.as_ref(),
            Action::Unlink(name, done) => {
                names.remove(name);
                has(name) == *done
            }
            Action::Rename(from, to, done) => {
                if let Some(tag) = names.remove(from) {
                    names.insert(*to, tag);
                }
                has(from) == *done
            }
            _ => false,
        };
        is_possible.then_some(names)
    }
}

fn is_of_names(op: &&Op) -> bool {
    let action = &op.action;
    matches!(
        action,
        Action::Create(..) | Action::Look(..) | Action::Unlink(..) | Action::Rename(..)
    )
}

/// Judges the directory.
///
/// # Errors
/// The operations that no order explains.
pub(crate) fn judge(record: &Record) -> Result<(), String> {
    let ops: Vec<&Op> = record.ops.iter().filter(is_of_names).collect();
    find_order(&Directory, Names::new(), &super::operations(record, &ops))
        .map_err(|report| format!("names: {report}"))
}
