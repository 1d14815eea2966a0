//! What a crew is told to do in one phase: the part of a job that travels to other hosts.

use std::path::Path;

use serde::{Deserialize, Serialize};
use strake_net::SharedSecret;

use crate::error::{BenchError, Result};
use crate::host;
use crate::io;
use crate::md;
use crate::net;
use crate::team::Task;

/// The work of one phase, the same for every task; what differs follows from the rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Records of data files.
    Io(io::phase::Phase),
    /// Names and attributes.
    Md(md::phase::Phase),
    /// Messages to other hosts.
    Net(net::phase::Phase),
}

impl Work {
    /// What a host does once before its tasks prepare.
    pub fn before_phase(&self) -> Result<()> {
        let cache = match self {
            Work::Io(phase) => phase.cache,
            Work::Md(phase) => phase.cache,
            Work::Net(_) => CacheFlush::Keep,
        };
        if cache == CacheFlush::System {
            host::drop_system_caches()?;
        }
        Ok(())
    }

    /// After how many seconds every task stops, done or not.
    pub fn limit_seconds(&self) -> Option<f64> {
        match self {
            Work::Io(phase) => phase.stonewall_seconds,
            Work::Md(phase) => phase.stonewall_seconds,
            Work::Net(phase) => Some(phase.seconds),
        }
    }

    /// Refuses what would harm a host or overflow an arithmetic; `tasks` is the number of tasks
    /// of all hosts. Agents call it on what a driver sent.
    pub fn validate(&self, tasks: u32) -> Result<()> {
        if let Some(seconds) = self.limit_seconds()
            && !(seconds.is_finite() && (0.0..=1e6).contains(&seconds))
        {
            return Err(BenchError::Usage(format!("a limit of {seconds} s is no limit")));
        }
        match self {
            Work::Io(phase) => phase.validate(tasks),
            Work::Md(phase) => phase.validate(tasks),
            Work::Net(phase) => phase.validate(tasks),
        }
    }

    /// The most bytes that this host's tasks may come to occupy.
    pub fn bytes_on_disk(&self, tasks_here: u32) -> u64 {
        match self {
            Work::Io(phase) => phase.bytes_on_disk(tasks_here),
            Work::Md(phase) => phase.bytes_on_disk(tasks_here),
            Work::Net(_) => 0,
        }
    }
}

/// What becomes of caches before a phase that reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum CacheFlush {
    /// Nothing is flushed: what fits into memory is read from memory.
    Keep,
    /// Each file is synced and the kernel asked to forget its pages; no privilege needed.
    #[default]
    File,
    /// The kernel forgets all pages, names and inodes; needs root.
    System,
}

impl CacheFlush {
    /// How a report says it.
    pub fn sentence(self) -> &'static str {
        match self {
            CacheFlush::Keep => "caches kept",
            CacheFlush::File => "pages of each file flushed before reading",
            CacheFlush::System => "all caches of the system flushed before reading",
        }
    }
}

/// One host's share of a phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// The work.
    pub work: Work,
    /// Rank of this host's first task.
    pub first_rank: u32,
    /// How many tasks this host runs.
    pub tasks_here: u32,
    /// How many tasks all hosts run.
    pub tasks_total: u32,
}

impl Assignment {
    /// The task of one rank, working in `directory`; `secret` opens other agents.
    pub fn task(
        &self,
        rank: u32,
        directory: &Path,
        secret: Option<&SharedSecret>,
    ) -> Box<dyn Task> {
        match &self.work {
            Work::Io(phase) => {
                Box::new(io::task::IoTask::new(phase.clone(), rank, self.tasks_total, directory))
            }
            Work::Md(phase) => md::task::make(phase, rank, self, directory),
            Work::Net(phase) => {
                Box::new(net::task::NetTask::new(phase.clone(), rank, secret.cloned()))
            }
        }
    }
}
