//! The settings of `bench md`. The short options are mdtest's where mdtest has them.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::phase::{Phase, Step};
use crate::error::{BenchError, Result};
use crate::size::{self, ByteSize};
use crate::work::CacheFlush;

/// A metadata job.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Job {
    /// Files (and directories) per task.
    #[arg(long, short = 'n', default_value = "1000", value_parser = size::parse_count)]
    pub items: u64,
    /// Tasks per host; several numbers make several tables.
    #[arg(long, short, value_delimiter = ',', default_value = "1")]
    pub tasks: Vec<u32>,
    /// A directory per task instead of one for all.
    #[arg(long, short)]
    pub unique: bool,
    /// Files only.
    #[arg(long, short = 'F')]
    pub files_only: bool,
    /// Directories only.
    #[arg(long, short = 'D', conflicts_with = "files_only")]
    pub directories_only: bool,
    /// Bytes written into each file.
    #[arg(long, short = 'w', default_value = "0")]
    pub write: ByteSize,
    /// Bytes read from each file.
    #[arg(long, short = 'e', default_value = "0")]
    pub read: ByteSize,
    /// fsync each file before close.
    #[arg(long, short = 'y')]
    pub fsync: bool,
    /// Levels of directories below the first.
    #[arg(long, short = 'z', default_value = "0")]
    pub depth: u32,
    /// Directories in each directory above the last level.
    #[arg(long, short = 'b', default_value = "1")]
    pub branching: u32,
    /// Items in the last level only.
    #[arg(long, short = 'L')]
    pub leaf_only: bool,
    /// stat, read and remove what the N-th next task made, so that no cache of the maker helps.
    #[arg(long, short = 'N', value_name = "N", default_value = "0")]
    pub shift: u32,
    /// stat and read in random order.
    #[arg(long, short = 'R')]
    pub random: bool,
    /// Repeat so many times.
    #[arg(long, short, default_value = "1")]
    pub iterations: u32,
    /// Stop making items after this long; later steps use what was made.
    #[arg(long, value_name = "TIME", value_parser = size::parse_seconds)]
    pub stonewall: Option<f64>,
    /// What becomes of caches before stat, read and remove. `file` means nothing here.
    #[arg(long, value_enum, default_value = "keep")]
    pub cache: CacheFlush,
    /// Seeds random orders.
    #[arg(long, default_value = "1")]
    pub seed: u64,
}

impl Default for Job {
    /// The defaults of the command line.
    fn default() -> Self {
        #[derive(clap::Parser)]
        struct Only {
            #[command(flatten)]
            job: Job,
        }
        <Only as clap::Parser>::parse_from(["md"]).job
    }
}

impl Job {
    /// The steps of one iteration, in order.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = vec![Step::TreeCreate];
        if !self.files_only {
            steps.extend([Step::DirectoryCreate, Step::DirectoryStat, Step::DirectoryRemove]);
        }
        if !self.directories_only {
            steps.extend([Step::FileCreate, Step::FileStat, Step::FileRead, Step::FileRemove]);
        }
        steps.push(Step::TreeRemove);
        steps
    }

    /// The phase of one step.
    pub fn phase(&self, step: Step, iteration: u32, common: bool) -> Phase {
        let making = matches!(step, Step::FileCreate | Step::DirectoryCreate);
        let tree = matches!(step, Step::TreeCreate | Step::TreeRemove);
        Phase {
            step,
            items: self.items,
            made: Vec::new(),
            depth: self.depth,
            branching: self.branching,
            leaf_only: self.leaf_only,
            unique: self.unique,
            write_bytes: self.write.0,
            read_bytes: self.read.0,
            fsync: self.fsync,
            shift: self.shift,
            random: self.random,
            seed: self.seed,
            iteration,
            common,
            cache: if making || tree { CacheFlush::Keep } else { self.cache },
            // Only steps that make items may be cut short. All items that exist must also be
            // removed.
            stonewall_seconds: self.stonewall.filter(|_| making),
        }
    }

    /// Refuses a job that makes no sense.
    pub fn validate(&self) -> Result<()> {
        if self.tasks.is_empty() || self.tasks.contains(&0) || self.iterations == 0 {
            return Err(BenchError::Usage("tasks and iterations start at 1".into()));
        }
        if self.items == 0 {
            return Err(BenchError::Usage("-n must be at least 1".into()));
        }
        self.phase(Step::FileCreate, 1, true).validate(1)
    }

    /// The most tasks on one host.
    pub fn tasks_max(&self) -> u32 {
        self.tasks.iter().copied().max().unwrap_or(1)
    }

    /// Bytes that one host's files need, inodes included.
    pub fn bytes_per_host(&self) -> u64 {
        self.phase(Step::FileCreate, 1, true).bytes_on_disk(self.tasks_max())
    }

    /// The job in a few words.
    pub fn words(&self) -> String {
        let mut words = format!(
            "{} items per task, {}",
            self.items,
            if self.unique { "a directory per task" } else { "one directory for all tasks" }
        );
        if self.depth > 0 {
            let nodes = self.phase(Step::TreeCreate, 1, true).nodes().unwrap_or(0);
            words.push_str(&format!(", tree of {nodes} directories"));
        }
        if self.write.0 > 0 {
            words.push_str(&format!(", {} written and {} read", self.write, self.read));
        }
        for (on, text) in [
            (self.fsync, "fsync per file"),
            (self.random, "random order"),
            (self.leaf_only, "items in leaves only"),
            (self.cache == CacheFlush::System, "all caches dropped before stat, read, remove"),
        ] {
            if on {
                words.push_str(&format!(", {text}"));
            }
        }
        if self.shift > 0 {
            words.push_str(&format!(", looking at the items of the task {} further", self.shift));
        }
        words
    }
}
