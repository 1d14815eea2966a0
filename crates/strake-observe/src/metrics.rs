//! Metrics in the text format of Prometheus. One table has the name, kind, labels and meaning of
//! each ([`METRICS`]). `docs/METRICS.md` is made from it, and nothing else can be written.
//!
//! Every sample has the label `fs`, the file system's name. Metrics name no files and no users.

use crate::disk_times::{DiskRow, DiskSums, bucket_end};
use crate::health::{Colour, Health};
use crate::operations::OperationSums;
use crate::recent::PoolSample;
use crate::slow_report::SlowReport;
use crate::waiters::WaiterSnapshot;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use strake_proto::NsdId;

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only rises, and begins at 0 with the daemon.
    Counter,
    /// It rises and falls.
    Gauge,
    /// Counts of values up to each bound, their sum and their number.
    Histogram,
}

impl MetricKind {
    fn word(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name, with the unit last.
    pub name: &'static str,
    /// What it is.
    pub kind: MetricKind,
    /// Its labels beside `fs`.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

macro_rules! metrics {
    ($($id:ident $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $id: Metric = Metric {
                name: $name,
                kind: MetricKind::$kind,
                labels: &[$($label),*],
                help: $help,
            };
        )*
        /// All metrics, by name.
        pub const METRICS: &[Metric] = &[$($id),*];
    };
}

metrics! {
    BUILD_INFO Gauge "strake_build_info" ["version"]
        "Always 1. The label tells the version that runs.";
    DISK_BYTES Counter "strake_disk_bytes_total" ["nsd", "work"]
        "Bytes read from and written to a disk, those of logs and metadata too.";
    DISK_SECONDS Histogram "strake_disk_seconds" ["nsd", "work"]
        "How long each read, write and sync of a disk took. Where disks are in another process: calls of their servers.";
    HEALTH Gauge "strake_health" ["component", "event"]
        "How a component is: 0 green, 1 yellow, 2 red. The label event is empty if it is green.";
    MEMORY_RESIDENT Gauge "strake_memory_resident_bytes" []
        "Memory of the daemon's process.";
    NSD_BAD_STRIPS Counter "strake_nsd_bad_strips_total" ["nsd"]
        "How often a bad strip was met on a disk.";
    NSD_BYTES Gauge "strake_nsd_bytes" ["nsd"]
        "Bytes of a disk for strips.";
    NSD_FREE_BYTES Gauge "strake_nsd_free_bytes" ["nsd"]
        "Of these, free.";
    NSD_REPAIRED_STRIPS Counter "strake_nsd_repaired_strips_total" ["nsd"]
        "Strips of a disk that were rebuilt and rewritten.";
    NSD_UP Gauge "strake_nsd_up" ["nsd"]
        "1 if the disk is read and written, else 0.";
    OPERATION_BYTES Counter "strake_operation_bytes_total" ["operation"]
        "Bytes moved by operations that move any.";
    OPERATION_FAILURES Counter "strake_operation_failures_total" ["operation"]
        "Operations that failed.";
    OPERATION_SECONDS Counter "strake_operation_seconds_total" ["operation"]
        "The time of all operations together.";
    OPERATIONS Counter "strake_operations_total" ["operation"]
        "Operations. Those named fuse_… are the requests of programs; the others are parts of them.";
    PAGEPOOL_BYTES Gauge "strake_pagepool_bytes" []
        "The most memory that file data may take.";
    PAGEPOOL_DIRTY_BYTES Gauge "strake_pagepool_dirty_bytes" []
        "File data that is not on disk yet.";
    PAGEPOOL_USED_BYTES Gauge "strake_pagepool_used_bytes" []
        "File data held in memory.";
    PROCESSOR_SECONDS Counter "strake_processor_seconds_total" []
        "Processor time of the daemon's process.";
    SLOW Gauge "strake_slow_ratio" ["cause"]
        "The part of the time of requests that a cause explains, in the last ten minutes: what `strake diag explain slow` names.";
    WAIT_SECONDS_MAX Gauge "strake_wait_seconds_max" ["reason"]
        "How long the longest wait of this reason has lasted by now.";
    WAITS Gauge "strake_waits" ["reason"]
        "How many threads and requests wait for this reason now.";
}

/// The bounds of [`DISK_SECONDS`], in seconds.
const BOUNDS: [(&str, u64); 8] = [
    ("0.0001", 100_000),
    ("0.0005", 500_000),
    ("0.001", 1_000_000),
    ("0.005", 5_000_000),
    ("0.01", 10_000_000),
    ("0.05", 50_000_000),
    ("0.1", 100_000_000),
    ("1", 1_000_000_000),
];

/// One disk.
#[derive(Clone, Debug)]
pub struct NsdSample {
    /// Its name.
    pub name: String,
    /// Whether it is read and written.
    pub is_up: bool,
    /// All bytes for strips, and the free ones.
    pub space: (u64, u64),
    /// Strips found bad, and strips repaired.
    pub strips: (u64, u64),
}

/// What is known of a file system at one moment.
pub struct Scene {
    /// The file system's name.
    pub fs: String,
    /// The version of the program.
    pub version: String,
    /// The operations.
    pub operations: Vec<OperationSums>,
    /// What the disks did.
    pub disks: Vec<DiskRow>,
    /// The disks.
    pub nsds: BTreeMap<NsdId, NsdSample>,
    /// The page pool.
    pub pool: PoolSample,
    /// Memory of the process.
    pub resident: u64,
    /// Processor time of the process in nanoseconds.
    pub processor_nanos: u64,
    /// What waits.
    pub waiters: Vec<WaiterSnapshot>,
    /// How the components are.
    pub health: Health,
    /// What was slow.
    pub slow: SlowReport,
}

struct Text<'a> {
    out: String,
    fs: &'a str,
}

impl Text<'_> {
    /// Begins a metric. Its samples follow.
    fn begin(&mut self, metric: &Metric) {
        let Metric { name, kind, help, .. } = metric;
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {}", kind.word());
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: &str) {
        let _ = write!(self.out, "{name}{{fs=\"{}\"", escaped(self.fs));
        for (label, of) in labels {
            let _ = write!(self.out, ",{label}=\"{}\"", escaped(of));
        }
        let _ = writeln!(self.out, "}} {value}");
    }

