//! A task as a process of its own: this program again, with a socket as its standard input.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use strake_net::Stream;

use super::channel::Channel;
use super::driver::{RemoteCrew, Session};
use super::serve::{self, Root};
use crate::crew::{Crew, Relaunch};
use crate::error::{BenchError, Result};
use crate::host::HostFacts;
use crate::outcome::HostOutcome;
use crate::stop::Stop;
use crate::work::Assignment;

/// What `worker` takes on its command line; not for people.
#[derive(Debug, Clone, clap::Args)]
pub struct WorkerArgs {
    /// The driver's directory.
    #[arg(long)]
    pub directory: PathBuf,
}

/// The parent's side of a worker.
pub struct Worker {
    /// Nothing once the worker was hung up on.
    crew: Option<RemoteCrew>,
    child: Child,
}

impl Worker {
    /// Starts a worker in `directory`.
    pub fn start(relaunch: Relaunch<'_>, directory: &Path) -> Result<Worker> {
        let failed = |error| BenchError::system("cannot start a worker process", error);
        let program = std::env::current_exe().map_err(failed)?;
        let (near, far) = UnixStream::pair().map_err(failed)?;
        let child = Command::new(program)
            .args(relaunch)
            .arg("worker")
            .arg("--directory")
            .arg(directory)
            .stdin(Stdio::from(OwnedFd::from(far)))
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let host = format!("worker {}", child.id());
        let session = Session::new(&host, Channel::with_child(Stream::Unix(near)));
        Ok(Worker { crew: Some(RemoteCrew::new(session)), child })
    }

    fn crew(&mut self) -> &mut RemoteCrew {
        self.crew.as_mut().expect("invariant: only drop hangs up")
    }
}

impl Crew for Worker {
    fn begin(&mut self, assignment: &Assignment) -> Result<()> {
        self.crew().begin(assignment)
    }
    fn ready(&mut self) -> Result<()> {
        self.crew().ready()
    }
    fn release(&mut self) -> Result<()> {
        self.crew().release()
    }
    fn poll(&mut self) -> Result<Option<(u64, u64)>> {
        self.crew().poll()
    }
    fn collect(&mut self) -> Result<HostOutcome> {
        self.crew().collect()
    }
    fn tidy(&mut self) -> Result<()> {
        self.crew().tidy()
    }
    fn facts(&mut self) -> Result<HostFacts> {
        self.crew().facts()
    }
    fn mark(&mut self) -> Result<()> {
        self.crew().mark()
    }
    fn is_marked(&mut self) -> Result<bool> {
        self.crew().is_marked()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Hanging up ends the worker's session; then it is waited for, so that nothing writes
        // into the directory while the parent removes it.
        self.crew = None;
        if let Err(error) = self.child.wait() {
            let id = self.child.id();
            crate::tell("bench", &format_args!("cannot wait for worker {id}: {error}"));
        }
    }
}

/// The worker's side.
pub fn run(args: &WorkerArgs, stop: &Stop) -> Result<()> {
    let stdin = std::io::stdin();
    let stream: OwnedFd = stdin
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| BenchError::system("a worker is started by its driver", error))?;
    let mut channel = Channel::with_child(Stream::Unix(UnixStream::from(stream)));
    let root = Root::Given(args.directory.clone());
    serve::Session::new(&mut channel, root, serve::worker_limits(), stop).run()
}
