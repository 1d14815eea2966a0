//! Trees as deep as wanted, and how long programs wait beside other work.
//!
//! `deep_probe make DIR DEPTH` makes directories nested one in the other, each named `d`, in `DIR`.
//! `deep_probe walk DIR DEPTH` lists each of them on the way down. There must be `DEPTH`, and
//! nothing else but what `deep_probe sink DIR DEPTH FILE` moved to the bottom. `deep_probe wide DIR
//! COUNT` makes so many empty files, a thousand in each directory.
//!
//! `deep_probe busy DIR` works until its input ends: threads look files up, read their attributes,
//! list, make and remove, and write. For each line that it reads it prints, of what began since the
//! line before, how many calls each thread made and how long the longest took. A call that is still
//! under way counts with the time that it has taken so far.
//!
//! No path leads to the bottom of a deep tree, because a path has at most 4,096 bytes. So each step
//! starts at an open directory.

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, StatxFlags, mkdirat, openat, renameat, statx};
use std::fs::{self, File};
use std::io::{BufRead, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use strake_env::{Clock, RealClock};

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// The name of every directory of the tree.
const NAME: &str = "d";
/// The name at the bottom of what `sink` moves there.
const SUNK: &str = "sunk";
const FILES_PER_DIRECTORY: usize = 1000;
/// Files that `busy` looks up.
const FILES: usize = 100;
const FILE_BYTES: usize = 4 << 20;
const WRITE_BYTES: usize = 4096;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["make", dir, depth] => number(depth).and_then(|depth| make(dir, depth)),
        ["walk", dir, depth] => number(depth).and_then(|depth| walk(dir, depth)),
        ["sink", dir, depth, file] => number(depth).and_then(|depth| sink(dir, depth, file)),
        ["wide", dir, count] => number(count).and_then(|count| wide(Path::new(dir), count)),
        ["busy", dir] => busy(Path::new(dir)),
        _ => {
            eprintln!(
                "deep_probe make|walk DIR DEPTH | sink DIR DEPTH FILE | wide DIR COUNT | busy DIR"
            );
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("deep_probe {}: {error}", words.join(" "));
            ExitCode::FAILURE
        }
    }
}

fn number(text: &str) -> Result<usize, Box<dyn std::error::Error + Send + Sync>> {
    Ok(text.parse()?)
}

fn directory(at: impl AsFd, name: &str) -> rustix::io::Result<OwnedFd> {
    openat(at, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn make(dir: &str, depth: usize) -> Outcome {
    let mut at = directory(CWD, dir)?;
    for _ in 0..depth {
        mkdirat(&at, NAME, Mode::RWXU)?;
        at = directory(&at, NAME)?;
    }
    Ok(())
}

/// The directory at the bottom.
fn bottom(dir: &str, depth: usize) -> rustix::io::Result<OwnedFd> {
    let mut at = directory(CWD, dir)?;
    for _ in 0..depth {
        at = directory(&at, NAME)?;
    }
    Ok(at)
}

fn names(at: &OwnedFd) -> rustix::io::Result<Vec<String>> {
    let names = Dir::read_from(at)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into()));
    names.filter(|name| !matches!(name.as_deref(), Ok("." | ".."))).collect()
}

fn walk(dir: &str, depth: usize) -> Outcome {
    let mut at = directory(CWD, dir)?;
    for level in 0..depth {
        let found = names(&at)?;
        if found != [NAME] {
            return Err(format!("level {level} of {depth} has {found:?}").into());
        }
        at = directory(&at, NAME)?;
    }
    match names(&at)?.as_slice() {
        [] => Ok(()),
        [name] if name == SUNK => Ok(()),
        found => Err(format!("the bottom has {found:?}").into()),
    }
}

fn sink(dir: &str, depth: usize, file: &str) -> Outcome {
    renameat(CWD, file, bottom(dir, depth)?, SUNK)?;
    Ok(())
}

fn wide(dir: &Path, count: usize) -> Outcome {
    let mut below = PathBuf::new();
    for file in 0..count {
        if file.is_multiple_of(FILES_PER_DIRECTORY) {
            below = dir.join(format!("w{}", file / FILES_PER_DIRECTORY));
            fs::create_dir_all(&below)?;
        }
        File::create(below.join(file.to_string()))?;
    }
    Ok(())
}

