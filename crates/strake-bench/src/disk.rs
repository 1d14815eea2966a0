//! `bench disk`: measures what each disk can do by itself. It compares a disk with what its kind
//! should do and with its peers, because the slowest disk of a set makes all others wait.
//!
//! This command only reads, unless `--destroy` is given. It then also writes all over the device.
//! It first opens the device for exclusive use, which the kernel refuses for anything mounted or in
//! use.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::crew::{self, Crews};
use crate::error::{BenchError, Result};
use crate::figures::figure;
use crate::host::HostFacts;
use crate::io::phase::{Counting, Files, Layout, Operation, Phase};
use crate::outcome::PhaseOutcome;
use crate::pattern::Pattern;
use crate::perf::size_of;
use crate::report::{Better, Report, value_of};
use crate::scratch;
use crate::size;
use crate::statistics::summarize;
use crate::stop::Stop;
use crate::work::{CacheFlush, Work};
use strake_report::Table;

/// `bench disk` on the command line.
#[derive(Debug, Clone, clap::Args)]
pub struct DiskArgs {
    /// Devices or large files.
    #[arg(value_name = "DEVICE", required = true)]
    pub paths: Vec<PathBuf>,
    /// How long each test goes on.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = size::parse_seconds)]
    pub time: f64,
    /// What they should be; found out if not given.
    #[arg(long, value_enum)]
    pub class: Option<Class>,
    /// Test all at the same time instead of one after the other: shows what they share.
    #[arg(long)]
    pub together: bool,
    /// Also write. EVERYTHING ON THE DEVICES IS LOST.
    #[arg(long)]
    pub destroy: bool,
    /// Print the report as JSON on standard output.
    #[arg(long)]
    pub json: bool,
}

/// Kinds of disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// 7,200 rpm.
    NlSas,
    /// 10,000 rpm.
    Sas10k,
    /// Solid state behind SAS or SATA.
    Ssd,
    /// Solid state on PCIe.
    Nvme,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Probe {
    /// 1 MiB records in order.
    SequentialRead,
    /// 2 MiB records at random.
    Random2mRead,
    /// 128 KiB records at random, 16 at a time.
    Random128kRead,
    /// 4 KiB records at random, one at a time.
    Random4kRead,
    /// 4 KiB records at random, 16 at a time.
    Random4kDeepRead,
    /// 1 MiB records in order.
    SequentialWrite,
    /// 2 MiB records at random.
    Random2mWrite,
    /// 4 KiB records at random, 16 at a time.
    Random4kDeepWrite,
}

impl Probe {
    const READS: [Probe; 5] = [
        Probe::SequentialRead,
        Probe::Random2mRead,
        Probe::Random128kRead,
        Probe::Random4kRead,
        Probe::Random4kDeepRead,
    ];
    const WRITES: [Probe; 3] =
        [Probe::SequentialWrite, Probe::Random2mWrite, Probe::Random4kDeepWrite];

