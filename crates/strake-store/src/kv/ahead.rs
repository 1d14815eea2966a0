//! Read-ahead: units read from the disk together with the one that was asked for.
//!
//! A checkpoint writes a tree's leaves one after the other. A listing reads them in that order, one
//! unit at a time. Reading a run of units costs little more than reading one. The length of the
//! next run depends on the last ones. A run that is used doubles the length. A run that is dropped
//! unused halves it. If the store is read in no order, the length falls to a single unit.
//!
//! The units here equal those on the disk. A thread that changes a unit calls [`Ahead::forget`]
//! *after* the change can be seen. A thread that fills a run takes [`Ahead::ticket`] *before* it
//! looks whether a unit is changed. A fill with an outdated ticket is refused. Nothing is verified
//! here.

use std::collections::VecDeque;
use strake_env::AlignedBuffer;
use strake_env::sync::Mutex;

pub(super) const UNIT_BYTES: u64 = 4096;
/// The longest run: 128 KiB.
const RUN_UNITS_MAX: u64 = 32;
const RUN_UNITS_FIRST: u64 = 8;
/// At most this many runs are kept: 2 MiB.
const RUNS_MAX: usize = 16;

/// The runs of one store; see the module.
pub(super) struct Ahead {
    state: Mutex<State>,
}

struct State {
    /// The oldest first.
    runs: VecDeque<Run>,
    run_units: u64,
    changes: u64,
    /// The buffer of the last run that was dropped. A fresh buffer costs as much as reading into
    /// it.
    spare: Option<AlignedBuffer>,
}

struct Run {
    first: u64,
    bytes: AlignedBuffer,
    used: bool,
}

impl Run {
    fn units(&self) -> u64 {
        self.bytes.len() as u64 / UNIT_BYTES
    }
}

impl Ahead {
    pub(super) fn new() -> Ahead {
        let (runs, run_units) = (VecDeque::new(), RUN_UNITS_FIRST);
        let state = State { runs, run_units, changes: 0, spare: None };
        Ahead { state: Mutex::new(state) }
    }

    /// Copies units from `first` on into `out`, if all of them are here.
    pub(super) fn copy(&self, first: u64, out: &mut [u8]) -> bool {
        let end = first + out.len() as u64 / UNIT_BYTES;
        let mut state = self.state.lock();
        let found =
            state.runs.iter_mut().find(|run| run.first <= first && end <= run.first + run.units());
        let Some(run) = found else { return false };
        let at = ((first - run.first) * UNIT_BYTES) as usize;
        out.copy_from_slice(&run.bytes[at..at + out.len()]);
        if !std::mem::replace(&mut run.used, true) {
            state.run_units = (state.run_units * 2).clamp(2, RUN_UNITS_MAX);
        }
        true
    }

    /// The ticket for [`Ahead::fill`], and the number of units to read.
    pub(super) fn ticket(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.changes, state.run_units)
    }

    /// A buffer of `length` bytes to read into, with arbitrary contents.
    pub(super) fn buffer(&self, length: usize) -> AlignedBuffer {
        let spare = self.state.lock().spare.take();
        spare.filter(|spare| spare.len() == length).unwrap_or_else(|| AlignedBuffer::zeroed(length))
    }

    /// Keeps units that were read from `first` on.
    pub(super) fn fill(&self, ticket: u64, first: u64, bytes: AlignedBuffer) {
        let mut state = self.state.lock();
        if state.changes != ticket {
            return;
        }
        if state.runs.len() == RUNS_MAX
            && let Some(oldest) = state.runs.pop_front()
        {
            if !oldest.used {
                state.run_units = (state.run_units / 2).max(1);
            }
            state.spare = Some(oldest.bytes);
        }
        state.runs.push_back(Run { first, bytes, used: false });
    }

    /// Notes that a unit has changed.
    pub(super) fn forget(&self, unit: u64) {
        let mut state = self.state.lock();
        state.changes += 1;
        state.runs.retain(|run| unit < run.first || run.first + run.units() <= unit);
    }

    /// Notes that everything has changed.
    pub(super) fn clear(&self) {
        let mut state = self.state.lock();
        state.changes += 1;
        state.runs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(units: usize) -> AlignedBuffer {
        AlignedBuffer::zeroed(units * UNIT_BYTES as usize)
    }

    #[test]
    fn what_changed_while_it_was_read_is_not_kept() {
        let ahead = Ahead::new();
        let mut out = [0; UNIT_BYTES as usize];
        let (ticket, _) = ahead.ticket();
        ahead.forget(3);
        ahead.fill(ticket, 2, run(4));
        assert!(!ahead.copy(3, &mut out), "it changed");
        let (ticket, _) = ahead.ticket();
        ahead.fill(ticket, 2, run(4));
        assert!(ahead.copy(5, &mut out));
        assert!(!ahead.copy(6, &mut out), "beyond the run");
        ahead.forget(2);
        assert!(!ahead.copy(5, &mut out), "its run changed");
    }

    #[test]
    fn runs_become_longer_with_use_and_vanish_without() {
        let ahead = Ahead::new();
        let mut out = [0; UNIT_BYTES as usize];
        for first in 0..8 {
            ahead.fill(ahead.ticket().0, first * 100, run(2));
            assert!(ahead.copy(first * 100 + 1, &mut out));
        }
        assert_eq!(ahead.ticket().1, RUN_UNITS_MAX);
        for first in 100..200 {
            ahead.fill(ahead.ticket().0, first * 100, run(2));
        }
        assert_eq!(ahead.ticket().1, 1, "nothing is read for nothing any more");
    }
}
