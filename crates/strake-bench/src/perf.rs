//! `bench perf`: one file, one pattern, said the way gpfsperf says it and reported in its lines.
//!
//! Unlike the other benchmarks it works on a file the user names and leaves it there, because
//! `create` is followed by `read` of the same file. A create that is interrupted removes it.

use std::fs;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::crew::{Crews, check_space};
use crate::error::{BenchError, Result};
use crate::io::phase::{Counting, Files, Layout, Operation, Phase};
use crate::metric::Rates;
use crate::outcome::CpuUse;
use crate::pattern::Pattern;
use crate::report::{Better, Report, value_of};
use crate::size::ByteSize;
use crate::stop::Stop;
use crate::work::{CacheFlush, Work};

/// `bench perf` on the command line. Its options have one dash and several letters, which the
/// parser of the other commands does not read.
#[derive(Debug, Clone, clap::Args)]
pub struct PerfArgs {
    /// create|read|write seq|rand|randhint|strided FILE, and options
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub words: Vec<String>,
}

/// What the words mean.
pub const HELP: &str = "\
Words: OPERATION PATTERN [OPTIONS] FILE
  OPERATION      create (FILE must not exist), read, write (FILE must exist; is written over)
  PATTERN        seq, rand, randhint, strided, backward
  -n BYTES       bytes to transfer, all threads together (size of the file; create: 256M)
  -r BYTES       record size (256K)
  -s BYTES       distance of strided records (record size × 101)
  -th N          threads (1)
  -fsync         fsync at the end, counted
  -dio           direct I/O
  -noinv         leave the file in the cache before reading
  -latency       the newer line, with operation rate and average latency
  --json         the report as JSON

Examples:
  strake bench perf create seq -n 1G -r 8m /tmp/perf.file
  strake bench perf read rand -n 64m -r 8m /tmp/perf.file
  strake bench perf read strided -r 16k -s 1616k -th 4 /tmp/perf.file; rm /tmp/perf.file";

/// A job of `bench perf`.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Job {
    operation: Operation,
    pattern: String,
    file: PathBuf,
    bytes: Option<u64>,
    record_bytes: u64,
    stride_bytes: Option<u64>,
    threads: u32,
    fsync: bool,
    direct: bool,
    keep_cache: bool,
    latency: bool,
    json: bool,
}

impl Job {
    /// Reads the words of the command line.
    pub fn parse(words: &[String]) -> Result<Job> {
        let usage = |message: String| BenchError::Usage(format!("{message}\n\n{HELP}"));
        let mut places = Vec::new();
        let mut job = Job {
            operation: Operation::Read,
            pattern: "seq".into(),
            file: PathBuf::new(),
            bytes: None,
            record_bytes: 256 << 10,
            stride_bytes: None,
            threads: 1,
            fsync: false,
            direct: false,
            keep_cache: false,
            latency: false,
            json: false,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut size = || -> Result<u64> {
                let value = words.next().ok_or_else(|| usage(format!("{word} needs a value")))?;
                let size: ByteSize = value.parse().map_err(&usage)?;
                Ok(size.0)
            };
            match word.as_str() {
                "-n" => job.bytes = Some(size()?),
                "-r" => job.record_bytes = size()?,
                "-s" => job.stride_bytes = Some(size()?),
                "-th" => {
                    let threads = u32::try_from(size()?).ok().filter(|n| (1..=4096).contains(n));
                    job.threads = threads.ok_or_else(|| usage("-th takes 1 to 4096".into()))?;
                }
                "-fsync" => job.fsync = true,
                "-dio" => job.direct = true,
                "-noinv" => job.keep_cache = true,
                "-latency" => job.latency = true,
                "--json" => job.json = true,
                _ if word.starts_with('-') => {
                    return Err(usage(format!("`{word}` is not supported here")));
                }
                _ => places.push(word.clone()),
            }
        }
        let [operation, pattern, file] = <[String; 3]>::try_from(places).map_err(|found| {
            usage(format!("give an operation, a pattern and a file: {found:?}"))
        })?;
        job.operation = match operation.as_str() {
            "create" => Operation::Create,
            "read" => Operation::Read,
            "write" => Operation::Rewrite,
            other => return Err(usage(format!("no operation `{other}`"))),
        };
        job.pattern = pattern;
        job.file = PathBuf::from(file);
        if job.record_bytes == 0 {
            return Err(usage("-r must not be 0".into()));
        }
        job.pattern()?;
        Ok(job)
    }

    fn pattern(&self) -> Result<Pattern> {
        let skip = match self.stride_bytes {
            None => 100,
            Some(bytes) if bytes >= self.record_bytes => bytes / self.record_bytes - 1,
            Some(_) => return Err(BenchError::Usage("-s must be at least the record".into())),
        };
        match self.pattern.as_str() {
            "strided" => Ok(Pattern::Strided { skip }),
            "seq" | "rand" | "randhint" | "backward" => {
                self.pattern.parse().map_err(BenchError::Usage)
            }
            other => Err(BenchError::Usage(format!("no pattern `{other}`\n\n{HELP}"))),
        }
    }

