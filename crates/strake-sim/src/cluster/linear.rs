//! Looks for an order of concurrent operations that one object, used by one program, could have
//! seen (linearizability; Wing and Gong's search, with the memory of Lowe's).
//!
//! An operation takes effect at one moment between its begin and its end. One that is *uncertain*
//! has taken effect once or never: its program got no answer, or the mount died before the effect
//! was durable. Two operations keep their order if one ended before the other began.

use foldhash::fast::FixedState;
use std::collections::HashSet;
use std::hash::Hash;

/// One operation.
#[derive(Clone, Debug)]
pub(crate) struct Operation<S> {
    /// When it began. Moments are numbers that are never the same.
    pub(crate) begin: u64,
    /// When it ended; [`u64::MAX`] if it may take effect at any time.
    pub(crate) end: u64,
    /// Whether it has certainly taken effect.
    pub(crate) is_certain: bool,
    /// The operation, with its outcome.
    pub(crate) step: S,
    /// Who did it, and when.
    pub(crate) who: String,
}

/// An object that one program at a time uses.
pub(crate) trait Object {
    /// An operation with its outcome.
    type Step: std::fmt::Debug;
    /// What the object holds.
    type State: Clone + Eq + Hash + std::fmt::Debug;

    /// The state after the step; `None` if the step cannot have had this outcome.
    fn apply(&self, state: &Self::State, step: &Self::Step) -> Option<Self::State>;
}

struct Search<'a, O: Object> {
    object: &'a O,
    operations: &'a [Operation<O::Step>],
    /// The ordered operations and the state after them, where nothing was found.
    seen: HashSet<(Vec<u64>, O::State), FixedState>,
    /// The longest order found, with the state after it.
    longest: (Vec<usize>, Option<O::State>),
    order: Vec<usize>,
    /// How many more uncertain operations may take effect.
    budget: usize,
}

/// Orders with so many uncertain operations at most are looked for first. Most need few, and there
/// are many more with many.
const BUDGETS: [usize; 6] = [0, 1, 2, 3, 5, usize::MAX];

/// Finds an order, from `initial` on.
///
/// # Errors
/// If there is none: how far the longest order goes, and what comes then.
pub(crate) fn find_order<O: Object>(
    object: &O,
    initial: O::State,
    operations: &[Operation<O::Step>],
) -> Result<(), String> {
    let words = vec![0; operations.len().div_ceil(64)];
    let uncertain = operations.iter().filter(|it| !it.is_certain).count();
    let mut report = String::new();
    for budget in BUDGETS {
        let (seen, longest) = (HashSet::default(), (Vec::new(), None));
        let mut search = Search { object, operations, seen, longest, order: Vec::new(), budget };
        if search.is_found(&words, &initial) {
            return Ok(());
        }
        report = search.report(&initial);
        if budget >= uncertain {
            break;
        }
    }
    Err(report)
}

fn has(set: &[u64], at: usize) -> bool {
    set[at / 64] >> (at % 64) & 1 == 1
}

impl<O: Object> Search<'_, O> {
    fn is_found(&mut self, done: &[u64], state: &O::State) -> bool {
        let left = || (0..self.operations.len()).filter(|at| !has(done, *at));
        let certain = left().filter(|at| self.operations[*at].is_certain);
        let Some(first_end) = certain.map(|at| self.operations[at].end).min() else {
            return true;
        };
        let ordered = self.order.iter().map(|at| self.operations[*at].begin);
        let last_begin = ordered.max().unwrap_or(0);
        let may_be_next = |at: &usize| {
            let operation = &self.operations[*at];
            let is_allowed = operation.is_certain || self.budget > 0;
            is_allowed && operation.begin < first_end && operation.end > last_begin
        };
        let mut next: Vec<usize> = left().filter(may_be_next).collect();
        next.sort_by_key(|at| (!self.operations[*at].is_certain, self.operations[*at].end));
        if !self.seen.insert((done.to_vec(), state.clone())) {
            return false;
        }
        if self.order.len() > self.longest.0.len() || self.longest.1.is_none() {
            self.longest = (self.order.clone(), Some(state.clone()));
        }
        for at in next {
            let Some(after) = self.object.apply(state, &self.operations[at].step) else { continue };
            let mut with = done.to_vec();
            with[at / 64] |= 1 << (at % 64);
            let cost = usize::from(!self.operations[at].is_certain);
            self.order.push(at);
            self.budget -= cost;
            let is_found = self.is_found(&with, &after);
            self.budget += cost;
            self.order.pop();
            if is_found {
                return true;
            }
        }
        false
    }

    fn report(&self, initial: &O::State) -> String {
        let (order, state) = &self.longest;
        let show = |at: &usize| {
            let Operation { begin, end, is_certain, step, who } = &self.operations[*at];
            let end = if *end == u64::MAX { "…".to_owned() } else { end.to_string() };
            let mark = if *is_certain { "" } else { "?" };
            format!("\n    {begin}–{end}{mark} {who}: {step:?}")
        };
        let shown = order.len().saturating_sub(12);
        let mut text = format!("no order explains this; the longest has {}", order.len());
        order[shown..].iter().for_each(|at| text.push_str(&show(at)));
        text.push_str(&format!("\n  then, with {:?}, none of", state.as_ref().unwrap_or(initial)));
        let mut left: Vec<usize> =
            (0..self.operations.len()).filter(|at| !order.contains(at)).collect();
        left.sort_by_key(|at| self.operations[*at].begin);
        left.iter().take(12).for_each(|at| text.push_str(&show(at)));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that is written and read.
    struct Register;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Write(u32),
        Read(u32),
    }

    impl Object for Register {
        type Step = Step;
        type State = u32;

        fn apply(&self, state: &u32, step: &Step) -> Option<u32> {
            match *step {
                Step::Write(value) => Some(value),
                Step::Read(value) => (*state == value).then_some(value),
            }
        }
    }

    fn order(operations: &[(u64, u64, bool, Step)]) -> bool {
        let operations: Vec<_> = operations
            .iter()
            .map(|&(begin, end, is_certain, step)| {
                let who = String::new();
                Operation { begin, end, is_certain, step, who }
            })
            .collect();
        find_order(&Register, 0, &operations).is_ok()
    }

    #[test]
    fn orders_are_found_where_there_are_some_and_nowhere_else() {
        use Step::{Read, Write};
        assert!(order(&[]));
        assert!(order(&[(1, 2, true, Write(1)), (3, 4, true, Read(1))]));
        assert!(!order(&[(1, 2, true, Write(1)), (3, 4, true, Read(0))]), "it had ended");
        assert!(order(&[(1, 4, true, Write(1)), (2, 3, true, Read(0))]), "at the same time");
        let back = [(1, 9, true, Write(1)), (2, 3, true, Read(1)), (4, 5, true, Read(0))];
        assert!(!order(&back), "what was seen stays");
        let never = u64::MAX;
        assert!(order(&[(1, never, false, Write(1)), (2, 3, true, Read(0))]), "never, or later");
        assert!(order(&[(1, never, false, Write(1)), (2, 3, true, Read(1))]));
        let twice = [(1, never, false, Write(1)), (2, 3, true, Read(1)), (4, 5, true, Read(0))];
        assert!(!order(&twice), "it is not undone");
        let late = [(1, 2, false, Write(1)), (3, 4, true, Write(2)), (5, 6, true, Read(1))];
        assert!(!order(&late), "its mount was gone by then");
    }
}
