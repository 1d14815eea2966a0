//! The daemon behind a mount. It opens everything and serves the mount and the admin socket. It
//! ends on `strake down`, when the mount is taken away, or on SIGTERM or SIGINT. In each case it
//! flushes everything first.
//!
//! With `rpc=socket` the same program also runs as a server process for the disks and the
//! metadata ([`Role::Server`]).

mod check;
mod explain;
mod figures;
mod health;
mod in_force;
mod known;
mod life;
mod listing;
mod manage;
mod metrics;
mod recent;
mod serve;
pub(crate) mod threads;
mod tokens;
mod trace;

use crate::admin::{LINE_BYTES_MAX, Reply, Request};
use crate::backend::Local;
use crate::data_dir::DataDir;
use crate::log;
use crate::mount_options::MountWords;
use crate::node;
use crate::registry;
use crate::service;
use clap::Args;
use serve::Daemon;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use strake_env::RealClock;
use strake_env::net::{UnixListener, UnixStream};
use strake_env::sync::{Condvar, Mutex};
use strake_observe::Observe;
use strake_proto::{Error, ErrorKind, Result};
use tracing::{error, info, warn};

/// Serve a file system in the foreground. `strake up` starts it in the background.
#[derive(Args, Debug)]
pub(crate) struct DaemonArgs {
    /// The data directory.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The part that this process plays.
    #[arg(long, value_enum, default_value = "mount")]
    role: Role,
    /// Options of the mount, with commas between them.
    #[arg(short, long, value_name = "OPTIONS", default_value = "")]
    options: String,
}

/// The part that a daemon process plays.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Role {
    /// Serves the mount. It has the disks too, unless `rpc=socket`.
    Mount,
    /// Serves the disks and the metadata on sockets until its standard input ends.
    Server,
    /// The server process of a node of a cluster.
    Node,
}

/// The reason for an end by `strake down`.
const DOWN_ASKED: &str = "`strake down` asked for it";

/// While the daemon ends, it waits this long for answers to be sent.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(10);

/// Holds the reason to end and the requests that must be answered before. The first reason counts.
#[derive(Default)]
struct End {
    reason: Mutex<Option<&'static str>>,
    /// An admin request is taking the mount away right now.
    going_down: AtomicBool,
    answering: Mutex<usize>,
    changed: Condvar,
}

impl End {
    fn because(&self, reason: &'static str) {
        self.reason.lock().get_or_insert(reason);
        self.changed.notify_all();
    }

    /// Counts an admin request as unanswered until the returned value is dropped.
    fn begin_answer(self: &Arc<Self>) -> Answering {
        *self.answering.lock() += 1;
        Answering { end: Arc::clone(self) }
    }

    /// Waits until all requests that have arrived are answered. `strake down` is one of them.
    fn wait_for_answers(&self) {
        let mut answering = self.answering.lock();
        while *answering > 0 {
            if self.changed.wait_for(&mut answering, ANSWER_WAIT_MAX).timed_out() {
                warn!(target: "daemon", "{} admin requests stay unanswered", *answering);
                return;
            }
        }
    }

    fn wait(&self) -> &'static str {
        let mut reason = self.reason.lock();
        loop {
            if let Some(reason) = *reason {
                return reason;
            }
            self.changed.wait(&mut reason);
        }
    }
}

/// See [`End::begin_answer`].
struct Answering {
    end: Arc<End>,
}

impl Drop for Answering {
    fn drop(&mut self) {
        *self.end.answering.lock() -= 1;
        self.end.changed.notify_all();
    }
}

/// Runs the daemon. It prints `ready` for its parent, or its error as one line of JSON.
pub(crate) fn run(args: &DaemonArgs) -> ExitCode {
    abort_on_panic();
    // If the settings cannot be read, the daemon ends below. The log starts with the defaults, so
    // that it can report this.
    let dir = DataDir::at(&args.data);
    let config = dir.and_then(|dir| match args.role {
        Role::Node => Err(ErrorKind::NotFound.into()),
        _ => dir.read_config(),
    });
    log::start(&config.map(|config| config.settings).unwrap_or_default());
    let served = match args.role {
        Role::Mount => serve_until_told(args),
        Role::Server => serve_disks(args),
        Role::Node => node::serve(&args.data),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!(target: "daemon", "{error}");
            // The parent may be gone. Then nobody needs the line.
            let text = serde_json::to_string(&error).unwrap_or_default();
            let _ = writeln!(std::io::stdout(), "{text}");
            ExitCode::FAILURE
        }
    }
}

/// Has a panic on any thread abort the process. A panic means that an invariant is broken, so
/// nothing may be acknowledged after it.
fn abort_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        std::process::abort();
    }));
}

