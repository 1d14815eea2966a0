//! Starts the server process of `rpc=socket`, watches it, and starts it anew when it dies.
//!
//! One thread, `server-watch`, follows the process from its start to its end:
//!
//! 1. The process says `ready` on its standard output, or its error as one line of JSON. Then its
//!    output stays silent and open as long as it lives.
//! 2. If it ends unasked, another is started: the first time at once, then after a pause that
//!    doubles with each failure. Calls of the mount wait meanwhile (`strake-net`).
//! 3. After [`FAILURES_MAX`] failures in a row this process ends, too, and `strake up` recovers. A
//!    process that served for [`SERVED_MIN`] does not count as a failure.
//! 4. To end the process, the daemon closes its standard input. If the process dies before it has
//!    ended in order, another is started just to end in order.

use crate::data_dir::DataDir;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex};
use strake_env::thread::JoinHandle;
use strake_env::{Clock, RealClock};
use strake_proto::{Error, ErrorKind, Result};
use tracing::{error, warn};

/// If a process served for this long, its end is no failure. A process with a fault that every
/// start meets dies sooner.
const SERVED_MIN: Duration = Duration::from_secs(1);
/// After this many failures in a row no further process is started. The pauses between them add
/// up to about a quarter of a minute.
const FAILURES_MAX: u32 = 10;
/// The pause after the second failure in a row, doubled up to the maximum.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Keeps the server process running; see the head of this file.
pub(crate) struct Supervisor {
    inner: Arc<Inner>,
    /// Taken when the process is to end.
    watch: Mutex<Option<JoinHandle<Result<()>>>>,
}

struct Inner {
    dir: DataDir,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// True once the process is to end in order.
    ending: bool,
    /// The standard input of the process that serves; closing it ends the process.
    stdin: Option<ChildStdin>,
}

/// A process that serves.
struct Server {
    child: Child,
    output: Box<dyn Read + Send>,
}

impl Supervisor {
    /// Starts the server process and returns when it serves.
    ///
    /// # Errors
    /// The error that the process reports. Otherwise the host's errors.
    pub(crate) fn start(dir: &DataDir) -> Result<Supervisor> {
        let state = Mutex::new(State::default());
        let inner = Arc::new(Inner { dir: dir.clone(), state, changed: Condvar::default() });
        let server = inner.start_server()?;
        let watched = strake_env::thread::Builder::new().name("server-watch".to_owned()).spawn({
            let inner = Arc::clone(&inner);
            move || inner.watch(server)
        });
        Ok(Supervisor { inner, watch: Mutex::new(Some(watched?)) })
    }

    /// Ends the server process in order. The caller has made everything durable before.
    ///
    /// # Errors
    /// `Io` if the process fails.
    pub(crate) fn finish(&self) -> Result<()> {
        {
            let mut state = self.inner.state.lock();
            state.ending = true;
            state.stdin = None;
            self.inner.changed.notify_all();
        }
        let watch = self.watch.lock().take();
        match watch {
            Some(watch) => watch.join().expect("invariant: a panic ends the process"),
            None => Ok(()),
        }
    }
}

impl Drop for Supervisor {
    /// Ends the process, so that a daemon whose start fails leaves none behind.
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

impl Inner {
    /// Follows a process, and each process that takes its place, until the last one has ended.
    fn watch(&self, server: Server) -> Result<()> {
        let mut failures = 0;
        let mut serving = Some(server);
        loop {
            let started = RealClock.monotonic();
            let ended = match serving.take() {
                Some(server) => self.follow(server),
                None => self.start_server().and_then(|server| self.follow(server)),
            };
            let served = RealClock.monotonic() - started >= SERVED_MIN;
            failures = if served && ended.is_ok() { 1 } else { failures + 1 };
            let ending = self.state.lock().ending;
            let what = match &ended {
                Ok(status) if ending && status.success() => return Ok(()),
                Ok(status) => format!("has ended ({status})"),
                Err(error) => format!("does not start: {error}"),
            };
            // A process that fails while it ends in order has reported why, and another would fail
            // in the same way.
            let hopeless = ending && ended.is_ok_and(|status| status.code().is_some());
            if hopeless || failures >= FAILURES_MAX {
                let detail = format!("the server process {what}");
                if ending {
                    return Err(Error::new(ErrorKind::Io, detail));
                }
                error!(
                    target: "daemon",
                    "{detail}, for the {failures}th time in a row; this process ends, too: \
                     `strake up` recovers"
                );
                std::process::exit(1);
            }
            warn!(target: "daemon", "the server process {what}: it is started anew");
            self.pause(failures);
        }
    }

    /// Waits until a process that serves has ended.
    fn follow(&self, mut server: Server) -> Result<ExitStatus> {
        {
            let mut state = self.state.lock();
            let stdin = server.child.stdin.take();
            state.stdin = stdin.filter(|_| !state.ending);
        }
        // An error means the same as the end of the output: the process is gone.
        let _ = std::io::copy(&mut server.output, &mut std::io::sink());
        let status = server.child.wait()?;
        self.state.lock().stdin = None;
        Ok(status)
    }

    fn pause(&self, failures: u32) {
        let doublings = failures.saturating_sub(2).min(16);
        let pause = if failures < 2 { Duration::ZERO } else { PAUSE_MIN * (1 << doublings) };
        let end = RealClock.monotonic() + pause.min(PAUSE_MAX);
        let mut state = self.state.lock();
        while !state.ending {
            let left = end.saturating_sub(RealClock.monotonic());
            if left.is_zero() || self.changed.wait_for(&mut state, left).timed_out() {
                return;
            }
        }
    }

    /// Starts a process and waits until it serves.
    fn start_server(&self) -> Result<Server> {
        let mut child = Command::new(own_program()?)
            .args(["daemon", "--role", "server", "--data"])
            .arg(self.dir.root())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        match wait_until_served(&mut child) {
            Ok(output) => Ok(Server { child, output: Box::new(output) }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }
}

/// The path of this program. While this process runs, the file may have been replaced by one of
/// another version. Then the kernel still has the old one.
///
/// # Errors
/// The host's.
pub(crate) fn own_program() -> Result<PathBuf> {
    let path = std::env::current_exe()?;
    Ok(if path.exists() { path } else { PathBuf::from("/proc/self/exe") })
}

/// Waits until the server serves: one line `ready`, or its error as JSON.
fn wait_until_served(child: &mut Child) -> Result<impl Read + Send + 'static> {
    let stdout = child.stdout.take().expect("invariant: stdout is piped");
    let mut line = String::new();
    let mut output = BufReader::new(stdout);
    output.read_line(&mut line)?;
    if line.trim_end() == "ready" {
        return Ok(output);
    }
    Err(serde_json::from_str::<Error>(&line).unwrap_or_else(|_| {
        Error::new(ErrorKind::Internal, "the server process ended before it served; see the log")
    }))
}
