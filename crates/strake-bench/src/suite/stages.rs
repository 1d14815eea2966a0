//! The stages of the suite: what is measured, how long, in which order.
//!
//! A calibration first finds out how much the directory takes in a unit of time, so that the
//! same suite is balanced on a memory file system and on a slow disk. Every writing stage is
//! bounded by that amount and by a stonewall, every reading stage by what was written. All
//! stages are repeated in turn, not one after the other, so that drift of the system shows as
//! scatter of every figure instead of as a difference between two.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::clock::Tick;
use crate::crew::Crews;
use crate::error::{BenchError, Result};
use crate::host::{self, Target};
use crate::io::job::Job as IoJob;
use crate::io::phase::{Counting, Files, Layout, Operation, Phase};
use crate::md::job::Job as MdJob;
use crate::md::listing::{self, Listing, ListingArgs};
use crate::md::phase::Step;
use crate::outcome::{LatencySummary, PhaseOutcome};
use crate::pattern::Pattern;
use crate::report::Better;
use crate::size::ByteSize;
use crate::stop::Stop;
use crate::work::{CacheFlush, Work};

/// How long and how often.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The short form.
    pub quick: bool,
    /// Tasks of most stages.
    pub tasks: u32,
    /// Repetitions.
    pub repeats: u32,
    /// Length of a stage in seconds.
    pub unit_seconds: f64,
    /// Past this many seconds no further repetition is begun.
    pub budget_seconds: f64,
    /// Files of the create/list/remove stage.
    pub listing_files: u64,
    /// Whether the host's caches are dropped where that is allowed.
    pub drop_caches: bool,
}

impl Plan {
    /// Ten minutes, or two.
    pub fn new(quick: bool, tasks: u32) -> Plan {
        Plan {
            quick,
            tasks,
            repeats: 3,
            // A repetition is about twenty units long, and the rest about six.
            unit_seconds: if quick { 1.8 } else { 9.0 },
            budget_seconds: if quick { 100.0 } else { 540.0 },
            listing_files: if quick { 2_000 } else { 20_000 },
            drop_caches: true,
        }
    }
}

/// One figure of the suite, all repetitions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Its name, stable over versions.
    pub name: String,
    /// What it does, in words.
    pub title: String,
    /// Unit of the samples.
    pub unit: String,
    /// Which way is good.
    pub better: Better,
    /// One figure per repetition.
    pub samples: Vec<f64>,
    /// Latency of the last repetition.
    pub latency: Option<LatencySummary>,
}

/// Rates with a number of tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    /// Tasks.
    pub tasks: u32,
    /// MiB/s.
    pub write: f64,
    /// MiB/s.
    pub read: f64,
}

/// Everything the suite measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// How it was done.
    pub plan: Plan,
    /// The figures.
    pub stages: Vec<Stage>,
    /// Sequential rates by number of tasks.
    pub scaling: Vec<Scaling>,
    /// Create, list, remove.
    pub listings: Vec<Listing>,
    /// What a reader must know.
    pub notes: Vec<String>,
    /// How long it took.
    pub seconds: f64,
}

impl Results {
    fn add(&mut self, name: &str, title: &str, unit: &str, figure: f64, outcome: &PhaseOutcome) {
        let better = if unit == "µs" { Better::Lower } else { Better::Higher };
        let latency = Some(LatencySummary::from(&outcome.latency()));
        match self.stages.iter_mut().find(|stage| stage.name == name) {
            Some(stage) => {
                stage.samples.push(figure);
                stage.latency = latency;
            }
            None => self.stages.push(Stage {
                name: name.into(),
                title: title.into(),
                unit: unit.into(),
                better,
                samples: vec![figure],
                latency,
            }),
        }
    }
}

const MIB: f64 = (1 << 20) as f64;
/// The record of IO500's hard stages: nothing divides it.
const HARD_RECORD: u64 = 47_008;
/// File size of mdtest hard.
const HARD_FILE: u64 = 3_901;
/// Written by each task to find out how fast the directory is.
const CALIBRATION_BYTES: u64 = 64 << 20;
/// Random writes without O_DIRECT, per task: synced in bounded time on any disk.
const BUFFERED_RANDOM_WRITES: u64 = 2_048;

struct Suite<'a> {
    plan: &'a Plan,
    crews: Crews,
    results: Results,
    cache: CacheFlush,
    direct: bool,
    /// Bytes that each task writes in a unit of time.
    bytes_per_task: u64,
    tag: u32,
}

