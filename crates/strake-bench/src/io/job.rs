//! The settings of `bench io`. The command line and a job file have the same fields.

use std::path::{Path, PathBuf};

use clap::{Args, Parser};
use serde::{Deserialize, Serialize};

use super::phase::{Counting, Files, Layout, Operation, Phase};
use crate::error::{BenchError, Result};
use crate::pattern::Pattern;
use crate::size::{self, ByteSize};
use crate::work::CacheFlush;

/// An I/O job.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Job {
    /// Where the job works (job files only; the DIR of the command line otherwise).
    #[arg(skip)]
    pub directory: Option<PathBuf>,
    /// What to do, in this order.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "create,read")]
    pub operations: Vec<Operation>,
    /// Order of the records: seq, backward, strided:SKIP, rand, randhint, semirandom:WINDOW.
    #[arg(long, short, default_value = "seq")]
    pub pattern: Pattern,
    /// Bytes per record.
    #[arg(long, short, default_value = "1M")]
    pub record: ByteSize,
    /// Bytes per task; rounded down to whole records.
    #[arg(long, short, default_value = "256M")]
    pub size: ByteSize,
    /// Records per task, instead of --size.
    #[arg(long, value_name = "N", value_parser = size::parse_count)]
    pub records: Option<u64>,
    /// Tasks per host; several numbers make a table.
    #[arg(long, short, value_delimiter = ',', default_value = "1")]
    pub tasks: Vec<u32>,
    /// One file per task, or one file in contiguous parts, or one file in turns.
    #[arg(long, value_enum, default_value_t)]
    pub layout: Layout,
    /// Stop every task after this long; what was not written is not read either.
    #[arg(long, value_name = "TIME", value_parser = size::parse_seconds)]
    pub stonewall: Option<f64>,
    /// fsync at the end of each writing phase, before or after the clock stops.
    #[arg(long, value_enum, default_value_t)]
    pub fsync: Counting,
    /// fsync after every single write.
    #[arg(long)]
    #[serde(default)]
    pub fsync_each: bool,
    /// Stop the clock before close instead of after it.
    #[arg(long)]
    #[serde(default)]
    pub close_uncounted: bool,
    /// Bypass the page cache (O_DIRECT).
    #[arg(long)]
    #[serde(default)]
    pub direct: bool,
    /// What becomes of caches before each reading phase.
    #[arg(long, value_enum, default_value_t)]
    pub cache: CacheFlush,
    /// Write contents that prove themselves and compare every byte read.
    #[arg(long)]
    #[serde(default)]
    pub verify: bool,
    /// Read what another task wrote: task r reads the data of task r + N.
    #[arg(long, value_name = "N", default_value = "0")]
    pub shift: u32,
    /// Records that randhint announces ahead.
    #[arg(long, value_name = "N", default_value = "16")]
    pub hints: u64,
    /// Repeat everything so many times.
    #[arg(long, short, default_value = "1")]
    pub iterations: u32,
    /// Seeds orders and contents.
    #[arg(long, default_value = "1")]
    pub seed: u64,
}

impl Default for Job {
    /// The defaults of the command line, so that there is one list of them.
    fn default() -> Self {
        #[derive(Parser)]
        struct Only {
            #[command(flatten)]
            job: Job,
        }
        Only::parse_from(["io"]).job
    }
}

/// The most tasks on one host: more than any machine can use.
const TASKS_MAX: u32 = 4096;