/// The calls of one thread of `busy` since it was asked last.
#[derive(Default)]
struct Tally {
    /// When the call under way began.
    began: Option<Duration>,
    done: u64,
    longest: Duration,
}

impl Tally {
    /// The calls that have ended, and the longest of all.
    fn take(&mut self, now: Duration) -> (u64, Duration) {
        let waited = self.began.map_or(Duration::ZERO, |began| now.saturating_sub(began));
        let all = (self.done, self.longest.max(waited));
        (self.done, self.longest) = (0, Duration::ZERO);
        all
    }
}

/// The name of a kind of work, and the work, once; the number differs each time.
type Work<'a> = (&'static str, Box<dyn Fn(usize) -> std::io::Result<()> + Send + Sync + 'a>);

fn works(dir: &Path) -> Result<Vec<Work<'_>>, std::io::Error> {
    let at = move |name: String| dir.join(name);
    for file in 0..FILES {
        fs::write(at(format!("f{file}")), b"x")?;
    }
    let written = File::create(at("written".into()))?;
    written.write_all_at(&vec![1; FILE_BYTES], 0)?;
    let block = vec![2; WRITE_BYTES];
    Ok(vec![
        (
            // The kernel has these attributes; the flag makes it ask.
            "stat",
            Box::new(move |turn| {
                let file = at(format!("f{}", turn % FILES));
                let flags = AtFlags::STATX_FORCE_SYNC;
                statx(CWD, &file, flags, StatxFlags::BASIC_STATS).map(drop).map_err(Into::into)
            }),
        ),
        ("lookup", Box::new(move |turn| fs::exists(at(format!("none{turn}"))).map(drop))),
        ("ls", Box::new(move |_| fs::read_dir(dir)?.try_for_each(|entry| entry.map(drop)))),
        (
            "create",
            Box::new(move |_| {
                File::create(at("new".into()))?;
                fs::remove_file(at("new".into()))
            }),
        ),
        (
            "write",
            Box::new(move |turn| {
                let place = turn.wrapping_mul(7919) % (FILE_BYTES / WRITE_BYTES) * WRITE_BYTES;
                written.write_all_at(&block, place as u64)?;
                if turn.is_multiple_of(16) { written.sync_data() } else { Ok(()) }
            }),
        ),
    ])
}

fn busy(dir: &Path) -> Outcome {
    let works = works(dir)?;
    let tallies: Vec<Mutex<Tally>> = works.iter().map(|_| Mutex::default()).collect();
    let (stop, alive) = (AtomicBool::new(false), AtomicUsize::new(works.len()));
    let tally = |at: usize| tallies[at].lock().expect("no thread panics with it");
    std::thread::scope(|scope| -> Outcome {
        let threads: Vec<_> = (0..works.len())
            .map(|at| {
                let (works, stop, alive, tally) = (&works, &stop, &alive, &tally);
                scope.spawn(move || -> std::io::Result<()> {
                    let mut turns = 0..;
                    let mut work = || -> std::io::Result<()> {
                        while !stop.load(Ordering::Relaxed) {
                            let began = RealClock.monotonic();
                            tally(at).began = Some(began);
                            works[at].1(turns.next().unwrap_or_default())?;
                            let mut tally = tally(at);
                            let took = RealClock.monotonic().saturating_sub(began);
                            tally.longest = tally.longest.max(took);
                            (tally.began, tally.done) = (None, tally.done + 1);
                        }
                        Ok(())
                    };
                    let outcome = work();
                    alive.fetch_sub(1, Ordering::Relaxed);
                    outcome
                })
            })
            .collect();
        let answer = |at: usize, name: &str| {
            let (done, longest) = tally(at).take(RealClock.monotonic());
            format!("{name} {done} times, at most {:.1} ms", longest.as_secs_f64() * 1e3)
        };
        for line in std::io::stdin().lock().lines() {
            line?;
            if alive.load(Ordering::Relaxed) < works.len() {
                break;
            }
            let answers: Vec<String> =
                works.iter().enumerate().map(|(at, (name, _))| answer(at, name)).collect();
            println!("{}", answers.join("; "));
            std::io::stdout().flush()?;
        }
        stop.store(true, Ordering::Relaxed);
        for (thread, (name, _)) in threads.into_iter().zip(&works) {
            let outcome = thread.join().map_err(|_| format!("{name} panicked"))?;
            outcome.map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(())
    })
}
