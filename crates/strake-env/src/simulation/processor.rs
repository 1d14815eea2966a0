//! One processor for each simulation. Its threads run one at a time anyway, and handing the baton
//! to a thread that sleeps on another processor takes several times as long.

use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The simulations that run on each processor.
static TAKEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The processor of a simulation, until this is dropped.
pub(super) struct Processor(Option<usize>);

impl Processor {
    /// Takes a processor that the fewest simulations have, of those that this thread may use.
    pub(super) fn take() -> Processor {
        let Ok(usable) = sched_getaffinity(None) else { return Processor(None) };
        let mut taken = TAKEN.lock();
        taken.resize(CpuSet::MAX_CPU, 0);
        let usable = (0..CpuSet::MAX_CPU).filter(|at| usable.is_set(*at));
        let least = usable.min_by_key(|at| taken[*at]);
        least.into_iter().for_each(|at| taken[at] += 1);
        Processor(least)
    }

    /// Its number, if one is known.
    pub(super) fn number(&self) -> Option<usize> {
        self.0
    }
}

/// Runs this thread, and those that it spawns from now on, on that processor. They may run anywhere
/// if the system refuses that, which only takes longer.
pub(super) fn enter(processor: Option<usize>) {
    let Some(at) = processor else { return };
    let mut set = CpuSet::new();
    set.set(at);
    let _ = sched_setaffinity(None, &set);
}

impl Drop for Processor {
    fn drop(&mut self) {
        self.0.into_iter().for_each(|at| TAKEN.lock()[at] -= 1);
    }
}
