//! `bench sas`: the I/O test of SAS sites: one stream per physical core, large sequential
//! writes and reads, judged in MB/s per physical core.
//!
//! The rules (SAS on ESS 3000 document): WORK and UTILLOC need 125 MB/s per physical core,
//! permanent data 75 to 100, and overall 100 to 125. MB is 2^20 bytes, as the arithmetic of that
//! document's table shows.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::crew::{Crews, Place, Relaunch};
use crate::error::{BenchError, Result};
use crate::host::{HostFacts, Target};
use crate::io::job::Job;
use crate::io::phase::{Counting, Operation};
use crate::io::run::{Measured, run_job};
use crate::report::{Better, Report, value_of};
use crate::size::ByteSize;
use crate::stop::Stop;
use crate::work::CacheFlush;

/// `bench sas` on the command line.
#[derive(Debug, Clone, clap::Args)]
pub struct SasArgs {
    /// Any directory; the run makes one of its own below it and removes it.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Bytes of all streams together: as large as memory by default, so that caches do not
    /// help, and never more than 80 % of the free space.
    #[arg(long, value_name = "SIZE")]
    pub file_size: Option<ByteSize>,
    /// Bytes per call.
    #[arg(long, value_name = "SIZE", default_value = "64K")]
    pub record: ByteSize,
    /// Streams; one per physical core by default.
    #[arg(long, value_name = "N")]
    pub streams: Option<u32>,
    /// Where it runs.
    #[command(flatten)]
    pub place: Place,
}

/// What the test found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// The directory.
    pub directory: PathBuf,
    /// The mount below it.
    pub target: Option<Target>,
    /// Hosts.
    pub hosts: usize,
    /// Physical cores of each.
    pub cores: u32,
    /// Bytes of all streams of a host.
    pub file_bytes: u64,
    /// Why that many, if not as asked or as large as memory.
    pub capped: Option<String>,
    /// Bytes per second over all hosts.
    pub write: f64,
    /// Bytes per second over all hosts.
    pub read: f64,
}

const MB: f64 = (1 << 20) as f64;

impl Found {
    fn per_core(&self, rate: f64) -> f64 {
        rate / MB / f64::from(self.cores) / self.hosts as f64
    }

    /// MB/s per physical core while writing.
    pub fn write_per_core(&self) -> f64 {
        self.per_core(self.write)
    }

    /// MB/s per physical core while reading.
    pub fn read_per_core(&self) -> f64 {
        self.per_core(self.read)
    }
}

/// The verdict by the rules: for each use whether the lower of both rates is enough.
pub fn verdict(found: &Found) -> Vec<(String, bool)> {
    let least = found.write_per_core().min(found.read_per_core());
    [("WORK and UTILLOC", 125.0), ("permanent data", 75.0), ("overall", 100.0)]
        .map(|(place, wanted)| {
            let enough = least >= wanted;
            let word = if enough { "enough" } else { "NOT ENOUGH" };
            let line = format!("{place}: needs {wanted:.0} MB/s per core, has {least:.0}: {word}");
            (line, enough)
        })
        .to_vec()
}

