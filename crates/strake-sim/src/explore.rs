//! Visits every state that a model can reach, breadth first, and reports the steps that lead to a
//! fault.

use foldhash::fast::FixedState;
use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;
use std::rc::Rc;

/// A scope with more states than this is too large for a test.
const STATES_MAX: usize = 4_000_000;

/// A step from one state to the next, described for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    what: &'static str,
    /// The number of the client or NSD that takes the step, if one does.
    who: Option<u8>,
}

impl Step {
    /// A step of the whole system.
    pub fn new(what: &'static str) -> Step {
        Step { what, who: None }
    }

    /// A step of one client or NSD.
    pub fn of(what: &'static str, who: usize) -> Step {
        Step { what, who: u8::try_from(who).ok() }
    }

    /// The number of the client or NSD that takes the step, if one does.
    pub fn who(&self) -> Option<usize> {
        self.who.map(usize::from)
    }

    /// The step in words.
    pub fn text(&self) -> String {
        match self.who {
            Some(who) => self.what.replace("{}", &who.to_string()),
            None => self.what.to_owned(),
        }
    }
}

/// The result of an exploration.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// How many different states were visited.
    pub states: usize,
    /// The fault and the steps that lead to it, or `None`.
    pub fault: Option<String>,
}

/// For tests of models: no scope has a fault, and each visits more than `least` states.
#[cfg(test)]
pub(crate) fn all_keep<S>(
    scopes: Vec<(&'static str, S)>,
    check: impl Fn(&S) -> Verdict,
    least: usize,
) {
    for (name, scope) in scopes {
        let verdict = check(&scope);
        println!("{name}: {} states", verdict.states);
        assert_eq!(verdict.fault, None, "{name}");
        assert!(verdict.states > least, "{name} visits only {} states", verdict.states);
    }
}

/// The next states with the steps that lead there, or the fault in the present state.
pub type Next<S> = Result<Vec<(Step, S)>, String>;

/// Visits all states from `first` on. `successors` returns the next states of a state.
///
/// # Panics
/// If there are more states than a test has time for.
pub fn explore<S: Clone + Eq + Hash + Debug>(
    first: S,
    successors: &dyn Fn(&S) -> Next<S>,
) -> Verdict {
    let first = Rc::new(first);
    let mut came_by: Vec<(usize, Step)> = vec![(0, Step::new(""))];
    let mut seen = HashMap::with_hasher(FixedState::default());
    seen.insert(Rc::clone(&first), 0usize);
    let mut queue = VecDeque::from([(0usize, first)]);
    while let Some((at, state)) = queue.pop_front() {
        assert!(seen.len() < STATES_MAX, "too many states to visit");
        let next = match successors(&state) {
            Ok(next) => next,
            Err(fault) => {
                let steps = path(&came_by, at).join("; ");
                let fault = Some(format!("{fault}. Steps: {steps}. State: {state:?}"));
                return Verdict { states: seen.len(), fault };
            }
        };
        for (step, state) in next {
            let state = Rc::new(state);
            let number = seen.len();
            seen.entry(state).or_insert_with_key(|state| {
                queue.push_back((number, Rc::clone(state)));
                came_by.push((at, step));
                number
            });
        }
    }
    Verdict { states: seen.len(), fault: None }
}

/// The steps that lead to a state.
fn path(came_by: &[(usize, Step)], mut at: usize) -> Vec<String> {
    let mut steps = Vec::new();
    while at != 0 {
        let (before, step) = came_by[at];
        steps.push(step.text());
        at = before;
    }
    steps.reverse();
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_visited_once_and_a_fault_tells_its_shortest_way() {
        let count = |limit: u8, bad: u8| {
            explore(0u8, &|at| match *at {
                at if at == bad => Err("bad".to_owned()),
                at if at >= limit => Ok(Vec::new()),
                at => Ok(vec![(Step::of("add {}", 1), at + 1), (Step::of("add {}", 2), at + 2)]),
            })
        };
        let whole = count(10, 200);
        assert_eq!((whole.states, whole.fault), (12, None));
        let fault = count(10, 3).fault.expect("it is reached");
        assert!(fault.starts_with("bad. Steps: add 1; add 2."), "{fault}");
    }
}