    fn name(self) -> &'static str {
        match self {
            Probe::SequentialRead => "seq read",
            Probe::Random2mRead => "2M rand read",
            Probe::Random128kRead => "128K rand read x16",
            Probe::Random4kRead => "4K rand read",
            Probe::Random4kDeepRead => "4K rand read x16",
            Probe::SequentialWrite => "seq write",
            Probe::Random2mWrite => "2M rand write",
            Probe::Random4kDeepWrite => "4K rand write x16",
        }
    }

    fn unit(self) -> &'static str {
        if self.is_by_bytes() { "MB/s" } else { "IOPS" }
    }

    fn is_by_bytes(self) -> bool {
        use Probe::{Random2mRead, Random2mWrite, SequentialRead, SequentialWrite};
        matches!(self, SequentialRead | SequentialWrite | Random2mRead | Random2mWrite)
    }

    fn writes(self) -> bool {
        Probe::WRITES.contains(&self)
    }

    /// Record size and threads.
    fn shape(self) -> (u64, u32) {
        match self {
            Probe::SequentialRead | Probe::SequentialWrite => (1 << 20, 1),
            Probe::Random2mRead | Probe::Random2mWrite => (2 << 20, 1),
            Probe::Random128kRead => (128 << 10, 16),
            Probe::Random4kRead => (4 << 10, 1),
            Probe::Random4kDeepRead | Probe::Random4kDeepWrite => (4 << 10, 16),
        }
    }

    /// The figure that a disk of this class should reach. The bandwidths and the 4 KiB rates are
    /// the "numbers you need to know" of the performance session. The rates of 128 KiB at depth 16
    /// are the minima of the published readiness check for storage servers.
    pub fn expected(self, class: Class) -> Option<f64> {
        use Class::{NlSas, Nvme, Sas10k, Ssd};
        match (self, class) {
            (Probe::SequentialRead | Probe::SequentialWrite, NlSas) => Some(100.0),
            (Probe::Random2mRead | Probe::Random2mWrite, NlSas) => Some(75.0),
            (Probe::Random4kRead, NlSas) => Some(100.0),
            (Probe::Random4kRead, Sas10k) => Some(200.0),
            (Probe::SequentialRead, Ssd) => Some(300.0),
            (Probe::SequentialWrite, Ssd) => Some(200.0),
            (Probe::Random4kDeepRead, Ssd) => Some(20_000.0),
            (Probe::Random4kDeepWrite, Ssd) => Some(4_000.0),
            (Probe::Random128kRead, NlSas) => Some(55.0),
            (Probe::Random128kRead, Ssd) => Some(800.0),
            (Probe::Random128kRead, Nvme) => Some(10_000.0),
            _ => None,
        }
    }
}

/// One figure of one disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What was measured.
    pub probe: Probe,
    /// MB/s (10^6) or operations per second.
    pub found: f64,
    /// What a disk of its class should reach.
    pub expected: Option<f64>,
    /// The worst single operation, in milliseconds.
    pub worst_ms: f64,
}

/// All figures of one disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Disk {
    /// Its path.
    pub path: PathBuf,
    /// Its class, given or found.
    pub class: Option<Class>,
    /// Its size in bytes.
    pub bytes: u64,
    /// False if the disk takes no direct I/O. The page cache may then have helped.
    pub direct: bool,
    /// Its figures.
    pub figures: Vec<Figure>,
}

/// Disks of one kind differ by less than this (published readiness check).
const PEER_SPREAD: f64 = 0.10;

/// Says in sentences which disks are slow: below their class, or behind their peers.
pub fn verdict(disks: &[Disk]) -> Vec<String> {
    let mut faults = Vec::new();
    for disk in disks {
        for figure_of in &disk.figures {
            let probe = figure_of.probe;
            let found = format!("{} {}", figure(figure_of.found), probe.unit());
            if let Some(expected) = figure_of.expected
                && figure_of.found < expected
            {
                faults.push(format!(
                    "{}: {} gives {found}; its kind gives {} or more",
                    disk.path.display(),
                    probe.name(),
                    figure(expected)
                ));
            }
            let peers: Vec<f64> = disks
                .iter()
                .filter(|peer| peer.class == disk.class)
                .flat_map(|peer| &peer.figures)
                .filter(|other| other.probe == probe)
                .map(|other| other.found)
                .collect();
            let median = summarize(&peers).median;
            if peers.len() > 2 && figure_of.found < median * (1.0 - PEER_SPREAD) {
                faults.push(format!(
                    "{}: {} gives {found}; the median of its peers is {}",
                    disk.path.display(),
                    probe.name(),
                    figure(median)
                ));
            }
        }
    }
    faults
}

/// The table of all disks and the verdict.
pub fn layout(disks: &[Disk]) -> String {
    let mut table = Table::new(&["disk", "test", "found", "expected", "unit", "worst"], &[0, 1, 4]);
    for disk in disks {
        for line in &disk.figures {
            table.row(vec![
                disk.path.display().to_string(),
                line.probe.name().into(),
                figure(line.found),
                line.expected.map_or("-".into(), figure),
                line.probe.unit().into(),
                format!("{} ms", figure(line.worst_ms)),
            ]);
        }
    }
    let mut text = table.render();
    for disk in disks.iter().filter(|disk| !disk.direct) {
        let path = disk.path.display();
        text.push_str(&format!("{path} takes no direct I/O: the page cache may have helped.\n"));
    }
    let faults = verdict(disks);
    text.push('\n');
    match faults.is_empty() {
        true => text.push_str("No disk is slow.\n"),
        false => faults.iter().for_each(|fault| text.push_str(&format!("SLOW {fault}\n"))),
    }
    text
}

