//! Answers the question "why is it slow?". Every I/O leaves a record in a ring ([`IoHistory`]),
//! every wait has a name ([`Waiters`]), and every operation has a histogram ([`OperationStats`]).
//! Recording is cheap enough to be always on. Snapshots are plain data, which listings print or
//! encode as JSON. While a trace runs ([`Trace`]), operations and I/Os are also events of it, each
//! with the request that it is part of. The last minutes are kept ([`Recent`]). So somebody who
//! asks later can be told what was slow in them ([`slow::explain`]).

#![warn(missing_docs)]

pub mod activity;
mod chrome;
pub mod disk_times;
mod format;
pub mod health;
mod histogram;
pub mod iohist;
pub mod links;
pub mod metrics;
pub mod monitor;
pub mod operations;
pub mod recent;
pub mod request_histogram;
pub mod requests;
mod ring;
pub mod slow;
pub mod slow_report;
pub mod tokens;
pub mod trace;
pub mod trace_report;
pub mod wait_chain;
pub mod waiters;

pub use activity::{Activity, DiskActivity, LinkActivity, UserActivity};
pub use chrome::write_chrome_trace;
pub use disk_times::{DiskTimes, DiskWork, MeasuredDisk};
pub use iohist::{BufferType, IoDirection, IoHistory, IoRecord, IoSide, print_io_history};
pub use links::{LinkRow, print_links};
pub use monitor::IoCounters;
pub use operations::{
    Operation, OperationSnapshot, OperationStats, OperationSums, print_operations,
};
pub use recent::Recent;
pub use request_histogram::{HistogramOrder, Pattern, RequestHistogramView, RequestHistograms};
pub use requests::{Request, RequestKind, Requests};
pub use slow_report::{Finding, SlowReport, print_slow_report};
pub use tokens::{FileHolder, FileWait, HotFile, TokensView, print_tokens};
pub use trace::{Labels, Trace, TraceEvent, TraceStatus};
pub use trace_report::{TraceBy, TraceQuestion, TraceReport, print_trace_report};
pub use wait_chain::print_wait_chains;
pub use waiters::{RequestWait, WaitGuard, WaitHolder, WaiterSnapshot, Waiters, print_waiters};

use std::sync::Arc;
use strake_env::{Clock, Links};

/// The registries in one handle, which the parts of a process share.
pub struct Observe {
    /// Every disk or NSD I/O.
    pub io: IoHistory,
    /// The waits of all threads.
    pub waiters: Arc<Waiters>,
    /// A histogram per operation.
    pub operations: OperationStats,
    /// How many requests of each size there were, and how long they took, if somebody wants it.
    pub histograms: RequestHistograms,
    /// What programs asked for lately, by process and file.
    pub requests: Requests,
    /// How long the disks of this process take.
    pub disks: DiskTimes,
    /// How long calls of NSDs take.
    pub calls: DiskTimes,
    /// How the network is to other nodes.
    pub links: Arc<Links>,
    /// The last minutes.
    pub recent: Recent,
    /// The trace, which runs only when somebody has started it.
    pub trace: Arc<Trace>,
}

impl Observe {
    /// Empty registries, with `io_history_size` records of I/O history (clamped to 512..=65,536).
    pub fn new(clock: Arc<dyn Clock>, io_history_size: usize) -> Arc<Observe> {
        let trace = Arc::new(Trace::new(Arc::clone(&clock)));
        Arc::new(Observe {
            links: Links::new(Arc::clone(&clock)),
            io: IoHistory::new(Arc::clone(&clock), io_history_size, Arc::clone(&trace)),
            waiters: Arc::new(Waiters::new(Arc::clone(&clock))),
            operations: OperationStats::new(clock, Arc::clone(&trace)),
            histograms: RequestHistograms::default(),
            requests: Requests::default(),
            disks: DiskTimes::default(),
            calls: DiskTimes::default(),
            recent: Recent::default(),
            trace,
        })
    }
}
