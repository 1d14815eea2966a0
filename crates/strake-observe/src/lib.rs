//! Answers the question "why is it slow?". Every I/O leaves a record in a ring ([`IoHistory`]),
//! every wait has a name ([`Waiters`]), and every operation has a histogram ([`OperationStats`]).
//! Recording is cheap enough to be always on. Snapshots are plain data, which listings print or
//! encode as JSON.

#![warn(missing_docs)]

mod format;
mod histogram;
pub mod iohist;
pub mod operations;
pub mod waiters;

pub use iohist::{BufferType, IoDirection, IoHistory, IoRecord, IoSide, print_io_history};
pub use operations::{Operation, OperationSnapshot, OperationStats, print_operations};
pub use waiters::{RequestWait, WaitGuard, WaiterSnapshot, Waiters, print_waiters};

use std::sync::Arc;
use strake_env::Clock;

/// The three registries in one handle, which the parts of a process share.
pub struct Observe {
    /// Every disk or NSD I/O.
    pub io: IoHistory,
    /// The waits of all threads.
    pub waiters: Arc<Waiters>,
    /// A histogram per operation.
    pub operations: OperationStats,
}

impl Observe {
    /// Empty registries, with `io_history_size` records of I/O history (clamped to 512..=65,536).
    pub fn new(clock: Arc<dyn Clock>, io_history_size: usize) -> Arc<Observe> {
        Arc::new(Observe {
            io: IoHistory::new(Arc::clone(&clock), io_history_size),
            waiters: Arc::new(Waiters::new(Arc::clone(&clock))),
            operations: OperationStats::new(clock),
        })
    }
}
