//! The outcomes that tasks, hosts and phases report.

use serde::{Deserialize, Serialize};

use crate::metric::{self, Rates, TaskSample};
use strake_proto::histogram::Histogram;

/// One task's account of one phase.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TaskOutcome {
    /// Rank among the tasks of all hosts.
    pub rank: u32,
    /// What it did and how long it took.
    pub sample: TaskSample,
    /// Latency of its operations.
    pub latency: Histogram,
}

/// How the processors of a host spent a phase, as fractions that add up to one.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct CpuUse {
    /// In programs.
    pub user: f64,
    /// In the kernel, including interrupts and time stolen by a hypervisor.
    pub system: f64,
    /// Idle with nothing to wait for.
    pub idle: f64,
    /// Idle while a disk request was outstanding.
    pub wait: f64,
}

impl CpuUse {
    /// The fraction in use.
    pub fn busy(&self) -> f64 {
        self.user + self.system
    }
}

/// One host's account of one phase.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HostOutcome {
    /// Name of the host.
    pub host: String,
    /// Its tasks.
    pub tasks: Vec<TaskOutcome>,
    /// Its processors, all programs together.
    pub cpu: CpuUse,
}

/// One phase on all hosts.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PhaseOutcome {
    /// The hosts in the order of their ranks.
    pub hosts: Vec<HostOutcome>,
}

impl PhaseOutcome {
    /// All tasks' samples.
    pub fn samples(&self) -> Vec<TaskSample> {
        let tasks = self.hosts.iter().flat_map(|host| &host.tasks);
        tasks.map(|task| task.sample).collect()
    }

    /// The rates over all tasks.
    pub fn rates(&self) -> Rates {
        metric::rates(&self.samples())
    }

    /// All tasks' latencies together.
    pub fn latency(&self) -> Histogram {
        let mut all = Histogram::default();
        for task in self.hosts.iter().flat_map(|host| &host.tasks) {
            all.merge(&task.latency);
        }
        all
    }

    /// The mean use of the processors over distinct hosts (worker processes share theirs).
    pub fn cpu(&self) -> CpuUse {
        let mut seen: Vec<&str> = Vec::new();
        let mut sum = CpuUse::default();
        for host in &self.hosts {
            if !seen.contains(&host.host.as_str()) {
                seen.push(&host.host);
                sum.user += host.cpu.user;
                sum.system += host.cpu.system;
                sum.idle += host.cpu.idle;
                sum.wait += host.cpu.wait;
            }
        }
        let hosts = seen.len().max(1) as f64;
        CpuUse {
            user: sum.user / hosts,
            system: sum.system / hosts,
            idle: sum.idle / hosts,
            wait: sum.wait / hosts,
        }
    }

    /// Operations completed by each rank, in the order of ranks.
    pub fn operations_by_rank(&self) -> Vec<u64> {
        let mut tasks: Vec<_> = self.hosts.iter().flat_map(|host| &host.tasks).collect();
        tasks.sort_by_key(|task| task.rank);
        tasks.iter().map(|task| task.sample.operations).collect()
    }
}

/// Percentiles for people and for `--json`, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Arithmetic mean.
    pub mean_us: f64,
    /// Standard deviation.
    pub deviation_us: f64,
    /// Least.
    pub min_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Greatest.
    pub max_us: f64,
}

impl From<&Histogram> for LatencySummary {
    fn from(histogram: &Histogram) -> Self {
        let us = |nanos: u64| nanos as f64 / 1e3;
        LatencySummary {
            mean_us: histogram.mean_ns() / 1e3,
            deviation_us: histogram.deviation_ns() / 1e3,
            min_us: us(histogram.min_ns()),
            p50_us: us(histogram.quantile_ns(0.50)),
            p95_us: us(histogram.quantile_ns(0.95)),
            p99_us: us(histogram.quantile_ns(0.99)),
            p999_us: us(histogram.quantile_ns(0.999)),
            max_us: us(histogram.max_ns()),
        }
    }
}