impl Suite<'_> {
    fn io_phase(&self, operation: Operation, record_bytes: u64, layout: Layout) -> Phase {
        let job = IoJob {
            record: ByteSize(record_bytes),
            size: ByteSize(self.bytes_per_task.max(record_bytes)),
            layout,
            fsync: Counting::Counted,
            cache: self.cache,
            shift: 1,
            ..IoJob::default()
        };
        let mut phase = job.phase(operation);
        phase.files = Files::Scratch(self.tag);
        phase.stonewall_seconds = Some(self.plan.unit_seconds * 2.0);
        phase
    }

    fn io(&mut self, label: &str, phase: &Phase, tasks: u32) -> Result<PhaseOutcome> {
        self.crews.run(label, &Work::Io(phase.clone()), tasks)
    }

    /// Writes and reads back; `write` and `read` are names and titles.
    fn write_and_read(
        &mut self,
        names: [(&str, &str); 2],
        record: u64,
        layout: Layout,
    ) -> Result<()> {
        let tasks = self.plan.tasks;
        self.tag += 1;
        let write = self.io_phase(Operation::Create, record, layout);
        let outcome = self.io(names[0].0, &write, tasks)?;
        let rate = outcome.rates().natural_aggregate / MIB;
        self.results.add(names[0].0, names[0].1, "MiB/s", rate, &outcome);
        let mut read = self.io_phase(Operation::Read, record, layout);
        read.visits = outcome.operations_by_rank();
        let outcome = self.io(names[1].0, &read, tasks)?;
        let rate = outcome.rates().natural_aggregate / MIB;
        self.results.add(names[1].0, names[1].1, "MiB/s", rate, &outcome);
        Ok(())
    }

    fn bandwidth(&mut self) -> Result<()> {
        let easy = [
            ("easy write", "sequential write, 1 MiB records, a file per task, fsync counted"),
            ("easy read", "sequential read of another task's file, 1 MiB records"),
        ];
        self.write_and_read(easy, 1 << 20, Layout::FilePerTask)?;
        self.random()?;
        self.crews.tidy()?;
        let hard = [
            ("hard write", "one shared file in turns, 47,008-byte records, fsync counted"),
            ("hard read", "one shared file in turns, another task's 47,008-byte records"),
        ];
        self.write_and_read(hard, HARD_RECORD, Layout::Interleaved)?;
        self.crews.tidy()
    }

    /// On the files of the easy stages.
    fn random(&mut self) -> Result<()> {
        let tasks = self.plan.tasks;
        let through = if self.direct { "O_DIRECT" } else { "through the cache" };
        for (operation, name) in
            [(Operation::Read, "random read"), (Operation::Rewrite, "random write")]
        {
            let mut phase = self.io_phase(operation, 4 << 10, Layout::FilePerTask);
            phase.pattern = Pattern::Random;
            phase.direct = self.direct;
            phase.stonewall_seconds = Some(self.plan.unit_seconds);
            if operation.writes() && !self.direct {
                let visits = phase.records.min(BUFFERED_RANDOM_WRITES);
                phase.visits = vec![visits; tasks as usize];
            }
            let outcome = self.io(name, &phase, tasks)?;
            let rate = outcome.rates().operations_per_second;
            let title = format!("{name} of 4 KiB records, {through}");
            self.results.add(name, &title, "op/s", rate, &outcome);
        }
        let mut phase = self.io_phase(Operation::Create, 4 << 10, Layout::FilePerTask);
        self.tag += 1;
        phase.files = Files::Scratch(self.tag);
        phase.fsync_each = true;
        phase.stonewall_seconds = Some(self.plan.unit_seconds / 2.0);
        let outcome = self.io("write and fsync", &phase, 1)?;
        let median = LatencySummary::from(&outcome.latency()).p50_us;
        let title = "4 KiB write and fsync, one at a time, median";
        self.results.add("write and fsync", title, "µs", median, &outcome);
        Ok(())
    }

    fn md(
        &mut self,
        job: &MdJob,
        step: Step,
        iteration: u32,
        made: &[u64],
    ) -> Result<PhaseOutcome> {
        let mut phase = job.phase(step, iteration, true);
        phase.made = made.to_vec();
        let label = format!("metadata: {}", step.title());
        self.crews.run(&label, &Work::Md(phase), self.plan.tasks)
    }

    fn metadata(&mut self, iteration: u32) -> Result<()> {
        let easy = MdJob {
            // More than any file system makes in a unit; the stonewall ends it.
            items: 1_000_000,
            unique: true,
            shift: 1,
            stonewall: Some(self.plan.unit_seconds),
            ..MdJob::default()
        };
        let hard = MdJob {
            unique: false,
            write: ByteSize(HARD_FILE),
            read: ByteSize(HARD_FILE),
            ..easy.clone()
        };
        for (job, kind) in [(&easy, "easy"), (&hard, "hard")] {
            let words = match kind {
                "easy" => "empty files, a directory per task",
                _ => "files of 3,901 bytes, one directory for all tasks",
            };
            self.md(job, Step::TreeCreate, iteration, &[])?;
            let created = self.md(job, Step::FileCreate, iteration, &[])?;
            let made = created.operations_by_rank();
            self.rate(&format!("md {kind} create"), &format!("create {words}"), &created);
            if kind == "hard" {
                let found = self.md(job, Step::Find, iteration, &made)?;
                self.rate("find", "walk the tree and look at every name, one task", &found);
            }
            let stat = self.md(job, Step::FileStat, iteration, &made)?;
            self.rate(&format!("md {kind} stat"), &format!("stat {words}"), &stat);
            if kind == "hard" {
                let read = self.md(job, Step::FileRead, iteration, &made)?;
                self.rate("md hard read", &format!("open and read {words}"), &read);
            }
            let removed = self.md(job, Step::FileRemove, iteration, &made)?;
            self.rate(&format!("md {kind} remove"), &format!("remove {words}"), &removed);
            self.md(job, Step::TreeRemove, iteration, &[])?;
        }
        self.crews.tidy()
    }

    fn rate(&mut self, name: &str, title: &str, outcome: &PhaseOutcome) {
        let rate = outcome.rates().operations_per_second;
        self.results.add(name, title, "op/s", rate, outcome);
    }

    fn scaling(&mut self) -> Result<()> {
        let mut tasks = 1;
        while tasks <= self.plan.tasks * 2 {
            self.tag += 1;
            let mut write = self.io_phase(Operation::Create, 1 << 20, Layout::FilePerTask);
            // The same data for all tasks together, in half the time of a stage.
            let share = u64::from(self.plan.tasks) * write.records / 2 / u64::from(tasks);
            write.records = share.max(1);
            let wrote = self.io(&format!("write with {tasks} tasks"), &write, tasks)?;
            let mut read = write.clone();
            read.operation = Operation::Read;
            read.cache = self.cache;
            read.visits = wrote.operations_by_rank();
            let got = self.io(&format!("read with {tasks} tasks"), &read, tasks)?;
            self.results.scaling.push(Scaling {
                tasks,
                write: wrote.rates().natural_aggregate / MIB,
                read: got.rates().natural_aggregate / MIB,
            });
            self.crews.tidy()?;
            tasks *= 2;
        }
        Ok(())
    }

    /// Finds out how many bytes a task writes in a unit of time.
    fn calibrate(&mut self, target: &Target) -> Result<()> {
        let tasks = self.plan.tasks;
        self.bytes_per_task = CALIBRATION_BYTES.min(target.free_bytes / 8 / u64::from(tasks));
        if self.bytes_per_task < 1 << 20 {
            return Err(BenchError::Usage("too little space is free for the suite".into()));
        }
        self.tag += 1;
        let phase = self.io_phase(Operation::Create, 1 << 20, Layout::FilePerTask);
        let outcome = self.io("calibration", &phase, tasks)?;
        self.crews.tidy()?;
        let per_task = outcome.rates().natural_aggregate / f64::from(tasks);
        let bytes = (per_task * self.plan.unit_seconds) as u64;
        // Room for an easy and a hard data set and the fsync file, and for everybody else.
        let room = target.free_bytes / 4 / u64::from(tasks);
        self.bytes_per_task = bytes.clamp(4 << 20, room.max(4 << 20)) >> 20 << 20;
        Ok(())
    }
}

