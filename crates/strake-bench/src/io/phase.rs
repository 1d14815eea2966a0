//! One phase of an I/O job, and the place of each record of each task. All of it is pure.
//!
//! Three layouts, with T tasks of R records of s bytes each:
//!
//! ```text
//! file-per-task   file r, record i at          i·s
//! segmented       one file, record i of r at   (r·R + i)·s
//! interleaved     one file, record i of r at   (i·T + r)·s
//! ```
//!
//! Over all ranks and records, the records of a file neither overlap nor leave a gap.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{BenchError, Result};
use crate::pattern::Pattern;
use crate::work::CacheFlush;

/// What is done with the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Write a file that did not exist.
    Create,
    /// Write a file; what is there is written over, what is not is made.
    Write,
    /// Write over records that all exist.
    Rewrite,
    /// Read records that exist.
    Read,
}

impl Operation {
    /// True for everything but reading.
    pub fn writes(self) -> bool {
        self != Operation::Read
    }

    /// Its name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Create => "create",
            Operation::Write => "write",
            Operation::Rewrite => "rewrite",
            Operation::Read => "read",
        }
    }
}

/// How tasks share files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// One file per task (IOR easy).
    #[default]
    FilePerTask,
    /// One file in contiguous parts, one per task.
    Segmented,
    /// One file, records of the tasks in turn (IOR hard).
    Interleaved,
}

/// Whether a step at the end of a phase is done, and whether its time counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Counting {
    /// Not done.
    #[default]
    No,
    /// Done before the clock stops.
    Counted,
    /// Done after the clock stopped.
    Uncounted,
}

/// Where the data lies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Files {
    /// `data.TAG` or `data.TAG.RANK` in the run's own directory.
    Scratch(u32),
    /// A file the user named, on this host only; never removed.
    Named(PathBuf),
}

/// One operation of all tasks, between two barriers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// What is done.
    pub operation: Operation,
    /// In which order.
    pub pattern: Pattern,
    /// Bytes per record.
    pub record_bytes: u64,
    /// Records of each task's part of the data.
    pub records: u64,
    /// How many records each task visits: the first ones of its order. The index is the rank of the
    /// owner of the data. After a stonewalled write the numbers are smaller than `records`. If this
    /// is empty, every task visits all records.
    pub visits: Vec<u64>,
    /// How tasks share files.
    pub layout: Layout,
    /// Where the data lies.
    pub files: Files,
    /// Whether to bypass the page cache.
    pub direct: bool,
    /// fsync at the end of a writing phase.
    pub fsync: Counting,
    /// fsync after every write.
    pub fsync_each: bool,
    /// Whether the clock runs through close.
    pub close_counted: bool,
    /// What becomes of caches before the phase.
    pub cache: CacheFlush,
    /// Whether contents are written and compared in full.
    pub verify: bool,
    /// Records announced ahead by `randhint`.
    pub hint_records: u64,
    /// Seeds orders and contents.
    pub seed: u64,
    /// Task r works on the data of task r + shift.
    pub shift: u32,
    /// Counts how often the data was written: the writing that this phase does, or the one that it
    /// reads.
    pub generation: u64,
    /// How long every task runs at most.
    pub stonewall_seconds: Option<f64>,
}

/// The largest record. Each task holds two buffers of this size, so larger records would only
/// exhaust memory.
const RECORD_BYTES_MAX: u64 = 1 << 30;

impl Phase {
    /// Refuses parameters that overflow a file offset or a buffer.
    pub fn validate(&self, tasks: u32) -> Result<()> {
        let usage = |message: String| Err(BenchError::Usage(message));
        if self.record_bytes == 0 || self.record_bytes > RECORD_BYTES_MAX {
            return usage(format!("a record has 1 byte to 1 GiB, not {}", self.record_bytes));
        }
        if self.records == 0 {
            return usage("a task has at least one record".into());
        }
        let bytes = self
            .record_bytes
            .checked_mul(self.records)
            .and_then(|bytes| bytes.checked_mul(u64::from(tasks.max(1))))
            .filter(|bytes| i64::try_from(*bytes).is_ok());
        if bytes.is_none() {
            return usage("the data of all tasks exceeds 2^63 bytes".into());
        }
        if self.direct && !self.record_bytes.is_multiple_of(512) {
            return usage(format!(
                "O_DIRECT needs records of a multiple of 512 bytes, not {}",
                self.record_bytes
            ));
        }
        if !self.visits.is_empty() && self.visits.len() != tasks as usize {
            return usage(format!("{} limits for {tasks} tasks", self.visits.len()));
        }
        if self.visits.iter().any(|visits| *visits > self.records) {
            return usage("a task cannot visit more records than there are".into());
        }
        Ok(())
    }

    /// The most bytes that `tasks_here` tasks of this phase can occupy.
    pub fn bytes_on_disk(&self, tasks_here: u32) -> u64 {
        if !self.operation.writes() {
            return 0;
        }
        let bytes = self.record_bytes.saturating_mul(self.records);
        bytes.saturating_mul(u64::from(tasks_here))
    }

    /// The rank whose data a task works on.
    pub fn owner(&self, rank: u32, tasks: u32) -> u32 {
        ((u64::from(rank) + u64::from(self.shift)) % u64::from(tasks)) as u32
    }

    /// How many records the task that works on `owner`'s data visits.
    pub fn visits_of(&self, owner: u32) -> u64 {
        let limit = self.visits.get(owner as usize).copied();
        limit.unwrap_or(self.records)
    }

    /// The number that names the file of a task's data: all shared layouts have file 0.
    pub fn file_number(&self, owner: u32) -> u64 {
        match self.layout {
            Layout::FilePerTask => u64::from(owner),
            Layout::Segmented | Layout::Interleaved => 0,
        }
    }

    /// The offset of a record in its file.
    pub fn offset(&self, owner: u32, tasks: u32, record: u64) -> u64 {
        let position = match self.layout {
            Layout::FilePerTask => record,
            Layout::Segmented => u64::from(owner) * self.records + record,
            Layout::Interleaved => record * u64::from(tasks) + u64::from(owner),
        };
        position * self.record_bytes
    }

    /// The seed of an owner's order. Every task that visits its data uses the same one.
    pub fn order_seed(&self, owner: u32) -> u64 {
        crate::pattern::mix(self.seed ^ u64::from(owner))
    }
}

#[cfg(test)]
#[path = "phase_test.rs"]
pub(crate) mod phase_test;
