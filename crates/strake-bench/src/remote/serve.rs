//! The serving side of a session: does what a driver asks, within limits, and cleans up after it
//! however the session ends.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use strake_net::SharedSecret;

use super::channel::Channel;
use super::message::{Answer, Request};
use crate::clock::Tick;
use crate::crew::{self, check_space};
use crate::error::{BenchError, Result};
use crate::host::{self, HostFacts};
use crate::io::phase::Files;
use crate::net::facts;
use crate::net::serve::{Registry, Serving};
use crate::scratch::{self, Scratch};
use crate::stop::Stop;
use crate::team::Team;
use crate::work::{Assignment, Work};

/// What a driver may ask of this host.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Tasks of one phase.
    pub tasks_max: u32,
    /// Bytes that one phase may occupy.
    pub bytes_max: u64,
}

/// How the session finds its directory.
pub enum Root {
    /// An agent's: everything happens below it.
    Below {
        /// The directory, with links followed.
        directory: PathBuf,
        /// What opens other agents.
        secret: SharedSecret,
        /// The network tests of this agent.
        registry: Arc<Registry>,
    },
    /// A worker's: the driver's own directory, made and removed by the driver.
    Given(PathBuf),
}

/// Between two looks at the connection while tasks run.
const LOOK: Duration = Duration::from_millis(20);
/// Between two reports of progress.
const REPORT_NS: u64 = 500_000_000;

/// One driver's session.
pub struct Session<'a> {
    channel: &'a mut Channel,
    root: Root,
    limits: Limits,
    stop: Stop,
    scratch: Option<Scratch>,
    team: Option<Team>,
    serving: Option<Serving>,
}

impl<'a> Session<'a> {
    /// A session on a channel whose peer proved itself.
    pub fn new(channel: &'a mut Channel, root: Root, limits: Limits, stop: &Stop) -> Self {
        let stop = stop.for_session();
        let team = match &root {
            Root::Given(directory) => Some(Team::new(directory.clone(), stop.clone())),
            Root::Below { .. } => None,
        };
        Session { channel, root, limits, stop, scratch: None, team, serving: None }
    }

    /// Serves until the driver hangs up. Tasks still running then are stopped, and the scratch
    /// directory goes away with the session.
    pub fn run(mut self) -> Result<()> {
        let result = self.serve();
        self.stop.raise();
        self.team = None;
        result
    }

    fn serve(&mut self) -> Result<()> {
        loop {
            while !self.channel.is_readable(Duration::from_millis(200))? {
                self.stop.check()?;
            }
            let request: Request = match self.channel.receive() {
                Ok(request) => request,
                // The ordinary end: the driver hangs up between two requests.
                Err(BenchError::System { .. }) => return Ok(()),
                Err(error) => return Err(error),
            };
            let answer = match self.answer(&request) {
                Ok(answer) => answer,
                Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
                Err(error) => Answer::Failed(error.to_string()),
            };
            self.channel.send(&answer)?;
        }
    }

    fn answer(&mut self, request: &Request) -> Result<Answer> {
        match request {
            Request::Facts => Ok(Answer::Facts(HostFacts::gather())),
            Request::Open { directory, scratch } => self.open(directory, scratch),
            Request::Mark => {
                let path = self.scratch_path()?.join("mark");
                fs::write(&path, "").map_err(|error| BenchError::path("write", &path, error))?;
                Ok(Answer::Done)
            }
            Request::IsMarked => {
                let path = self.scratch_path()?.join("mark");
                // Attributes of a directory may be cached for a while; a lookup by opening is not
                // answered from an old listing.
                Ok(Answer::Marked(fs::File::open(path).is_ok()))
            }
            Request::Begin(assignment) => self.begin(assignment),
            Request::Release => self.release(),
            Request::Cancel => {
                if let Some(team) = &mut self.team {
                    team.cancel();
                }
                Ok(Answer::Done)
            }
            Request::Tidy => {
                crew::empty(&self.scratch_path()?)?;
                Ok(Answer::Done)
            }
            Request::OpenNet => {
                let Root::Below { directory, secret, .. } = &self.root else {
                    return Err(BenchError::Protocol("a worker has its directory".into()));
                };
                let team = Team::new(directory.clone(), self.stop.clone());
                self.team = Some(team.with_secret(secret.clone()));
                Ok(Answer::Done)
            }
            Request::Serve(plan) => {
                let Root::Below { registry, .. } = &self.root else {
                    return Err(BenchError::Protocol("a worker serves no tests".into()));
                };
                self.serving = None;
                self.serving = Some(registry.serve(plan, &self.stop)?);
                Ok(Answer::Done)
            }
            Request::Served => match &self.serving {
                Some(serving) => Ok(Answer::Served(serving.served())),
                None => Err(BenchError::Protocol("no test is served".into())),
            },
            Request::NetFacts => Ok(Answer::NetFacts(facts::gather())),
        }
    }

