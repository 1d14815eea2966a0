//! Runs the tasks of all hosts as one. A crew is this host's threads, a worker process, or an agent
//! on another host.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock::{self, Tick};
use crate::error::{BenchError, Result};
use crate::host::{HostFacts, Target};
use crate::outcome::{HostOutcome, PhaseOutcome};
use crate::remote;
use crate::scratch::{self, Scratch};
use crate::stop::Stop;
use crate::team::Team;
use crate::work::{Assignment, Work};

/// One host's tasks, or one worker process.
pub trait Crew {
    /// Tells the tasks of a phase to prepare. It need not wait for them.
    fn begin(&mut self, assignment: &Assignment) -> Result<()>;
    /// Waits until all tasks stand at the barrier.
    fn ready(&mut self) -> Result<()>;
    /// Opens the barrier.
    fn release(&mut self) -> Result<()>;
    /// Bytes and operations so far, or `None` once the phase is over.
    fn poll(&mut self) -> Result<Option<(u64, u64)>>;
    /// The outcome of a phase that is over.
    fn collect(&mut self) -> Result<HostOutcome>;
    /// Removes what earlier phases made.
    fn tidy(&mut self) -> Result<()>;
    /// Describes the host.
    fn facts(&mut self) -> Result<HostFacts>;
    /// Puts a mark into the run's directory.
    fn mark(&mut self) -> Result<()>;
    /// Whether the run's directory holds a mark.
    fn is_marked(&mut self) -> Result<bool>;
}

struct LocalCrew {
    team: Team,
    /// `None` if the tasks work on files that the user named.
    scratch: Option<Scratch>,
}

impl LocalCrew {
    fn directory(&self) -> Result<&Path> {
        let scratch = self.scratch.as_ref().map(Scratch::path);
        scratch.ok_or_else(|| BenchError::Protocol("this run has no directory of its own".into()))
    }
}

impl Crew for LocalCrew {
    fn begin(&mut self, assignment: &Assignment) -> Result<()> {
        assignment.work.validate(assignment.tasks_total)?;
        self.team.begin(assignment)
    }

    fn ready(&mut self) -> Result<()> {
        Ok(())
    }

    fn release(&mut self) -> Result<()> {
        self.team.release();
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<(u64, u64)>> {
        Ok((!self.team.is_finished()).then(|| self.team.progress().get()))
    }

    fn collect(&mut self) -> Result<HostOutcome> {
        self.team.collect()
    }

    fn tidy(&mut self) -> Result<()> {
        empty(self.directory()?)
    }

    fn facts(&mut self) -> Result<HostFacts> {
        Ok(HostFacts::gather())
    }

    fn mark(&mut self) -> Result<()> {
        let path = self.directory()?.join("mark");
        std::fs::write(&path, "").map_err(|error| BenchError::path("write", &path, error))
    }

    fn is_marked(&mut self) -> Result<bool> {
        Ok(self.directory()?.join("mark").exists())
    }
}

/// Empties a directory of ours. The directory itself stays.
pub fn empty(directory: &Path) -> Result<()> {
    let failed = |error| BenchError::path("empty", directory, error);
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        let removed = if entry.file_type().map_err(failed)?.is_dir() {
            std::fs::remove_dir_all(&path)
        } else {
            std::fs::remove_file(&path)
        };
        match removed {
            // Another host on the same file system was quicker.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            other => other.map_err(|error| BenchError::path("remove", &path, error))?,
        }
    }
    Ok(())
}

/// Where a benchmark runs and how it is told about.
#[derive(Debug, Clone, clap::Args)]
pub struct Place {
    /// Agents that run the tasks, instead of this host: names or addresses, with `:PORT` if it
    /// is not the usual one. DIR is then a directory below the one each agent was given.
    #[arg(long, value_delimiter = ',', value_name = "HOST,HOST")]
    pub hosts: Vec<String>,
    /// File with the secret that driver and agents share (one line, at least 16 characters).
    #[arg(long, value_name = "FILE", requires = "hosts")]
    pub secret_file: Option<PathBuf>,
    /// Run each task of this host as a process of its own instead of a thread.
    #[arg(long, conflicts_with = "hosts")]
    pub processes: bool,
    /// Leave the files where they are.
    #[arg(long, conflicts_with = "hosts")]
    pub keep: bool,
    /// Print the report as JSON on standard output.
    #[arg(long)]
    pub json: bool,
}

impl Place {
    /// On this host, with threads and a text report.
    pub fn here() -> Place {
        Place { hosts: Vec::new(), secret_file: None, processes: false, keep: false, json: false }
    }
}