    /// The phase, once the size of the file is known. Threads divide the transfer. Sequential
    /// patterns work on the first so many bytes of the file, the others on all of it.
    fn phase(&self, file_bytes: u64) -> Result<Phase> {
        let threads = u64::from(self.threads);
        let bytes = self.bytes_to_transfer(file_bytes).min(file_bytes);
        let visits = bytes / self.record_bytes / threads;
        let within = match self.pattern()? {
            Pattern::Sequential => visits,
            _ => file_bytes / self.record_bytes / threads,
        };
        if visits == 0 || within == 0 {
            return Err(BenchError::Usage(format!(
                "{} threads have no record of {} to transfer in a file of {}",
                self.threads,
                ByteSize(self.record_bytes),
                ByteSize(file_bytes)
            )));
        }
        Ok(Phase {
            operation: self.operation,
            pattern: self.pattern()?,
            record_bytes: self.record_bytes,
            records: within,
            visits: vec![visits.min(within); self.threads as usize],
            layout: Layout::Segmented,
            files: Files::Named(self.file.clone()),
            direct: self.direct,
            fsync: if self.fsync { Counting::Counted } else { Counting::No },
            fsync_each: false,
            close_counted: true,
            cache: if self.keep_cache { CacheFlush::Keep } else { CacheFlush::File },
            verify: false,
            hint_records: 16,
            seed: 1,
            shift: 0,
            generation: 0,
            stonewall_seconds: None,
        })
    }

    fn bytes_to_transfer(&self, file_bytes: u64) -> u64 {
        self.bytes.unwrap_or(file_bytes)
    }
}

/// What a run found.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Found {
    /// Size of the file afterwards.
    pub file_bytes: u64,
    /// Bytes asked for.
    pub bytes_to_transfer: u64,
    /// Rates over all threads.
    pub rates: Rates,
    /// Mean latency in milliseconds.
    pub average_ms: f64,
    /// The host's processors.
    pub cpu: CpuUse,
}

/// The lines of gpfsperf: the command, the parameters, the conditions, the result.
pub fn lines(job: &Job, found: &Found) -> String {
    let operation = match job.operation {
        Operation::Rewrite => "write",
        other => other.name(),
    };
    let not = |done: bool, text: &str| format!("{}{text}\n", if done { "" } else { "not " });
    let mut text = format!(
        "strake bench perf {operation} {} {}\nrecSize {} nBytes {} fileSize {}\nnProcesses 1 \
         nThreadsPerProcess {}\n",
        job.pattern,
        job.file.display(),
        ByteSize(job.record_bytes),
        ByteSize(found.bytes_to_transfer),
        ByteSize(found.file_bytes),
        job.threads
    );
    let flushed = if job.keep_cache { "not flushed" } else { "flushed" };
    text.push_str(&format!("file cache {flushed} before test\n"));
    text.push_str("not using data shipping\n");
    text.push_str(&not(job.direct, "using direct I/O"));
    text.push_str("offsets accessed will cycle through the same file segment\n");
    text.push_str("not using shared memory buffer\nnot releasing byte-range token after open\n");
    if job.operation.writes() {
        text.push_str(if job.fsync {
            "fsync at end of test\n"
        } else {
            "no fsync at end of test\n"
        });
    }
    let rates = &found.rates;
    // Kbytes of 1,024 bytes, as recomputed from the document's own figures.
    let kbytes = rates.natural_aggregate / 1024.0;
    if job.latency {
        text.push_str(&format!(
            "  Data rate was {kbytes:.2} Kbytes/sec, Op Rate was {:.2} Ops/sec, Avg Latency was \
             {:.3} milliseconds, thread utilization {:.3}, bytesTransferred {}\n",
            rates.operations_per_second, found.average_ms, rates.thread_utilization, rates.bytes
        ));
        return text;
    }
    text.push_str(&format!(
        "Data rate was {kbytes:.2} Kbytes/sec, iops was {:.2}, thread utilization {:.3}\nRecord \
         size: {} bytes, {} bytes to transfer, {} bytes transferred\nCPU utilization: user \
         {:.2}%, sys {:.2}%, idle {:.2}%, wait {:.2}%\n",
        rates.operations_per_second,
        rates.thread_utilization,
        job.record_bytes,
        found.bytes_to_transfer,
        rates.bytes,
        found.cpu.user * 100.0,
        found.cpu.system * 100.0,
        found.cpu.idle * 100.0,
        found.cpu.wait * 100.0
    ));
    text
}

/// Size of a file or of a device.
pub fn size_of(path: &Path) -> Result<u64> {
    let mut file = fs::File::open(path).map_err(|error| BenchError::path("open", path, error))?;
    file.seek(SeekFrom::End(0)).map_err(|error| BenchError::path("find the size of", path, error))
}

/// Removes a file that was not finished.
struct Unfinished<'a>(Option<&'a Path>);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0
            && let Err(error) = fs::remove_file(path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            crate::tell("bench", &BenchError::path("remove", path, error));
        }
    }
}