impl Job {
    /// Reads a job file.
    pub fn from_file(path: &Path) -> Result<Job> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| BenchError::path("read the job file", path, error))?;
        let job: Job = toml::from_str(&text)
            .map_err(|error| BenchError::Usage(format!("{}: {error}", path.display())))?;
        job.validate()?;
        Ok(job)
    }

    /// Records of one task.
    pub fn records_per_task(&self) -> u64 {
        let whole = self.size.0 / self.record.0.max(1);
        self.records.unwrap_or(whole)
    }

    /// Bytes that one task moves in one phase.
    pub fn bytes_per_task(&self) -> u64 {
        self.records_per_task().saturating_mul(self.record.0)
    }

    /// The greatest number of tasks of one host.
    pub fn tasks_max(&self) -> u32 {
        self.tasks.iter().copied().max().unwrap_or(1)
    }

    /// Refuses a job that makes no sense, before any file is touched.
    pub fn validate(&self) -> Result<()> {
        let usage = |message: String| Err(BenchError::Usage(message));
        if self.tasks.is_empty() || self.tasks.iter().any(|n| !(1..=TASKS_MAX).contains(n)) {
            return usage(format!("--tasks takes numbers from 1 to {TASKS_MAX}"));
        }
        if self.operations.is_empty() || self.iterations == 0 {
            return usage("there is nothing to do; give operations and iterations".into());
        }
        if self.record.0 == 0 || self.records_per_task() == 0 {
            return usage(format!(
                "a task of {} holds no record of {}; raise --size",
                self.size, self.record
            ));
        }
        if !self.operations[0].writes() || self.operations[0] == Operation::Rewrite {
            return usage(format!(
                "{} needs data; begin with create (the run has files of its own)",
                self.operations[0].name()
            ));
        }
        self.phase(self.operations[0]).validate(self.tasks_max())
    }

    /// The phase of one operation. The run fills in tags, generations and limits.
    pub fn phase(&self, operation: Operation) -> Phase {
        Phase {
            operation,
            pattern: self.pattern,
            record_bytes: self.record.0,
            records: self.records_per_task(),
            visits: Vec::new(),
            layout: self.layout,
            files: Files::Scratch(0),
            direct: self.direct,
            fsync: self.fsync,
            fsync_each: self.fsync_each,
            close_counted: !self.close_uncounted,
            cache: if operation.writes() { CacheFlush::Keep } else { self.cache },
            verify: self.verify,
            hint_records: self.hints,
            seed: self.seed,
            shift: if operation.writes() { 0 } else { self.shift },
            generation: 0,
            stonewall_seconds: self.stonewall,
        }
    }

    /// The job in a few words, for heads of reports.
    pub fn words(&self) -> String {
        let layout = match self.layout {
            Layout::FilePerTask => "one file per task",
            Layout::Segmented => "one shared file in parts",
            Layout::Interleaved => "one shared file in turns",
        };
        format!(
            "{} records of {}, {}, {} per task",
            self.pattern,
            self.record,
            layout,
            ByteSize(self.bytes_per_task())
        )
    }

    /// Says what the measured times include, condition by condition.
    pub fn conditions(&self) -> String {
        let fsync = match (self.fsync_each, self.fsync) {
            (true, _) => "fsync after each write, counted",
            (_, Counting::No) => "no fsync",
            (_, Counting::Counted) => "fsync at end, counted",
            (_, Counting::Uncounted) => "fsync at end, not counted",
        };
        let close = if self.close_uncounted { "before" } else { "after" };
        let through = if self.direct { "O_DIRECT" } else { "through the page cache" };
        let mut words = format!(
            "clock from the barrier to {close} close; {fsync}; {through}; {}",
            self.cache.sentence()
        );
        if self.verify {
            words.push_str("; contents verified (the rate includes the comparison)");
        }
        if let Some(seconds) = self.stonewall {
            words.push_str(&format!("; stopped after {seconds} s"));
        }
        if self.shift > 0 {
            words.push_str(&format!(
                "; each task reads the data of the task {} further",
                self.shift
            ));
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_file_has_the_defaults_of_the_command_line() {
        let job: Job = toml::from_str("record = '47008'\nrecords = 8000\ntasks = [2]\n").unwrap();
        assert_eq!(job.bytes_per_task(), 47_008 * 8_000);
        assert_eq!(job.operations, Job::default().operations);
        assert_eq!(job.tasks, [2]);
        assert!(toml::from_str::<Job>("recrod = '1M'").is_err());
    }

    #[test]
    fn senseless_jobs_are_refused() {
        let refused = |text: &str| toml::from_str::<Job>(text).unwrap().validate().is_err();
        assert!(!refused(""));
        assert!(refused("tasks = [0]"));
        assert!(refused("size = '1K'"));
        assert!(refused("operations = ['read']"));
        assert!(refused("operations = []"));
        assert!(refused("record = '1000'\ndirect = true"));
    }
}