    /// A sample. `of` has the values of the metric's labels.
    fn sample(&mut self, metric: &Metric, of: &[&str], value: f64) {
        assert_eq!(metric.labels.len(), of.len(), "{} has other labels", metric.name);
        let labels: Vec<_> = metric.labels.iter().copied().zip(of.iter().copied()).collect();
        self.line(metric.name, &labels, &value.to_string());
    }

    /// A metric with one sample for each row.
    fn all<T>(
        &mut self,
        metric: &Metric,
        rows: impl IntoIterator<Item = T>,
        row: impl Fn(&T) -> (Vec<String>, f64),
    ) {
        self.begin(metric);
        for it in rows {
            let (labels, value) = row(&it);
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            self.sample(metric, &labels, value);
        }
    }

    /// The buckets, the sum and the number of a histogram.
    fn histogram(&mut self, metric: &Metric, of: &[&str], sums: &DiskSums) {
        let labels: Vec<_> = metric.labels.iter().copied().zip(of.iter().copied()).collect();
        let name = format!("{}_bucket", metric.name);
        let all: u64 = sums.buckets.iter().map(|(_, count)| u64::from(*count)).sum();
        for (bound, nanos) in BOUNDS {
            let within =
                sums.buckets.iter().filter(|(at, _)| bucket_end(usize::from(*at)) <= nanos);
            let count: u64 = within.map(|(_, count)| u64::from(*count)).sum();
            let labels: Vec<_> = labels.iter().copied().chain([("le", bound)]).collect();
            self.line(&name, &labels, &count.to_string());
        }
        let infinite: Vec<_> = labels.iter().copied().chain([("le", "+Inf")]).collect();
        self.line(&name, &infinite, &all.to_string());
        self.line(&format!("{}_sum", metric.name), &labels, &seconds(sums.nanos).to_string());
        self.line(&format!("{}_count", metric.name), &labels, &all.to_string());
    }
}