/// Whether files of this directory take O_DIRECT.
fn takes_direct(directory: &Path) -> bool {
    use std::os::unix::fs::OpenOptionsExt;
    let path = directory.join(crate::scratch::fresh_name());
    let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let mut options = std::fs::OpenOptions::new();
    let taken = options.write(true).create_new(true).custom_flags(flags).open(&path).is_ok();
    // Where the open was refused there may be no file to remove.
    let _ = std::fs::remove_file(&path);
    taken
}

/// Runs all stages.
pub fn run(directory: &Path, plan: &Plan, target: &Target, stop: &Stop) -> Result<Results> {
    let start = Tick::now();
    let cold = plan.drop_caches && host::drop_system_caches().is_ok();
    let mut suite = Suite {
        plan,
        crews: Crews::threads(directory, stop)?,
        results: Results {
            plan: plan.clone(),
            stages: Vec::new(),
            scaling: Vec::new(),
            listings: Vec::new(),
            notes: Vec::new(),
            seconds: 0.0,
        },
        cache: if cold { CacheFlush::System } else { CacheFlush::File },
        direct: takes_direct(directory),
        bytes_per_task: 0,
        tag: 0,
    };
    suite.calibrate(target)?;
    for iteration in 1..=plan.repeats {
        if start.elapsed_seconds() > plan.budget_seconds {
            let note = format!("stopped after {} repetitions: time was up", iteration - 1);
            suite.results.notes.push(note);
            break;
        }
        suite.bandwidth()?;
        suite.metadata(iteration)?;
    }
    suite.scaling()?;
    let listing = ListingArgs {
        list: vec![plan.listing_files],
        list_file_size: ByteSize(32 << 10),
        cold_command: None,
    };
    suite.results.listings = listing::measure(&listing, &mut suite.crews)?;
    let notes = notes(&suite, target);
    suite.results.notes.extend(notes);
    suite.results.seconds = start.elapsed_seconds();
    Ok(suite.results)
}