/// The kind of a disk, as far as the kernel knows it.
fn class_of(path: &Path) -> Option<Class> {
    let real = path.canonicalize().ok()?;
    let name = real.file_name()?.to_str()?;
    if !fs::metadata(&real).ok()?.file_type().is_block_device() {
        return None;
    }
    let block = Path::new("/sys/class/block").join(name);
    // A partition has no queue of its own; its disk is one level up.
    let rotational = fs::read_to_string(block.join("queue/rotational"))
        .or_else(|_| fs::read_to_string(block.join("../queue/rotational")))
        .ok()?;
    match (rotational.trim(), name.starts_with("nvme")) {
        ("1", _) => Some(Class::NlSas),
        (_, true) => Some(Class::Nvme),
        _ => Some(Class::Ssd),
    }
}

fn phase(probe: Probe, path: &Path, bytes: u64, direct: bool, seconds: f64) -> Result<Phase> {
    let (record_bytes, threads) = probe.shape();
    let records = bytes / record_bytes / u64::from(threads);
    if records == 0 {
        return Err(BenchError::Usage(format!("{} is too small to test", path.display())));
    }
    let random = !matches!(probe, Probe::SequentialRead | Probe::SequentialWrite);
    Ok(Phase {
        operation: if probe.writes() { Operation::Rewrite } else { Operation::Read },
        pattern: if random { Pattern::Random } else { Pattern::Sequential },
        record_bytes,
        records,
        visits: Vec::new(),
        layout: Layout::Segmented,
        files: Files::Named(path.to_path_buf()),
        direct,
        fsync: Counting::Counted,
        fsync_each: false,
        close_counted: true,
        cache: CacheFlush::File,
        verify: false,
        hint_records: 0,
        // Each run visits other places, so that no cache of the device remembers the last run.
        seed: scratch::random_word(),
        shift: 0,
        generation: 0,
        stonewall_seconds: Some(seconds),
    })
}

/// Whether a path takes direct I/O.
fn takes_direct(path: &Path) -> bool {
    let flags = OFlags::DIRECT.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(path).is_ok()
}

/// Holds a device for exclusive use while it is overwritten. The kernel refuses a device that is
/// mounted or part of something else.
fn claim(path: &Path) -> Result<File> {
    let flags = OFlags::EXCL.bits().cast_signed();
    let claimed = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
    claimed.map_err(|error| BenchError::path("take for exclusive use", path, error))
}

fn figure_of(probe: Probe, class: Option<Class>, outcome: &PhaseOutcome) -> Figure {
    let rates = outcome.rates();
    let found = match probe.is_by_bytes() {
        true => rates.natural_aggregate / 1e6,
        false => rates.operations_per_second,
    };
    Figure {
        probe,
        found,
        expected: class.and_then(|class| probe.expected(class)),
        worst_ms: outcome.latency().max_ns() as f64 / 1e6,
    }
}