    fn scratch_path(&self) -> Result<PathBuf> {
        match (&self.root, &self.scratch) {
            (Root::Given(directory), _) => Ok(directory.clone()),
            (_, Some(scratch)) => Ok(scratch.path().to_path_buf()),
            _ => Err(BenchError::Protocol("no directory is open".into())),
        }
    }

    fn open(&mut self, directory: &str, name: &str) -> Result<Answer> {
        let Root::Below { directory: root, .. } = &self.root else {
            return Err(BenchError::Protocol("a worker has its directory".into()));
        };
        if self.scratch.is_some() || !scratch::is_fresh_name(name) {
            return Err(BenchError::Protocol("a directory of a driver's own, once".into()));
        }
        let parent = resolve(root, directory)?;
        let scratch = Scratch::make(&parent, name)?;
        self.team = Some(Team::new(scratch.path().to_path_buf(), self.stop.clone()));
        self.scratch = Some(scratch);
        Ok(Answer::Done)
    }

    fn begin(&mut self, assignment: &Assignment) -> Result<Answer> {
        admit(assignment, &self.limits)?;
        if !matches!(assignment.work, Work::Net(_)) {
            let bytes = assignment.work.bytes_on_disk(assignment.tasks_here);
            check_space(&self.scratch_path()?, bytes)?;
        }
        let Some(team) = &mut self.team else {
            return Err(BenchError::Protocol("no directory is open".into()));
        };
        if team.is_running() {
            return Err(BenchError::Protocol("a phase is running".into()));
        }
        team.begin(assignment)?;
        Ok(Answer::Done)
    }

    /// Opens the barrier and watches both the tasks and the driver: one that hangs up or gives
    /// up must not leave tasks behind that write on.
    fn release(&mut self) -> Result<Answer> {
        let team = self.team.as_mut().filter(|team| team.is_running());
        let Some(team) = team else {
            return Err(BenchError::Protocol("no phase is prepared".into()));
        };
        team.release();
        let mut reported = Tick::now();
        while !team.is_finished() {
            if self.channel.is_readable(LOOK)? {
                let request: Result<Request> = self.channel.receive();
                self.stop.raise();
                return match request {
                    Ok(Request::Cancel) => Err(BenchError::Interrupted),
                    Ok(_) => Err(BenchError::Protocol("a phase is running".into())),
                    Err(error) => Err(error),
                };
            }
            if reported.elapsed_nanos() > REPORT_NS {
                reported = Tick::now();
                let (bytes, operations) = team.progress().get();
                self.channel.send(&Answer::Progress { bytes, operations })?;
            }
        }
        Ok(Answer::Outcome(team.collect()?))
    }
}

/// Refuses what exceeds the limits, what names files outside, and arithmetic that overflows.
pub fn admit(assignment: &Assignment, limits: &Limits) -> Result<()> {
    let Assignment { work, first_rank, tasks_here, tasks_total } = assignment;
    let usage = |message: String| Err(BenchError::Usage(message));
    if *tasks_here == 0 || *tasks_here > limits.tasks_max {
        return usage(format!("{tasks_here} tasks, this agent runs 1 to {}", limits.tasks_max));
    }
    if first_rank.checked_add(*tasks_here).is_none_or(|end| end > *tasks_total) {
        return usage("ranks beyond the number of tasks".into());
    }
    if let Work::Io(phase) = work
        && matches!(phase.files, Files::Named(_))
    {
        return usage("an agent works in its own directory only".into());
    }
    work.validate(*tasks_total)?;
    let bytes = work.bytes_on_disk(*tasks_here);
    if bytes > limits.bytes_max {
        return usage(format!(
            "{bytes} bytes, this agent writes at most {} in one phase (--max-bytes)",
            limits.bytes_max
        ));
    }
    Ok(())
}

/// The directory that a driver asked for, if it lies below `root` once links are followed.
pub fn resolve(root: &Path, directory: &str) -> Result<PathBuf> {
    let refused = || {
        BenchError::Usage(format!(
            "`{directory}` is not below the directory that this agent was given"
        ))
    };
    let asked = Path::new(directory);
    if asked.components().any(|part| part == Component::ParentDir) {
        return Err(refused());
    }
    let path = root.join(asked);
    let real = path.canonicalize();
    let real = real.map_err(|error| BenchError::path("find", &path, error))?;
    if !real.starts_with(root) || !real.is_dir() {
        return Err(refused());
    }
    Ok(real)
}

/// Everything a worker may do: the driver is its own parent and has checked already.
pub fn worker_limits() -> Limits {
    Limits { tasks_max: 1, bytes_max: u64::MAX }
}

/// This host's name, for messages.
pub fn name() -> String {
    host::name()
}

#[cfg(test)]
#[path = "serve_test.rs"]
mod serve_test;
