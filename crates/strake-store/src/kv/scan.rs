//! Scans: the overlays and the base merged, in either direction.
//!
//! A scan goes in steps. Each step copies a bounded run of the overlays' changes under the lock and
//! takes the base's snapshot in the same hold. It merges the two without the lock, so neither a
//! long scan nor its visitor holds anybody up. The run's last key ends the step on the base's side
//! as well.

use super::base::{self, Snapshot};
use super::overlay::Change;
use super::{Kv, Layers};
use std::cmp::Ordering;
use std::ops::Bound;
use strake_proto::Result;

/// The first step copies this many changes, and each further step twice as many up to the limit.
/// So short scans (a page of a directory) copy little, and long ones lock rarely.
const STEP_FIRST: usize = 16;
const STEP_MAX: usize = 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Ascending,
    Descending,
}

type KeyRange<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);
type Run = Vec<(Box<[u8]>, Change)>;

/// How a step ended: by the visitor, or by an error of the base.
enum Outcome {
    Finished,
    Stopped,
    /// The base failed after this key was visited.
    Failed(redb::StorageError, Option<Vec<u8>>),
}

impl Kv {
    pub(super) fn scan_range(
        &self,
        from: &[u8],
        to: &[u8],
        direction: Direction,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let (mut low, mut high) = (Bound::Included(from.to_vec()), Bound::Excluded(to.to_vec()));
        let mut limit = STEP_FIRST;
        while !is_empty(&low, &high) {
            let (run, snapshot) = {
                let layers = self.layers.read();
                (copy_run(&layers, as_range(&low, &high), direction, limit), self.base_of(&layers)?)
            };
            // After the last change of a full run there may be more changes.
            let last = (run.len() == limit).then(|| run[limit - 1].0.to_vec());
            let outcome = {
                let bound = |key: &Vec<u8>| Bound::Included(key.clone());
                let (mut step_low, mut step_high) = (low.clone(), high.clone());
                match (&last, direction) {
                    (Some(last), Direction::Ascending) => step_high = bound(last),
                    (Some(last), Direction::Descending) => step_low = bound(last),
                    (None, _) => {}
                }
                let range = as_range(&step_low, &step_high);
                self.uncut(|| Ok(merge(&run, snapshot.as_ref(), range, direction, visit)))?
            };
            let done = match outcome {
                Outcome::Stopped => return Ok(()),
                Outcome::Finished => match last {
                    Some(last) => last,
                    None => return Ok(()),
                },
                Outcome::Failed(error, visited) => {
                    if let Some(snapshot) = snapshot
                        && !self.is_outdated(&snapshot)
                    {
                        self.revive(snapshot);
                        return Err(base::from_storage(error));
                    }
                    let Some(visited) = visited else { continue };
                    visited
                }
            };
            match direction {
                Direction::Ascending => low = Bound::Excluded(done),
                Direction::Descending => high = Bound::Excluded(done),
            }
            limit = (limit * 2).min(STEP_MAX);
        }
        Ok(())
    }
}

fn as_range<'a>(low: &'a Bound<Vec<u8>>, high: &'a Bound<Vec<u8>>) -> KeyRange<'a> {
    (low.as_ref().map(|key| &key[..]), high.as_ref().map(|key| &key[..]))
}

/// True if no key lies between the bounds. A range that ends before it begins must not reach the
/// maps, because they panic on it.
fn is_empty(low: &Bound<Vec<u8>>, high: &Bound<Vec<u8>>) -> bool {
    match (low, high) {
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (
            Bound::Included(low) | Bound::Excluded(low),
            Bound::Included(high) | Bound::Excluded(high),
        ) => low >= high,
        _ => false,
    }
}

/// Up to `limit` changes of the range in scan order. Active changes win.
fn copy_run(layers: &Layers, range: KeyRange<'_>, direction: Direction, limit: usize) -> Run {
    let active = layers.active.range(range);
    let frozen = layers.frozen.as_ref().map(|frozen| frozen.range(range));
    let frozen = frozen.into_iter().flatten();
    let own = |(key, change): (&[u8], &Change)| (Box::from(key), change.clone());
    match direction {
        Direction::Ascending => {
            Merged::new(active, frozen, Ord::cmp).take(limit).map(own).collect()
        }
        Direction::Descending => {
            let order = |a: &&[u8], b: &&[u8]| b.cmp(a);
            Merged::new(active.rev(), frozen.rev(), order).take(limit).map(own).collect()
        }
    }
}

/// Merges two ordered iterators. If both have a key, the first one's item counts.
struct Merged<A: Iterator, B: Iterator, F> {
    first: std::iter::Peekable<A>,
    second: std::iter::Peekable<B>,
    order: F,
}

impl<A: Iterator, B: Iterator, F> Merged<A, B, F> {
    fn new(first: A, second: B, order: F) -> Self {
        Merged { first: first.peekable(), second: second.peekable(), order }
    }
}

impl<'a, A, B, F> Iterator for Merged<A, B, F>
where
    A: Iterator<Item = (&'a [u8], &'a Change)>,
    B: Iterator<Item = (&'a [u8], &'a Change)>,
    F: Fn(&&'a [u8], &&'a [u8]) -> Ordering,
{
    type Item = (&'a [u8], &'a Change);

    fn next(&mut self) -> Option<Self::Item> {
        let order = match (self.first.peek(), self.second.peek()) {
            (Some((first, _)), Some((second, _))) => (self.order)(first, second),
            (Some(_), None) => Ordering::Less,
            (None, _) => Ordering::Greater,
        };
        if order == Ordering::Equal {
            self.second.next();
        }
        if order == Ordering::Greater { self.second.next() } else { self.first.next() }
    }
}

/// Visits the run's changes and the base's pairs in order. A change hides the base's pair.
fn merge(
    run: &Run,
    snapshot: Option<&Snapshot>,
    range: KeyRange<'_>,
    direction: Direction,
    visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
) -> Outcome {
    let mut run = run.iter().peekable();
    // One buffer serves all keys, so a scan over the base allocates nothing per pair.
    let mut visited = Vec::new();
    let mut is_any_visited = false;
    if let Some(snapshot) = snapshot {
        let mut pairs = match snapshot.range(range) {
            Ok(pairs) => pairs,
            Err(error) => return Outcome::Failed(error, None),
        };
        loop {
            let (key, value) = match pairs.next(direction == Direction::Descending) {
                None => break,
                Some(Ok(pair)) => pair,
                Some(Err(error)) => {
                    return Outcome::Failed(error, is_any_visited.then_some(visited));
                }
            };
            let mut hidden = false;
            while let Some((changed, change)) = run.peek() {
                let order = match direction {
                    Direction::Ascending => changed[..].cmp(key.value()),
                    Direction::Descending => key.value().cmp(&changed[..]),
                };
                if order == Ordering::Greater {
                    break;
                }
                hidden |= order == Ordering::Equal;
                if !visit_change(changed, change, visit) {
                    return Outcome::Stopped;
                }
                run.next();
            }
            if !hidden && !visit(key.value(), value.value()) {
                return Outcome::Stopped;
            }
            visited.clear();
            visited.extend_from_slice(key.value());
            is_any_visited = true;
        }
    }
    for (changed, change) in run {
        if !visit_change(changed, change, visit) {
            return Outcome::Stopped;
        }
    }
    Outcome::Finished
}

fn visit_change(key: &[u8], change: &Change, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> bool {
    change.as_ref().is_none_or(|value| visit(key, value))
}