fn notes(suite: &Suite<'_>, target: &Target) -> Vec<String> {
    let data = ByteSize(suite.bytes_per_task * u64::from(suite.plan.tasks));
    let mut notes = vec![format!(
        "{} tasks moved {data} per stage, as much as the calibration wrote in {} s.",
        suite.plan.tasks, suite.plan.unit_seconds
    )];
    notes.push(match suite.cache {
        CacheFlush::System => "Before reading, all caches of this host were dropped. Caches of \
             servers and devices were not."
            .into(),
        _ => "Before reading, the pages of each file were dropped (no root): names and \
             attributes stayed cached, and so did everything in servers and devices."
            .into(),
    });
    if !suite.direct {
        notes.push("O_DIRECT is not supported here: random reads come through the cache.".into());
    }
    if target.kind == "tmpfs" {
        notes.push("This is memory, not storage: the figures are those of the kernel.".into());
    }
    notes
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    impl Results {
        /// Sets a stage's samples, for tests of what is drawn from them.
        pub(crate) fn set(&mut self, name: &str, samples: Vec<f64>) {
            self.stages.retain(|stage| stage.name != name);
            self.stages.push(Stage {
                name: name.into(),
                title: format!("what {name} does"),
                unit: if super::super::score::BANDWIDTHS.contains(&name) {
                    "MiB/s"
                } else {
                    "op/s"
                }
                .into(),
                better: Better::Higher,
                samples,
                latency: None,
            });
        }
    }

    /// The suite itself, in small: every stage of the score has its samples, and nothing stays.
    #[test]
    fn all_stages_run() {
        let parent = std::env::temp_dir().join(crate::scratch::fresh_name());
        std::fs::create_dir(&parent).expect("a new folder");
        let plan = Plan {
            unit_seconds: 0.02,
            repeats: 2,
            listing_files: 20,
            drop_caches: false,
            ..Plan::new(true, 2)
        };
        let target = Target::of(&parent).expect("a target");
        let results = run(&parent, &plan, &target, &Stop::default()).expect("all stages run");
        for stage in &results.stages {
            assert_eq!(stage.samples.len(), 2, "{}", stage.name);
            assert!(stage.samples.iter().all(|sample| *sample > 0.0), "{stage:?}");
        }
        assert_eq!(super::super::score::score(&results).samples.len(), 2);
        let tasks: Vec<u32> = results.scaling.iter().map(|point| point.tasks).collect();
        assert_eq!(tasks, [1, 2, 4]);
        // Empty: removing it succeeds.
        std::fs::remove_dir(&parent).expect("it is empty");
    }

    pub(crate) fn results() -> Results {
        Results {
            plan: Plan::new(true, 2),
            stages: Vec::new(),
            scaling: vec![
                Scaling { tasks: 1, write: 100.0, read: 200.0 },
                Scaling { tasks: 2, write: 150.0, read: 390.0 },
            ],
            listings: Vec::new(),
            notes: vec!["A note with <angle> & ampersand.".into()],
            seconds: 99.5,
        }
    }
}
