//! Touches memory ahead of the operations that need it, and measures what that costs.

use super::{BUFFER_BYTES_MIN, PagePool, PoolState, keep};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use strake_env::{AlignedBuffer, process};
use strake_observe::OperationStats;

/// Memory that no stream needs is touched only after so long without a request.
const QUIET_STEP: Duration = Duration::from_millis(100);
/// After so many quiet steps no stream goes on.
const QUIET_STEPS_MIN: u32 = 10;
/// So many blocks are touched for each block that a stream begins. It takes only one, so it finds
/// more and more touched memory.
const AHEAD_OF_STREAM: usize = 2;
/// When there was nothing to touch, the thread looks again after this time.
const IDLE_STEP: Duration = Duration::from_secs(1);
/// Fresh memory counts as slow if touching a MiB takes at least this long (2 GiB/s): a stream to a
/// good disk has to wait for it then. If the host has the memory ready, it takes 20 to 100 µs.
const SLOW_PER_MIB: Duration = Duration::from_micros(500);
const MIB: u64 = 1 << 20;

/// The cost of the first touch of fresh memory on this machine.
#[derive(Default)]
pub(super) struct FirstTouch {
    /// Nanoseconds for a MiB, averaged over the last few blocks; 0 if none was touched yet.
    per_mib: AtomicU64,
    /// Replaces the measurement in tests.
    #[cfg(test)]
    assumed: strake_env::sync::Mutex<Option<bool>>,
}

impl FirstTouch {
    /// Notes that touching `bytes` took so much processor time. Time in which the thread waits for
    /// a processor does not count.
    pub(super) fn note(&self, bytes: usize, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let now = nanos.saturating_mul(MIB) / bytes as u64;
        let before = match self.per_mib.load(Ordering::Relaxed) {
            0 => now,
            before => before,
        };
        self.per_mib.store((before / 4 * 3).saturating_add(now / 4).max(1), Ordering::Relaxed);
    }

    /// The speed in bytes per second; 0 if it is not known.
    pub(super) fn bytes_per_second(&self) -> u64 {
        (MIB * 1_000_000_000).checked_div(self.per_mib.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Whether fresh memory is so slow that the memory of data which is hardly wanted soon is
    /// better used again.
    pub(super) fn is_slow(&self) -> bool {
        #[cfg(test)]
        if let Some(is_slow) = *self.assumed.lock() {
            return is_slow;
        }
        Duration::from_nanos(self.per_mib.load(Ordering::Relaxed)) >= SLOW_PER_MIB
    }
}

impl PagePool {
    /// Assumes, in tests, that the host has to find all memory first, or none.
    #[cfg(test)]
    pub(crate) fn assume_memory(&self, is_slow: bool) {
        *self.first_touch.assumed.lock() = Some(is_slow);
    }

    /// The main function of the thread that touches memory ahead. Ends at [`PagePool::close`].
    ///
    /// If the host has to find the memory, the first touch takes a processor for milliseconds, and
    /// nothing can interrupt it. So memory is touched when a stream begins blocks, and otherwise
    /// only while no operation begins and nothing is dirty.
    pub(crate) fn serve(&self, operations: &OperationStats) {
        if self.warm == 0 {
            return;
        }
        process::give_way();
        let (mut seen, mut quiet_steps, mut step) = (operations.begun(), 0, QUIET_STEP);
        loop {
            let mut state = self.state.lock();
            let is_streaming = !state.closed && !self.begun.wait_for(&mut state, step).timed_out();
            if state.closed {
                return;
            }
            let is_writing = state.dirty > 0;
            drop(state);
            let begun = operations.begun();
            let is_busy = is_streaming || is_writing || begun != seen;
            quiet_steps = if is_busy { 0 } else { quiet_steps + 1 };
            seen = begun;
            let made = if is_streaming {
                (0..AHEAD_OF_STREAM).all(|_| self.warm_one(false))
            } else {
                quiet_steps > 0 && self.warm_one(quiet_steps >= QUIET_STEPS_MIN)
            };
            step = if made || quiet_steps < QUIET_STEPS_MIN { QUIET_STEP } else { IDLE_STEP };
        }
    }

    /// Touches one more buffer for a whole block and keeps it as a spare one. Does nothing and
    /// returns false if there are enough, if the budget is used, or if a stream goes on that can
    /// use its own memory again.
    pub(super) fn warm_one(&self, is_quiet: bool) -> bool {
        let bytes = self.block_size;
        let wanted = |state: &PoolState| {
            state.spare + bytes <= self.warm
                && self.fits(state, bytes)
                && (is_quiet || !self.first_touch.is_slow() || state.left_behind.is_empty())
        };
        if !wanted(&self.state.lock()) {
            return false;
        }
        let start = process::thread_time();
        let mut buffer = AlignedBuffer::zeroed(bytes);
        buffer.chunks_mut(BUFFER_BYTES_MIN).for_each(|page| page[0] = std::hint::black_box(0));
        self.first_touch.note(bytes, process::thread_time().saturating_sub(start));
        let mut state = self.state.lock();
        if !wanted(&state) {
            return false;
        }
        keep(&mut state, buffer);
        true
    }
}