fn serve_until_told(args: &DaemonArgs) -> Result<()> {
    let dir = DataDir::at(&args.data)?;
    let _ = rustix::process::setsid();
    let config = dir.read_config()?;
    config.settings.validate()?;
    let lock = dir.lock(&RealClock)?;
    let end = Arc::new(End::default());
    end_on_signals(&end)?;
    let listener = listen(&dir)?;
    let options = MountWords::parse(&args.options, false)?.kernel;
    let metrics = metrics::listen(&config)?;
    let daemon = Arc::new(Daemon::start(&dir, config, options)?);
    let registered = daemon.config().registry_key(&dir);
    registry::add(&registered, &dir);
    start_thread("admin", {
        let (daemon, end) = (Arc::clone(&daemon), Arc::clone(&end));
        move || accept(&listener, &daemon, &end)
    })?;
    start_thread("disk-manager", {
        let daemon = Arc::downgrade(&daemon);
        move || manage::tend(&daemon)
    })?;
    if let Some(lives) = daemon.lives.clone() {
        let daemon = Arc::downgrade(&daemon);
        start_thread("lives", move || life::live_on(&daemon, &lives))?;
    }
    if let Some(listener) = metrics {
        let daemon = Arc::downgrade(&daemon);
        start_thread("metrics", move || metrics::serve(&listener, &daemon))?;
    }
    start_thread("recorder", {
        let daemon = Arc::downgrade(&daemon);
        move || recent::record(&daemon)
    })?;
    start_thread("mount-watch", {
        let (daemon, end) = (Arc::clone(&daemon), Arc::clone(&end));
        move || {
            daemon.wait_for_unmount();
            end.because(match end.going_down.load(Ordering::Acquire) {
                true => DOWN_ASKED,
                false => "the mount was taken away",
            });
        }
    })?;
    println!("ready");
    let reason = end.wait();
    info!(target: "daemon", "ending: {reason}");
    service::ends(reason);
    let result = daemon.stop(true).map(drop);
    end.wait_for_answers();
    registry::remove(&registered);
    let _ = std::fs::remove_file(dir.socket_path());
    drop(lock);
    result
}

/// Runs the server process of `rpc=socket`. The mount's daemon holds the data directory's lock.
fn serve_disks(args: &DaemonArgs) -> Result<()> {
    let dir = DataDir::at(&args.data)?;
    let config = dir.read_config()?;
    let observe = Observe::new(RealClock::shared(), 512);
    let local = Local::open(&dir, &config, &observe)?;
    let servers = local.serve(&dir)?;
    println!("ready");
    // Signals end the parent, which then flushes through this process and closes our input.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    servers.stop();
    local.finish()
}

pub(crate) fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    strake_env::thread::Builder::new().name(name.to_owned()).spawn(work)?;
    Ok(())
}

fn end_on_signals(end: &Arc<End>) -> Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGINT,
    ])?;
    let end = Arc::clone(end);
    start_thread("signals", move || {
        if signals.forever().next().is_some() {
            end.because("a signal asked for it");
        }
    })
}

pub(crate) fn listen(dir: &DataDir) -> Result<UnixListener> {
    let path = dir.socket_path();
    // We hold the lock. If there is a socket, it belongs to a daemon that is gone.
    let _ = std::fs::remove_file(&path);
    let listener =
        UnixListener::bind(&path).map_err(|error| Error::from(error).context(path.display()))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Accepts connections and answers each on a thread of its own. So `diag waiters` answers while a
/// long check runs.
fn accept(listener: &UnixListener, daemon: &Arc<Daemon>, end: &Arc<End>) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        let (daemon, end) = (Arc::clone(daemon), Arc::clone(end));
        let answering = end.begin_answer();
        let answered = start_thread("admin-request", move || {
            let _answering = answering;
            if let Err(error) = answer(&stream, &daemon, &end) {
                warn!(target: "daemon", "an admin request was not answered: {error}");
            }
        });
        if let Err(error) = answered {
            error!(target: "daemon", "no thread for an admin request: {error}");
        }
    }
}

fn answer(stream: &UnixStream, daemon: &Daemon, end: &End) -> Result<()> {
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut line)?;
    if line.is_empty() {
        // A command connected only to see whether a daemon runs.
        return Ok(());
    }
    let request: Request = serde_json::from_str(&line)
        .map_err(|error| Error::new(ErrorKind::Invalid, format!("unreadable: {error}")))?;
    let asks_down = matches!(request, Request::Down { .. });
    if asks_down {
        end.going_down.store(true, Ordering::Release);
    }
    let result = daemon.answer(&request, stream);
    let is_down = asks_down && result.is_ok();
    if asks_down && !is_down {
        end.going_down.store(false, Ordering::Release);
    }
    let reply = Reply::of(result);
    let mut text = serde_json::to_string(&reply)
        .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    text.push('\n');
    let mut stream = stream;
    let sent = stream.write_all(text.as_bytes());
    if is_down {
        end.because(DOWN_ASKED);
    }
    Ok(sent?)
}
