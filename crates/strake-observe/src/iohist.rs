//! The I/O history: a ring of the last I/Os of this process, each with its start, kind, place, size
//! and duration. `strake diag iohist` prints it. While a trace runs, each I/O is one of its events.

use crate::format::{self, nanoseconds};
use crate::ring::Ring;
use crate::trace::{Occurrence, Trace};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use strake_env::Clock;
use strake_proto::{NsdId, Timestamp};

/// The fewest records a ring keeps. They suffice for a look at the current I/O.
pub const IO_HISTORY_SIZE_MIN: usize = 512;
/// The most records a ring keeps: 4 MiB of memory.
pub const IO_HISTORY_SIZE_MAX: usize = 65_536;
/// The default of the setting `io_history_size`.
pub const IO_HISTORY_SIZE_DEFAULT: usize = 4096;

/// The history counts in sectors of this many bytes, whatever sectors the disk has.
const SECTOR_BYTES: u64 = 512;

/// The direction of an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum IoDirection {
    /// From the disk.
    Read,
    /// To the disk.
    Write,
}

/// The kind of data that an I/O moved.
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

impl fmt::Display for BufferType {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            BufferType::Data => "data",
            BufferType::Parity => "parity",
            BufferType::Metadata => "metadata",
            BufferType::LogData => "logData",
            BufferType::Index => "index",
            BufferType::DiskDesc => "diskDesc",
        })
    }
}

/// The side that recorded an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum IoSide {
    /// A client, for an I/O on an NSD server. The time includes the way there and back.
    Client,
    /// An NSD server, for an I/O on its own disk.
    Server,
    /// A direct call within one process.
    Local,
}

impl fmt::Display for IoSide {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            IoSide::Client => "cli",
            IoSide::Server => "srv",
            IoSide::Local => "lcl",
        })
    }
}

/// One I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IoRecord {
    /// When it began, by the calendar.
    pub start: Timestamp,
    /// Read or write.
    pub direction: IoDirection,
    /// What was read or written.
    pub buffer: BufferType,
    /// The NSD that it went to.
    pub nsd: NsdId,
    /// Offset on the NSD in 512-byte sectors; 0 on the client side, which does not know it.
    pub sector: u64,
    /// Length in 512-byte sectors.
    pub sectors: u32,
    /// How long it took.
    #[serde(rename = "durationNs", with = "nanoseconds")]
    pub duration: Duration,
    /// The side that recorded it.
    pub side: IoSide,
}

/// An I/O that has begun: see [`IoHistory::begin`].
#[derive(Clone, Copy, Debug)]
pub struct IoStart {
    wall: Timestamp,
    monotonic: Duration,
}

/// The ring.
pub struct IoHistory {
    clock: Arc<dyn Clock>,
    ring: Ring<IoRecord>,
    trace: Arc<Trace>,
}

impl IoHistory {
    /// A ring of `capacity` records, clamped to 512..=65,536.
    pub fn new(clock: Arc<dyn Clock>, capacity: usize, trace: Arc<Trace>) -> IoHistory {
        let capacity = capacity.clamp(IO_HISTORY_SIZE_MIN, IO_HISTORY_SIZE_MAX);
        IoHistory { clock, ring: Ring::new(capacity), trace }
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
        let duration = self.clock.monotonic().saturating_sub(start.monotonic);
        self.trace.note(&Occurrence {
            operation: name_of(direction, buffer),
            begun: start.monotonic,
            took: duration,
            bytes,
            nsd: Some(nsd),
            failed: false,
        });
        self.ring.push(IoRecord {
            start: start.wall,
            direction,
            buffer,
            nsd,
            sector: offset / SECTOR_BYTES,
            sectors: u32::try_from(bytes.div_ceil(SECTOR_BYTES)).unwrap_or(u32::MAX),
            duration,
            side,
        });
    }

    /// The records, in the order in which the I/Os ended.
    pub fn snapshot(&self) -> Vec<IoRecord> {
        self.ring.snapshot().into_iter().map(|(_, record)| record).collect()
    }

    /// The number of I/Os recorded since the start, including those that have left the ring.
    pub fn recorded(&self) -> u64 {
        self.ring.recorded()
    }
}

