//! The I/O history: a ring of the last I/Os, each with its start, kind, place, size and duration.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use strake_env::Clock;
use strake_proto::{NsdId, Timestamp};

/// The fewest records a ring keeps.
pub const IO_HISTORY_SIZE_MIN: usize = 512;
/// The most records a ring keeps.
pub const IO_HISTORY_SIZE_MAX: usize = 65_536;
/// What the setting `io_history_size` is if nobody set it.
pub const IO_HISTORY_SIZE_DEFAULT: usize = 4096;

/// From the disk or to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum IoDirection {
    /// From the disk.
    Read,
    /// To the disk.
    Write,
}

/// What the bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BufferType {
    /// Data strips.
    Data,
    /// Parity strips.
    Parity,
    /// The metadata store: inodes, directories.
    Metadata,
    /// The metadata log.
    LogData,
    /// An NSD's strip index and its log.
    Index,
    /// Superblocks.
    DiskDesc,
}

/// Who recorded it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum IoSide {
    /// A client, of an I/O on an NSD server, the way there and back included.
    Client,
    /// An NSD server, of its own disk.
    Server,
    /// A direct call within one process.
    Local,
}

/// One I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoRecord {
    /// When it began, by the calendar.
    pub start: Timestamp,
    /// Read or write.
    pub direction: IoDirection,
    /// What was read or written.
    pub buffer: BufferType,
    /// On which NSD.
    pub nsd: NsdId,
    /// Offset on the NSD in 512-byte sectors; 0 on the client side, which does not know it.
    pub sector: u64,
    /// Length in 512-byte sectors.
    pub sectors: u32,
    /// How long it took.
    pub duration: Duration,
    /// Who recorded it.
    pub side: IoSide,
}

/// An I/O that has begun; see [`IoHistory::begin`].
#[derive(Clone, Copy, Debug)]
pub struct IoStart {
    wall: Timestamp,
    monotonic: Duration,
}

/// The ring.
pub struct IoHistory {
    clock: Arc<dyn Clock>,
    capacity: usize,
    ring: Mutex<VecDeque<IoRecord>>,
}

impl IoHistory {
    /// A ring of `capacity` records, clamped to 512..=65,536.
    pub fn new(clock: Arc<dyn Clock>, capacity: usize) -> IoHistory {
        let capacity = capacity.clamp(IO_HISTORY_SIZE_MIN, IO_HISTORY_SIZE_MAX);
        IoHistory { clock, capacity, ring: Mutex::new(VecDeque::with_capacity(capacity)) }
    }

    /// Takes the time before an I/O.
    pub fn begin(&self) -> IoStart {
        IoStart { wall: self.clock.wall(), monotonic: self.clock.monotonic() }
    }

    /// Records the I/O that began at `start` and has just ended. `offset` and `bytes` are in bytes.
    #[allow(clippy::too_many_arguments, reason = "one argument per column of the table")]
    pub fn end(
        &self,
        start: IoStart,
        direction: IoDirection,
        buffer: BufferType,
        nsd: NsdId,
        offset: u64,
        bytes: u64,
        side: IoSide,
    ) {
        self.record(IoRecord {
            start: start.wall,
            direction,
            buffer,
            nsd,
            sector: offset / 512,
            sectors: u32::try_from(bytes.div_ceil(512)).unwrap_or(u32::MAX),
            duration: self.clock.monotonic().saturating_sub(start.monotonic),
            side,
        });
    }

    /// Adds a record; the oldest goes when the ring is full.
    pub fn record(&self, record: IoRecord) {
        let mut ring = self.ring.lock();
        if ring.len() == self.capacity {
            ring.pop_front();
        }
        ring.push_back(record);
    }

    /// The records, oldest first.
    pub fn snapshot(&self) -> Vec<IoRecord> {
        self.ring.lock().iter().copied().collect()
    }
}

/// Prints records as a table; `server` names the server of an NSD.
pub fn print_io_history(
    out: &mut dyn fmt::Write,
    records: &[IoRecord],
    server: &dyn Fn(NsdId) -> String,
) -> fmt::Result {
    for record in records {
        writeln!(out, "{record:?} {}", server(record.nsd))?;
    }
    Ok(())
}