/// A label's value, with the characters escaped that end it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// The value of a sample.
type Of<T> = fn(&T) -> f64;

/// Everything as text.
pub fn render(scene: &Scene) -> String {
    let mut text = Text { out: String::new(), fs: &scene.fs };
    let single = |value: u64| move |(): &()| (Vec::new(), value as f64);
    text.all(&BUILD_INFO, [()], |()| (vec![scene.version.clone()], 1.0));
    let nsd = |nsd: &NsdId| {
        scene.nsds.get(nsd).map_or_else(|| format!("NSD {nsd}"), |sample| sample.name.clone())
    };
    text.all(&DISK_BYTES, &scene.disks, |(of, work, sums)| {
        (vec![nsd(of), work.word().to_owned()], sums.bytes as f64)
    });
    text.begin(&DISK_SECONDS);
    for (of, work, sums) in &scene.disks {
        text.histogram(&DISK_SECONDS, &[&nsd(of), work.word()], sums);
    }
    text.all(&HEALTH, &scene.health.components, |it| {
        let value = match it.colour {
            Colour::Green => 0.0,
            Colour::Yellow => 1.0,
            Colour::Red => 2.0,
        };
        (vec![it.name.clone(), it.event.clone().unwrap_or_default()], value)
    });
    text.all(&MEMORY_RESIDENT, [()], single(scene.resident));
    let of_nsds: [(&Metric, Of<NsdSample>); 5] = [
        (&NSD_BAD_STRIPS, |it| it.strips.0 as f64),
        (&NSD_BYTES, |it| it.space.0 as f64),
        (&NSD_FREE_BYTES, |it| it.space.1 as f64),
        (&NSD_REPAIRED_STRIPS, |it| it.strips.1 as f64),
        (&NSD_UP, |it| f64::from(u8::from(it.is_up))),
    ];
    for (metric, of) in of_nsds {
        text.all(metric, scene.nsds.values(), |it| (vec![it.name.clone()], of(it)));
    }
    let of_operations: [(&Metric, Of<OperationSums>); 4] = [
        (&OPERATION_BYTES, |it| it.bytes as f64),
        (&OPERATION_FAILURES, |it| it.failures as f64),
        (&OPERATION_SECONDS, |it| seconds(it.nanos)),
        (&OPERATIONS, |it| it.count as f64),
    ];
    for (metric, of) in of_operations {
        text.all(metric, &scene.operations, |it| (vec![it.name.to_owned()], of(it)));
    }
    text.all(&PAGEPOOL_BYTES, [()], single(scene.pool.budget));
    text.all(&PAGEPOOL_DIRTY_BYTES, [()], single(scene.pool.dirty));
    text.all(&PAGEPOOL_USED_BYTES, [()], single(scene.pool.used));
    text.all(&PROCESSOR_SECONDS, [()], |()| (Vec::new(), seconds(scene.processor_nanos)));
    text.all(&SLOW, &scene.slow.findings, |it| (vec![it.id.clone()], it.percent as f64 / 100.0));
    let mut waits: BTreeMap<&str, (u64, f64)> = BTreeMap::new();
    for wait in &scene.waiters {
        let (count, longest) = waits.entry(&wait.reason).or_default();
        *count += 1;
        *longest = longest.max(wait.waited.as_secs_f64());
    }
    text.all(&WAIT_SECONDS_MAX, &waits, |(reason, (_, max))| (vec![(**reason).to_owned()], *max));
    text.all(&WAITS, &waits, |(reason, (count, _))| (vec![(**reason).to_owned()], *count as f64));
    text.out
}

#[cfg(test)]
#[path = "metrics_test.rs"]
mod metrics_test;
