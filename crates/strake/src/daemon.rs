//! The daemon behind a mount: opens everything, serves the mount and the admin socket, and ends
//! when told, when the mount is taken away, or on SIGTERM or SIGINT; in each case everything is
//! flushed first.

mod serve;

use crate::admin::{LINE_BYTES_MAX, Reply, Request};
use crate::data_dir::DataDir;
use crate::registry;
use clap::Args;
use parking_lot::{Condvar, Mutex};
use serve::Daemon;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use strake_proto::{Error, ErrorKind, Result};

/// Serve a file system in the foreground (`strake up` starts it in the background).
#[derive(Args, Debug)]
pub(crate) struct DaemonArgs {
    /// The data directory.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

/// Why the daemon ends. The first reason counts.
#[derive(Default)]
struct End {
    reason: Mutex<Option<&'static str>>,
    changed: Condvar,
}

impl End {
    fn because(&self, reason: &'static str) {
        self.reason.lock().get_or_insert(reason);
        self.changed.notify_all();
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

/// Runs the daemon; tells its parent `ready`, or the error as one line of JSON.
pub(crate) fn run(args: &DaemonArgs) -> ExitCode {
    abort_on_panic();
    match serve_until_told(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("daemon: {error}");
            // A parent that reads gets the error; one that is gone does not matter.
            let text = serde_json::to_string(&error).unwrap_or_default();
            let _ = writeln!(std::io::stdout(), "{text}");
            ExitCode::FAILURE
        }
    }
}

/// A panic anywhere means that an invariant is broken: nothing may be acknowledged after it.
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
    let lock = dir.try_lock()?.ok_or_else(|| {
        Error::new(
            ErrorKind::Busy,
            format!("another daemon serves {} already", dir.root().display()),
        )
    })?;
    let end = Arc::new(End::default());
    end_on_signals(&end)?;
    let listener = listen(&dir)?;
    let daemon = Arc::new(Daemon::start(&dir, config)?);
    registry::add(&daemon.config().cluster, &dir);
    start_thread("admin", {
        let (daemon, end) = (Arc::clone(&daemon), Arc::clone(&end));
        move || accept(&listener, &daemon, &end)
    })?;
    start_thread("mount-watch", {
        let (daemon, end) = (Arc::clone(&daemon), Arc::clone(&end));
        move || {
            daemon.wait_for_unmount();
            end.because("the mount was taken away");
        }
    })?;
    println!("ready");
    let reason = end.wait();
    eprintln!("daemon: ending: {reason}");
    let result = daemon.stop(true).map(drop);
    registry::remove(&daemon.config().cluster);
    let _ = std::fs::remove_file(dir.socket_path());
    drop(lock);
    result
}

fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work)?;
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

fn listen(dir: &DataDir) -> Result<UnixListener> {
    let path = dir.socket_path();
    // We hold the lock, so a socket that is there belongs to a daemon that is gone.
    let _ = std::fs::remove_file(&path);
    let listener =
        UnixListener::bind(&path).map_err(|error| Error::from(error).context(path.display()))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Answers one connection after the other, each on a thread of its own: a long check must not keep
/// `diag waiters` from answering.
fn accept(listener: &UnixListener, daemon: &Arc<Daemon>, end: &Arc<End>) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        let (daemon, end) = (Arc::clone(daemon), Arc::clone(end));
        let answered = start_thread("admin-request", move || {
            if let Err(error) = answer(&stream, &daemon, &end) {
                eprintln!("daemon: an admin request was not answered: {error}");
            }
        });
        if let Err(error) = answered {
            eprintln!("daemon: no thread for an admin request: {error}");
        }
    }
}

fn answer(stream: &UnixStream, daemon: &Daemon, end: &End) -> Result<()> {
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut line)?;
    if line.is_empty() {
        // Somebody only looked whether we are here.
        return Ok(());
    }
    let request: Request = serde_json::from_str(&line)
        .map_err(|error| Error::new(ErrorKind::Invalid, format!("unreadable: {error}")))?;
    let result = daemon.answer(&request);
    let is_down = matches!(request, Request::Down { .. }) && result.is_ok();
    let reply = match result {
        Ok(value) => Reply::Done(value),
        Err(error) => Reply::Failed { kind: error.kind(), message: error.to_string() },
    };
    let mut text = serde_json::to_string(&reply)
        .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    text.push('\n');
    let mut stream = stream;
    let sent = stream.write_all(text.as_bytes());
    if is_down {
        end.because("`strake down` asked for it");
    }
    Ok(sent?)
}