/// Runs `bench disk`; returns the report and its text.
pub fn run(args: &DiskArgs, stop: &Stop) -> Result<(Report, String)> {
    let mut claims = Vec::new();
    let mut disks = Vec::new();
    for path in &args.paths {
        if args.destroy {
            claims.push(claim(path)?);
        }
        disks.push(Disk {
            class: args.class.or_else(|| class_of(path)),
            bytes: size_of(path)?,
            direct: takes_direct(path),
            path: path.clone(),
            figures: Vec::new(),
        });
    }
    let mut probes = Probe::READS.to_vec();
    if args.destroy {
        probes.extend(Probe::WRITES);
    }
    let mut teams: Vec<Crews> = disks.iter().map(|_| Crews::on_named_files(stop)).collect();
    for &probe in &probes {
        let works: Vec<Work> = disks
            .iter()
            .map(|disk| phase(probe, &disk.path, disk.bytes, disk.direct, args.time).map(Work::Io))
            .collect::<Result<_>>()?;
        let (_, threads) = probe.shape();
        let mut jobs: Vec<(&mut Crews, &Work, u32)> =
            teams.iter_mut().zip(&works).map(|(crews, work)| (crews, work, threads)).collect();
        let outcomes = if args.together {
            crew::run_together(&mut jobs, probe.name())?
        } else {
            let mut outcomes = Vec::new();
            for (job, disk) in jobs.chunks_mut(1).zip(&disks) {
                let label = format!("{}: {}", disk.path.display(), probe.name());
                outcomes.extend(crew::run_together(job, &label)?);
            }
            outcomes
        };
        for (disk, outcome) in disks.iter_mut().zip(&outcomes) {
            disk.figures.push(figure_of(probe, disk.class, outcome));
        }
    }
    let mut report = Report::new("disk", vec![HostFacts::gather()], None);
    for disk in &disks {
        for line in &disk.figures {
            let name = format!("disk {} {}", line.probe.name(), disk.path.display());
            report.sample(&name, line.probe.unit(), Better::Higher, line.found);
        }
    }
    report.settings = serde_json::json!({
        "seconds": args.time, "together": args.together, "destroy": args.destroy,
    });
    report.detail = serde_json::json!({"disks": value_of(&disks), "slow": verdict(&disks)});
    Ok((report, layout(&disks)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(name: &str, found: f64) -> Disk {
        let probe = Probe::SequentialRead;
        let class = Some(Class::NlSas);
        let expected = probe.expected(Class::NlSas);
        Disk {
            path: name.into(),
            class,
            bytes: 1 << 40,
            direct: true,
            figures: vec![Figure { probe, found, expected, worst_ms: 12.0 }],
        }
    }

    #[test]
    fn the_slow_disk_is_named() {
        let disks = [disk("a", 180.0), disk("b", 178.0), disk("c", 140.0), disk("d", 60.0)];
        let faults = verdict(&disks);
        assert_eq!(
            faults,
            [
                "c: seq read gives 140 MB/s; the median of its peers is 159",
                "d: seq read gives 60.0 MB/s; its kind gives 100 or more",
                "d: seq read gives 60.0 MB/s; the median of its peers is 159",
            ]
        );
        assert!(verdict(&disks[..2]).is_empty());
        assert!(layout(&disks[..2]).ends_with("No disk is slow.\n"));
    }

    #[test]
    fn golden_layout() {
        let text = layout(&[disk("/dev/sda", 180.0)]);
        let wanted = "disk      test      found  expected  unit    worst\n\
                      /dev/sda  seq read    180       100  MB/s  12.0 ms\n\n\
                      No disk is slow.\n";
        assert_eq!(text, wanted);
    }

    /// "Numbers you need to know" of the performance session.
    #[test]
    fn expectations_are_those_of_the_tables() {
        assert_eq!(Probe::SequentialRead.expected(Class::NlSas), Some(100.0));
        assert_eq!(Probe::Random2mRead.expected(Class::NlSas), Some(75.0));
        assert_eq!(Probe::Random4kRead.expected(Class::NlSas), Some(100.0));
        assert_eq!(Probe::Random4kRead.expected(Class::Sas10k), Some(200.0));
        assert_eq!(Probe::SequentialRead.expected(Class::Ssd), Some(300.0));
        assert_eq!(Probe::SequentialWrite.expected(Class::Ssd), Some(200.0));
        assert_eq!(Probe::Random4kDeepRead.expected(Class::Ssd), Some(20_000.0));
        assert_eq!(Probe::Random4kDeepWrite.expected(Class::Ssd), Some(4_000.0));
    }

    #[test]
    fn only_destroy_writes() {
        assert!(Probe::READS.iter().all(|probe| !probe.writes()));
        assert!(Probe::WRITES.iter().all(|probe| probe.writes()));
        let phase = phase(Probe::Random4kRead, Path::new("x"), 1 << 30, true, 1.0).unwrap();
        assert_eq!(phase.operation, Operation::Read);
    }
}