/// How this program starts itself again as a worker: the words before `worker`.
pub type Relaunch<'a> = &'a [&'a str];

/// All crews of a run.
pub struct Crews {
    crews: Vec<Box<dyn Crew>>,
    /// True if each crew is a process with one task instead of a host with several.
    one_task_each: bool,
    hosts: usize,
    keep: bool,
    stop: Stop,
    /// Held here if the crews do not own the directory: worker processes only join it.
    _scratch: Option<Scratch>,
}

impl Crews {
    /// Assembles the crews that `place` asks for; `tasks` is the greatest number per host.
    pub fn assemble(
        directory: &Path,
        place: &Place,
        tasks: u32,
        stop: &Stop,
        relaunch: Relaunch<'_>,
    ) -> Result<Crews> {
        let name = scratch::fresh_name();
        let mut crews: Vec<Box<dyn Crew>> = Vec::new();
        let mut held = None;
        if !place.hosts.is_empty() {
            let secret = remote::secret::read(place.secret_file.as_deref())?;
            for host in &place.hosts {
                let session = remote::driver::Session::connect(host, &secret)?;
                let crew = remote::driver::RemoteCrew::open(session, directory, &name)?;
                crews.push(Box::new(crew));
            }
        } else {
            let mut scratch = Scratch::make(directory, &name)?;
            if place.keep {
                scratch.keep();
            }
            if place.processes {
                for _ in 0..tasks {
                    let worker = remote::worker::Worker::start(relaunch, scratch.path())?;
                    crews.push(Box::new(worker));
                }
                held = Some(scratch);
            } else {
                let team = Team::new(scratch.path().to_path_buf(), stop.clone());
                crews.push(Box::new(LocalCrew { team, scratch: Some(scratch) }));
            }
        }
        Ok(Crews {
            crews,
            one_task_each: place.processes,
            hosts: place.hosts.len().max(1),
            keep: place.keep,
            stop: stop.clone(),
            _scratch: held,
        })
    }

    /// Wraps crews that exist already, one per host.
    pub fn of(crews: Vec<Box<dyn Crew>>, stop: &Stop) -> Crews {
        Crews {
            hosts: crews.len(),
            crews,
            one_task_each: false,
            keep: false,
            stop: stop.clone(),
            _scratch: None,
        }
    }

    /// Threads that make and remove files in a directory of their own below `directory`.
    pub fn threads(directory: &Path, stop: &Stop) -> Result<Crews> {
        Crews::assemble(directory, &Place::here(), 1, stop, &[])
    }

    /// Threads that work on files the user named, and nowhere else.
    pub fn on_named_files(stop: &Stop) -> Crews {
        let team = Team::new(PathBuf::from("."), stop.clone());
        Crews::of(vec![Box::new(LocalCrew { team, scratch: None })], stop)
    }

    /// How many hosts there are.
    pub fn hosts(&self) -> usize {
        self.hosts
    }

    /// Describes each host once.
    pub fn facts(&mut self) -> Result<Vec<HostFacts>> {
        if self.one_task_each {
            return Ok(vec![HostFacts::gather()]);
        }
        self.crews.iter_mut().map(|crew| crew.facts()).collect()
    }

    /// True if all hosts work in one file system: the others see what the first makes.
    pub fn common(&mut self) -> Result<bool> {
        if self.one_task_each || self.crews.len() == 1 {
            return Ok(true);
        }
        self.crews[0].mark()?;
        let seen = self.crews[1..].iter_mut().map(|crew| crew.is_marked());
        let seen: Vec<bool> = seen.collect::<Result<_>>()?;
        self.tidy()?;
        Ok(seen.iter().all(|marked| *marked))
    }

    /// Refuses a shift if the hosts do not share the directory. The other task's data might then
    /// lie on another host's own disk.
    pub fn check_shift(&mut self, shift: u32) -> Result<()> {
        if shift > 0 && !self.common()? {
            return Err(BenchError::Usage(
                "the hosts do not share this directory, so no task can work on another's data; \
                 leave the shift away"
                    .into(),
            ));
        }
        Ok(())
    }

    /// Removes what earlier phases made, on all hosts. Does nothing if the files are to be kept.
    pub fn tidy(&mut self) -> Result<()> {
        if self.keep {
            return Ok(());
        }
        let crews = if self.one_task_each { 1 } else { self.crews.len() };
        self.crews[..crews].iter_mut().try_for_each(|crew| crew.tidy())
    }

    /// Runs one phase with `tasks_per_host` tasks on each host.
    pub fn run(&mut self, label: &str, work: &Work, tasks_per_host: u32) -> Result<PhaseOutcome> {
        let mut outcomes = run_together(&mut [(self, work, tasks_per_host)], label)?;
        Ok(outcomes.remove(0))
    }

    /// The number of tasks over all hosts.
    pub fn tasks_total(&self, tasks_per_host: u32) -> u32 {
        tasks_per_host.saturating_mul(self.hosts as u32)
    }

    fn share(&self, tasks_per_host: u32) -> (usize, u32) {
        if self.one_task_each {
            (tasks_per_host as usize, 1)
        } else {
            (self.crews.len(), tasks_per_host)
        }
    }

    fn begin(&mut self, work: &Work, tasks_per_host: u32) -> Result<()> {
        let tasks_total = self.tasks_total(tasks_per_host);
        let (crews, tasks_here) = self.share(tasks_per_host);
        for (index, crew) in self.crews[..crews].iter_mut().enumerate() {
            crew.begin(&Assignment {
                work: work.clone(),
                first_rank: index as u32 * tasks_here,
                tasks_here,
                tasks_total,
            })?;
        }
        self.crews[..crews].iter_mut().try_for_each(|crew| crew.ready())
    }

    fn poll(&mut self, tasks_per_host: u32) -> Result<Option<(u64, u64)>> {
        let (crews, _) = self.share(tasks_per_host);
        let (mut busy, mut bytes, mut operations) = (false, 0, 0);
        for crew in &mut self.crews[..crews] {
            if let Some(progress) = crew.poll()? {
                busy = true;
                bytes += progress.0;
                operations += progress.1;
            }
        }
        Ok(busy.then_some((bytes, operations)))
    }

    fn collect(&mut self, tasks_per_host: u32) -> Result<PhaseOutcome> {
        let (crews, _) = self.share(tasks_per_host);
        let hosts = self.crews[..crews].iter_mut().map(|crew| crew.collect());
        Ok(PhaseOutcome { hosts: hosts.collect::<Result<_>>()? })
    }
}

/// The longest pause between two looks at the crews. Pauses begin short, so that the end of a short
/// phase is noticed sooner.
const POLL_MS_MAX: u64 = 100;

/// Runs one phase of each crew at the same time. All tasks stand at their barriers before any of
/// them starts.
pub fn run_together(
    jobs: &mut [(&mut Crews, &Work, u32)],
    label: &str,
) -> Result<Vec<PhaseOutcome>> {
    for (crews, work, tasks) in jobs.iter_mut() {
        crews.begin(work, *tasks)?;
    }
    let mut line = ProgressLine::new(label);
    for (crews, _, tasks) in jobs.iter_mut() {
        let (count, _) = crews.share(*tasks);
        crews.crews[..count].iter_mut().try_for_each(|crew| crew.release())?;
    }
    let mut pause_ms = 1;
    loop {
        let (mut busy, mut bytes, mut operations) = (false, 0, 0);
        for (crews, _, tasks) in jobs.iter_mut() {
            if let Some(progress) = crews.poll(*tasks)? {
                busy = true;
                bytes += progress.0;
                operations += progress.1;
            }
        }
        if !busy {
            break;
        }
        // Crews on other hosts see no signal that this process gets. Returning from here closes
        // their connections, which stops them and lets them clean up.
        jobs.iter().try_for_each(|(crews, ..)| crews.stop.check())?;
        line.show(bytes, operations);
        clock::pause(Duration::from_millis(pause_ms));
        pause_ms = (pause_ms * 2).min(POLL_MS_MAX);
    }
    drop(line);
    let outcomes = jobs.iter_mut().map(|(crews, _, tasks)| crews.collect(*tasks));
    let outcomes: Vec<PhaseOutcome> = outcomes.collect::<Result<_>>()?;
    jobs.iter().try_for_each(|(crews, ..)| crews.stop.check())?;
    Ok(outcomes)
}

/// One line on a terminal that shows the progress of a phase. The line disappears when the phase is
/// over.
struct ProgressLine {
    label: String,
    start: Tick,
    shown: bool,
    enabled: bool,
}

impl ProgressLine {
    fn new(label: &str) -> Self {
        ProgressLine {
            label: label.into(),
            start: Tick::now(),
            shown: false,
            enabled: std::io::stderr().is_terminal(),
        }
    }

    fn show(&mut self, bytes: u64, operations: u64) {
        let seconds = self.start.elapsed_seconds();
        if !self.enabled || seconds < 0.2 {
            return;
        }
        self.shown = true;
        let rate = if bytes > 0 {
            format!("{:.0} MiB/s", bytes as f64 / seconds / f64::from(1 << 20))
        } else {
            format!("{:.0} per second", operations as f64 / seconds)
        };
        // A terminal that went away is no reason to stop measuring.
        let _ = write!(
            std::io::stderr(),
            "\r\x1b[K{}: {seconds:.0} s, {operations} operations, {rate}",
            self.label
        );
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// Refuses a run that would fill the file system. 1 % of the free space stays for other users.
pub fn check_space(directory: &Path, bytes: u64) -> Result<Target> {
    let target = Target::of(directory)?;
    let free = target.free_bytes - target.free_bytes / 100;
    if bytes > free {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        return Err(BenchError::Usage(format!(
            "this run writes {:.2} GiB but {} has {:.2} GiB free; use a smaller --size or fewer \
             tasks",
            gib(bytes),
            directory.display(),
            gib(free),
        )));
    }
    Ok(target)
}