/// What a trace calls an I/O.
fn name_of(direction: IoDirection, buffer: BufferType) -> &'static str {
    match (direction, buffer) {
        (IoDirection::Read, BufferType::Data) => "disk read data",
        (IoDirection::Read, BufferType::Parity) => "disk read parity",
        (IoDirection::Read, BufferType::Metadata) => "disk read metadata",
        (IoDirection::Read, BufferType::LogData) => "disk read logData",
        (IoDirection::Read, BufferType::Index) => "disk read index",
        (IoDirection::Read, BufferType::DiskDesc) => "disk read diskDesc",
        (IoDirection::Write, BufferType::Data) => "disk write data",
        (IoDirection::Write, BufferType::Parity) => "disk write parity",
        (IoDirection::Write, BufferType::Metadata) => "disk write metadata",
        (IoDirection::Write, BufferType::LogData) => "disk write logData",
        (IoDirection::Write, BufferType::Index) => "disk write index",
        (IoDirection::Write, BufferType::DiskDesc) => "disk write diskDesc",
    }
}

/// Prints records as the table that users of `mmdiag --iohist` know. `names` gives an NSD's name
/// and that of its server. Times are shown `utc_offset_seconds` east of UTC.
///
/// # Errors
/// Those of `out`.
pub fn print_io_history(
    out: &mut dyn fmt::Write,
    records: &[IoRecord],
    names: &dyn Fn(NsdId) -> (String, String),
    utc_offset_seconds: i64,
) -> fmt::Result {
    writeln!(
        out,
        "{:<16} {:>2} {:<9} {:<20} {:>6} {:>10} {:<4} {:<17} NSD server",
        "I/O start time",
        "RW",
        "Buf type",
        "disk:sectorNum",
        "nSec",
        "time ms",
        "Type",
        "Device/NSD ID"
    )?;
    for record in records {
        let (name, server) = names(record.nsd);
        let line = format!(
            "{:<16} {:>2} {:<9} {:<20} {:>6} {:>10.3} {:<4} {:<17} {server}",
            format::time_of_day_micros(record.start, utc_offset_seconds),
            if record.direction == IoDirection::Read { "R" } else { "W" },
            record.buffer,
            format!("{}:{}", record.nsd, record.sector),
            record.sectors,
            record.duration.as_secs_f64() * 1e3,
            record.side,
            name,
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::ManualClock;

    fn history() -> (Arc<ManualClock>, IoHistory) {
        let clock = Arc::new(ManualClock::default());
        (
            Arc::clone(&clock),
            IoHistory::new(Arc::clone(&clock) as _, 0, Arc::new(Trace::new(clock))),
        )
    }

    fn io(history: &IoHistory, clock: &ManualClock, offset: u64) {
        let start = history.begin();
        clock.advance(Duration::from_micros(33_646));
        let (direction, buffer) = (IoDirection::Read, BufferType::Data);
        history.end(start, direction, buffer, NsdId(10), offset, 8 << 20, IoSide::Server);
    }

    #[test]
    fn the_history_has_at_least_512_records_and_forgets_the_oldest() {
        let (clock, history) = history();
        for index in 0..IO_HISTORY_SIZE_MIN as u64 + 100 {
            io(&history, &clock, index * 512);
        }
        let sectors: Vec<u64> = history.snapshot().iter().map(|record| record.sector).collect();
        let expected: Vec<u64> = (100..IO_HISTORY_SIZE_MIN as u64 + 100).collect();
        assert_eq!(sectors, expected);
        assert_eq!(history.recorded(), IO_HISTORY_SIZE_MIN as u64 + 100);
    }

    #[test]
    fn the_table_has_the_columns_that_users_know() {
        let (clock, history) = history();
        clock.advance(Duration::from_nanos(45_979_047_999));
        io(&history, &clock, 40_527_921_152 * 512);
        let mut text = String::new();
        let names = |_: NsdId| ("nsd10".to_owned(), "192.0.2.4".to_owned());
        print_io_history(&mut text, &history.snapshot(), &names, 3600).expect("a string takes all");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1].split_whitespace().collect::<Vec<_>>(),
            [
                "23:14:05.979047",
                "R",
                "data",
                "10:40527921152",
                "16384",
                "33.646",
                "srv",
                "nsd10",
                "192.0.2.4"
            ]
        );
        assert_eq!(lines[0].find("nSec").map(|at| at + 4), lines[1].find("16384").map(|at| at + 5));
    }
}