/// The RESULTS of the SAS document, and the verdict below them.
pub fn layout(found: &Found) -> String {
    let directory = found.directory.display();
    let mut text = format!(
        "RESULTS\n\nINVOCATION: strake bench sas {directory}\n\nTARGET DETAILS\ndirectory: \
         {directory}\n"
    );
    if let Some(target) = &found.target {
        let kib = |bytes: u64| bytes / 1024;
        let used = target.total_bytes.saturating_sub(target.free_bytes);
        let percent = (used as f64 / target.total_bytes.max(1) as f64 * 100.0).ceil();
        text.push_str(&format!(
            "df -k: {} {} {} {} {percent}% {}\nmount point: {} on {} type {} ({})\n",
            target.source,
            kib(target.total_bytes),
            kib(used),
            kib(target.free_bytes),
            target.mount_point,
            target.source,
            target.mount_point,
            target.kind,
            target.options
        ));
    }
    let gigabytes = found.file_bytes as f64 / f64::from(1 << 30);
    text.push_str(&format!("filesize: {gigabytes:.2} gigabytes\n"));
    if let Some(reason) = &found.capped {
        text.push_str(&format!("note: {reason}\n"));
    }
    text.push_str(&format!(
        "\nSTATISTICS\nread throughput rate: {:.2} megabytes/second per physical core\nwrite \
         throughput rate: {:.2} megabytes/second per physical core\n\nVERDICT ({} core{} on {} \
         host{})\n",
        found.read_per_core(),
        found.write_per_core(),
        found.cores,
        if found.cores == 1 { "" } else { "s" },
        found.hosts,
        if found.hosts == 1 { "" } else { "s" },
    ));
    for (line, _) in verdict(found) {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// How many bytes to move, and what to say about it.
fn size_to_use(
    asked: Option<ByteSize>,
    memory_bytes: u64,
    free_bytes: Option<u64>,
) -> (u64, Option<String>) {
    let wanted = asked.map_or(memory_bytes, |size| size.0);
    let limit = free_bytes.map_or(u64::MAX, |free| free / 5 * 4);
    if wanted > limit {
        let reason = format!(
            "capped by free space; {} were wanted",
            if asked.is_some() { "more bytes" } else { "as many bytes as memory has" }
        );
        return (limit, Some(reason));
    }
    if wanted < memory_bytes {
        let reason = "smaller than memory: caches may have helped to read".to_string();
        return (wanted, Some(reason));
    }
    (wanted, None)
}

/// Runs `bench sas`; returns the report and its text.
pub fn run(args: &SasArgs, stop: &Stop, relaunch: Relaunch<'_>) -> Result<(Report, String)> {
    let local = args.place.hosts.is_empty();
    let target = if local { Some(Target::of(&args.directory)?) } else { None };
    let streams_max = args.streams.unwrap_or_else(|| HostFacts::gather().cores as u32);
    let mut crews = Crews::assemble(&args.directory, &args.place, streams_max, stop, relaunch)?;
    let facts = crews.facts()?;
    let first = facts.first().ok_or_else(|| BenchError::Usage("no host".into()))?;
    let streams = args.streams.unwrap_or(first.cores as u32).max(1);
    let free = target.as_ref().map(|target| target.free_bytes);
    let (bytes, capped) = size_to_use(args.file_size, first.memory_bytes, free);
    let job = Job {
        operations: vec![Operation::Create, Operation::Read],
        record: args.record,
        size: ByteSize(bytes / u64::from(streams)),
        tasks: vec![streams],
        fsync: Counting::Counted,
        cache: CacheFlush::File,
        ..Job::default()
    };
    job.validate()?;
    let measured = run_job(&job, &mut crews)?;
    let rate = |operation: Operation| {
        let line: Option<&Measured> = measured.iter().find(|line| line.operation == operation);
        line.map_or(0.0, |line| line.rates.natural_aggregate)
    };
    let found = Found {
        directory: args.directory.clone(),
        target: target.clone(),
        hosts: crews.hosts(),
        cores: first.cores as u32,
        file_bytes: job.bytes_per_task() * u64::from(streams),
        capped,
        write: rate(Operation::Create),
        read: rate(Operation::Read),
    };
    let mut report = Report::new("sas", facts.clone(), target);
    let unit = "MB/s per core";
    report.sample("sas write", unit, Better::Higher, found.write_per_core());
    report.sample("sas read", unit, Better::Higher, found.read_per_core());
    report.settings = value_of(&job);
    report.detail = value_of(&found);
    Ok((report, layout(&found)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The single-node results of the SAS document: 48 cores, 251.33 GB, 244.81 MB/s per core
    /// written and 197.33 read (11.4 and 9.3 GB/s in its table of totals).
    fn document() -> Found {
        Found {
            directory: "/gpfs/Test_8M/isv650-02/singlenode".into(),
            target: Some(Target {
                source: "Test_8M".into(),
                mount_point: "/gpfs/Test_8M".into(),
                kind: "gpfs".into(),
                options: "rw,nodev,relatime,seclabel".into(),
                total_bytes: 64_375_783_424 * 1024,
                free_bytes: 64_368_050_176 * 1024,
            }),
            hosts: 1,
            cores: 48,
            file_bytes: (251.33 * f64::from(1 << 30)) as u64,
            capped: None,
            write: 244.81 * 48.0 * MB,
            read: 197.33 * 48.0 * MB,
        }
    }

    #[test]
    fn the_results_of_the_sas_document() {
        let wanted = "RESULTS\n\n\
            INVOCATION: strake bench sas /gpfs/Test_8M/isv650-02/singlenode\n\n\
            TARGET DETAILS\n\
            directory: /gpfs/Test_8M/isv650-02/singlenode\n\
            df -k: Test_8M 64375783424 7733248 64368050176 1% /gpfs/Test_8M\n\
            mount point: Test_8M on /gpfs/Test_8M type gpfs (rw,nodev,relatime,seclabel)\n\
            filesize: 251.33 gigabytes\n\n\
            STATISTICS\n\
            read throughput rate: 197.33 megabytes/second per physical core\n\
            write throughput rate: 244.81 megabytes/second per physical core\n\n\
            VERDICT (48 cores on 1 host)\n\
            WORK and UTILLOC: needs 125 MB/s per core, has 197: enough\n\
            permanent data: needs 75 MB/s per core, has 197: enough\n\
            overall: needs 100 MB/s per core, has 197: enough\n";
        assert_eq!(layout(&document()), wanted);
    }

    /// Its table of totals: GB × 1024 ÷ cores gives the figures per core (11.4 ▶ 243.2, printed
    /// 244; 30.4 over four nodes ▶ 162.1, printed 163; 36.9 ▶ 196.8, printed 196).
    #[test]
    fn totals_and_figures_per_core_agree() {
        let per_core = |gigabytes: f64, nodes: f64| gigabytes * 1024.0 / (48.0 * nodes);
        for (gigabytes, nodes, printed) in
            [(11.4, 1.0, 244.0), (9.3, 1.0, 198.4), (30.4, 4.0, 163.0), (36.9, 4.0, 196.0)]
        {
            assert!((per_core(gigabytes, nodes) - printed).abs() < 1.5, "{gigabytes}");
        }
        let four = Found { hosts: 4, write: 30.4 * 1024.0 * MB, ..document() };
        assert_eq!(four.write_per_core().round(), 162.0);
    }

    #[test]
    fn each_rule_has_its_threshold() {
        let judged = |per_core: f64| {
            let rate = per_core * 48.0 * MB;
            verdict(&Found { write: rate, ..document() })
                .iter()
                .map(|(_, ok)| *ok)
                .collect::<Vec<_>>()
        };
        assert_eq!(judged(126.0), [true, true, true]);
        assert_eq!(judged(110.0), [false, true, true]);
        assert_eq!(judged(80.0), [false, true, false]);
        assert_eq!(judged(70.0), [false, false, false]);
    }

    #[test]
    fn the_size_is_capped_and_it_says_so() {
        assert_eq!(size_to_use(None, 100, Some(1_000)), (100, None));
        let (bytes, reason) = size_to_use(None, 1_000, Some(100));
        assert_eq!(bytes, 80);
        assert!(reason.unwrap().contains("capped by free space"));
        let (bytes, reason) = size_to_use(Some(ByteSize(10)), 1_000, Some(100));
        assert_eq!(bytes, 10);
        assert!(reason.unwrap().contains("smaller than memory"));
    }
}
