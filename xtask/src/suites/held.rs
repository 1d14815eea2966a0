//! Files that a mount holds exclusively while its node dies, is paused or is cut off. The other
//! mounts must have them soon. When the mount wakes up it goes on by itself: the file that is open
//! gives EIO, nothing that was written to it comes after what others wrote, and paths lead to that.
//!
//! What a test asks of a mount may hang, so a thread of its own asks, and is left behind when the
//! time is up.
//!
//! The file that stays open is open in a process of its own. A process that starts another one
//! closes its files in it, and would wait there for the mount that stands still. Whoever reads that
//! process's command line waits too.

use super::command::pause;
use super::session::Session;
use super::writer::contents;
use crate::runner::now;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// The hidden command of `xtask` that has a file open: `suites-holder FILE SALT`.
pub(crate) const COMMAND: &str = "suites-holder";

/// The others are promised the files within 12 s, and within 17 s if the node that serves is gone.
/// A busy machine gets more time.
const FREE_MAX: Duration = Duration::from_secs(25);
/// A mount that wakes up must have learnt of its death by then.
const HEARD_MAX: Duration = Duration::from_secs(20);
/// Between two attempts.
const LOOK: Duration = Duration::from_millis(100);
/// A file that the mount makes when it goes on.
const NEXT: &str = "of-the-next-life";
const BYTES: usize = 9 << 20;
/// The part of `begun` that was synced.
const SYNCED: usize = 4 << 20;

/// See the file's head.
pub(super) struct Held {
    mount: PathBuf,
    salt: u64,
    /// Has `begun` open, with bytes that nobody has synced.
    holder: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// Writes a file and syncs a part of it. Then uses it once for each line of its input.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let [path, salt] = arguments else { return ExitCode::from(2) };
    let Ok(salt) = salt.parse() else { return ExitCode::from(2) };
    let file = match begin(Path::new(path), salt) {
        Ok(file) => file,
        Err(error) => {
            println!("{path}: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("ready");
    for _ in io::stdin().lines() {
        let write = errno(&file.write_all_at(b"of a dead mount", 0));
        let fsync = errno(&file.sync_all());
        let read = errno(&file.read_exact_at(&mut [0; 100], 0));
        println!("write {write:?}, fsync {fsync:?}, read {read:?}");
    }
    ExitCode::SUCCESS
}

fn begin(path: &Path, salt: u64) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).open(path)?;
    let bytes = contents(salt, BYTES);
    file.write_all_at(&bytes[..SYNCED], 0)?;
    file.sync_all()?;
    file.write_all_at(&bytes[..SYNCED], 0)?;
    file.write_all_at(&bytes[SYNCED..], SYNCED as u64)?;
    Ok(file)
}

fn errno(outcome: &io::Result<()>) -> i32 {
    outcome.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(-1))
}

const EIO: i32 = 5;

fn text(what: &Path) -> impl Fn(io::Error) -> String + '_ {
    move |error| format!("{}: {error}", what.display())
}

/// Runs `ask` for `limit` at most.
fn within<T: Send + 'static>(
    limit: Duration,
    ask: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(ask()));
    let late = |_| Err(format!("no answer within {} s", limit.as_secs()));
    receiver.recv_timeout(limit).unwrap_or_else(late)
}

fn is_whole(path: &Path, salt: u64, size: usize) -> Result<(), String> {
    let found = fs::read(path).map_err(text(path))?;
    match found.get(..size) == Some(contents(salt, size).as_slice()) {
        true => Ok(()),
        false => Err(format!("{} is not what was synced", path.display())),
    }
}

fn replace(path: &Path, salt: u64) -> Result<(), String> {
    fs::write(path, contents(salt, BYTES)).map_err(text(path))?;
    File::open(path).and_then(|file| file.sync_all()).map_err(text(path))
}

impl Held {
    /// A mount writes two files. One is durable. Of the other, a part is durable and written over.
    pub(super) fn new(session: &Session, mount: &Path, salt: u64) -> Result<Held, String> {
        replace(&mount.join(format!("synced-{salt}")), salt)?;
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = session.command(own);
        command.arg(COMMAND).arg(mount.join(format!("begun-{salt}"))).arg(salt.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = command.spawn().map_err(|error| error.to_string())?;
        let (orders, answers) = (holder.stdin.take(), holder.stdout.take());
        let (orders, answers) = orders.zip(answers).ok_or("the holder has no pipes")?;
        let answers = BufReader::new(answers);
        let mut held = Held { mount: mount.to_owned(), salt, holder, orders, answers };
        match held.answer()?.as_str() {
            "ready" => Ok(held),
            other => Err(other.to_owned()),
        }
    }

    fn answer(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(|error| error.to_string())?;
        Ok(line.trim().to_owned())
    }

    fn names(&self) -> [String; 2] {
        ["synced", "begun"].map(|name| format!("{name}-{}", self.salt))
    }

    /// The other mounts read what was synced, and write both files. Returns how long that took.
    pub(super) fn is_free_for(&self, others: &[PathBuf; 2]) -> Result<Duration, String> {
        let (start, [synced, begun], salt) = (now(), self.names(), self.salt);
        let [first, second] = others.clone();
        within(FREE_MAX, move || {
            is_whole(&first.join(&synced), salt, BYTES)?;
            is_whole(&second.join(&synced), salt, BYTES)?;
            is_whole(&second.join(&begun), salt, SYNCED)?;
            replace(&first.join(&begun), salt + 1000)?;
            replace(&second.join(&synced), salt + 1000)
        })?;
        Ok(now() - start)
    }

    /// The mount, which has woken up, goes on. The file that is open gives EIO, before and after.
    pub(super) fn goes_on(mut self) -> Result<Held, String> {
        within(HEARD_MAX, move || {
            self.is_lost()?;
            // For a moment the mount may have no new life yet.
            while let Err(error) = File::create(self.mount.join(NEXT)) {
                if error.raw_os_error() != Some(EIO) {
                    return Err(format!("create gives {error}"));
                }
                pause(LOOK);
            }
            self.is_lost()?;
            let mount = self.mount.clone();
            self.is_unchanged_on(&[mount])?;
            Ok(self)
        })
    }

    fn is_lost(&mut self) -> Result<(), String> {
        writeln!(self.orders).map_err(|error| error.to_string())?;
        match self.answer()? {
            answer if answer == format!("write {EIO}, fsync {EIO}, read {EIO}") => Ok(()),
            answer => Err(format!("a file that was open gives {answer}")),
        }
    }

    /// Closes what the mount has open, so that it can be unmounted.
    pub(super) fn close(self) -> Result<(), String> {
        let Held { mut holder, orders, .. } = self;
        drop(orders);
        let ended = within(HEARD_MAX, move || holder.wait().map_err(|error| error.to_string()))?;
        if ended.success() { Ok(()) } else { Err(format!("the holder: {ended}")) }
    }

    /// Both files are as the others have written them, on these mounts. What the mount makes after
    /// it woke up is there.
    pub(super) fn is_unchanged_on(&self, mounts: &[PathBuf]) -> Result<(), String> {
        for mount in mounts {
            for name in self.names() {
                is_whole(&mount.join(name), self.salt + 1000, BYTES)?;
            }
            fs::metadata(mount.join(NEXT)).map_err(text(&mount.join(NEXT)))?;
        }
        Ok(())
    }
}