/// Runs `bench perf`; returns whether JSON is wanted, the report and its text.
pub fn run(args: &PerfArgs, stop: &Stop) -> Result<(bool, Report, String)> {
    let job = Job::parse(&args.words)?;
    let parent = match job.file.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let creating = job.operation == Operation::Create;
    let file_bytes = if creating {
        if job.file.exists() {
            let file = job.file.display();
            return Err(BenchError::Usage(format!(
                "{file} exists; remove it, or use `write` to write over it"
            )));
        }
        let bytes = job.bytes.unwrap_or(256 << 20);
        bytes - bytes % (job.record_bytes * u64::from(job.threads)).max(1)
    } else {
        size_of(&job.file)?
    };
    let target = check_space(parent, if creating { file_bytes } else { 0 })?;
    let phase = job.phase(file_bytes)?;
    let mut unfinished = Unfinished(creating.then_some(job.file.as_path()));
    let mut crews = Crews::on_named_files(stop);
    let mut report = Report::new("perf", crews.facts()?, Some(target));
    let outcome = crews.run(job.operation.name(), &Work::Io(phase), job.threads)?;
    unfinished.0 = None;
    let found = Found {
        file_bytes,
        bytes_to_transfer: job.bytes_to_transfer(file_bytes),
        rates: outcome.rates(),
        average_ms: outcome.latency().mean_ns() / 1e6,
        cpu: outcome.cpu(),
    };
    let name = format!("perf {} {} {}", job.operation.name(), job.pattern, job.threads);
    let rate = found.rates.natural_aggregate / f64::from(1 << 20);
    report.sample(&name, "MiB/s", Better::Higher, rate);
    report.settings = value_of(&job);
    report.detail = value_of(&found);
    Ok((job.json, report, lines(&job, &found)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_string).collect()
    }

    /// The first run of the performance session: 10 GiB in records of 8 MiB, 3,268,199.54
    /// Kbytes/sec, 398.95 operations per second. Kbytes are 1,024 bytes: 3268199.54 × 1024 /
    /// 8388608 = 398.95.
    #[test]
    fn the_lines_of_the_performance_session() {
        let job = Job::parse(&words("create seq -n 10G -r 8m /ibm/fs2-8m/test-10g-write")).unwrap();
        let seconds = 10_737_418_240.0 / (3_268_199.54 * 1024.0);
        let rates = crate::metric::rates(&[crate::metric::TaskSample {
            bytes: 10_737_418_240,
            operations: 1280,
            seconds,
            busy_seconds: seconds * 0.984,
        }]);
        let cpu = CpuUse { user: 0.0368, system: 0.0387, idle: 0.9245, wait: 0.0 };
        let found = Found {
            file_bytes: 10 << 30,
            bytes_to_transfer: 10 << 30,
            rates,
            average_ms: 2.5,
            cpu,
        };
        let wanted = "strake bench perf create seq /ibm/fs2-8m/test-10g-write\n\
            recSize 8M nBytes 10G fileSize 10G\n\
            nProcesses 1 nThreadsPerProcess 1\n\
            file cache flushed before test\n\
            not using data shipping\n\
            not using direct I/O\n\
            offsets accessed will cycle through the same file segment\n\
            not using shared memory buffer\n\
            not releasing byte-range token after open\n\
            no fsync at end of test\n\
            Data rate was 3268199.54 Kbytes/sec, iops was 398.95, thread utilization 0.984\n\
            Record size: 8388608 bytes, 10737418240 bytes to transfer, 10737418240 bytes \
            transferred\n\
            CPU utilization: user 3.68%, sys 3.87%, idle 92.45%, wait 0.00%\n";
        assert_eq!(lines(&job, &found), wanted);
        let newer = Job { latency: true, ..job };
        let line = "  Data rate was 3268199.54 Kbytes/sec, Op Rate was 398.95 Ops/sec, Avg \
            Latency was 2.500 milliseconds, thread utilization 0.984, bytesTransferred 10737418240\n";
        assert!(lines(&newer, &found).ends_with(line));
    }

    #[test]
    fn threads_divide_the_transfer_and_random_reads_reach_the_whole_file() {
        let job = Job::parse(&words("read rand -n 64m -r 8m -th 2 f")).unwrap();
        let phase = job.phase(10 << 30).unwrap();
        assert_eq!((phase.records, phase.visits.clone()), (640, vec![4, 4]));
        let job = Job::parse(&words("read seq -n 64m -r 8m f")).unwrap();
        assert_eq!(job.phase(10 << 30).unwrap().records, 8);
        let job = Job::parse(&words("read strided -r 16k -s 1616k f")).unwrap();
        assert_eq!(job.phase(1 << 30).unwrap().pattern, Pattern::Strided { skip: 100 });
        assert!(job.phase(1000).is_err());
    }

    #[test]
    fn nonsense_is_refused_with_help() {
        for text in ["read seq", "read zigzag f", "paint seq f", "read seq f -shm", "read seq f -n"]
        {
            assert!(matches!(Job::parse(&words(text)), Err(BenchError::Usage(_))), "{text}");
        }
    }
}
