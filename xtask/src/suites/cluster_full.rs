//! Two mounts fill one file system at the same time. What a `write` has accepted, `fsync` makes
//! durable and the other mount reads; what does not fit, `write` refuses. `df` is the same on both
//! mounts, and each of them can write anew what is there.

use super::command::pause;
use super::full::{ENOSPC, FILE_BYTES, FILES_MAX, Refusal, room, verify, write_in_place};
use super::writer::contents;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A mount gives back within a second what it does not need, and `df` is a second old at most.
const LOOK: Duration = Duration::from_millis(500);
const LOOKS: usize = 20;
/// As many files are written anew on each mount.
const ANEW: u64 = 8;

pub(crate) fn fill_together(mounts: [&Path; 2]) -> Result<(), String> {
    let dirs = [mounts[0].join("full-0"), mounts[1].join("full-1")];
    for dir in &dirs {
        fs::create_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    }
    let whole = both(&dirs, |dir, _| fill(dir))?;
    // Each mount reads the files of the other one.
    let elsewhere = [mounts[0].join("full-1"), mounts[1].join("full-0")];
    let others = [whole[1], whole[0]];
    both(&elsewhere, |dir, at| (0..others[at]).try_for_each(|number| verify(dir, number)))?;
    agree(mounts)?;
    both(&dirs, |dir, at| {
        (0..whole[at].min(ANEW)).try_for_each(|number| {
            for (piece, what) in [(1 << 20, 5000 + number), (4096, number)] {
                write_in_place(dir, number, piece, what)
                    .map_err(|refusal| told(number, refusal))?;
            }
            Ok(())
        })
    })?;
    both(&elsewhere, |dir, at| (0..others[at]).try_for_each(|number| verify(dir, number)))?;
    for dir in &dirs {
        fs::remove_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    }
    Ok(())
}

/// Does something with two folders at the same time.
fn both<T: Send>(
    dirs: &[PathBuf; 2],
    work: impl Fn(&Path, usize) -> Result<T, String> + Sync,
) -> Result<[T; 2], String> {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| work(&dirs[1], 1));
        let one = work(&dirs[0], 0);
        let other = other.join().unwrap_or_else(|_| Err("it panicked".to_owned()));
        Ok([one?, other?])
    })
}

fn told(number: u64, (what, errno): Refusal) -> String {
    format!("file {number}: {what}: errno {errno}")
}

/// Writes files until one does not fit, and only then makes them durable. Returns how many there
/// are.
fn fill(dir: &Path) -> Result<u64, String> {
    let code = |what| move |error: std::io::Error| (what, error.raw_os_error().unwrap_or(-1));
    let write = |number: u64| -> Result<File, Refusal> {
        let mut file = File::create(dir.join(number.to_string())).map_err(code("create"))?;
        file.write_all(&contents(number, FILE_BYTES)).map_err(code("write"))?;
        Ok(file)
    };
    let mut files = Vec::new();
    for number in 0..FILES_MAX {
        match write(number) {
            Ok(file) => files.push(file),
            Err(("write", ENOSPC)) => {
                let gone = fs::remove_file(dir.join(number.to_string()));
                gone.map_err(|error| format!("file {number} cannot be removed: {error}"))?;
                break;
            }
            Err(refusal) => return Err(told(number, refusal)),
        }
    }
    for (number, file) in (0..).zip(&files) {
        file.sync_all().map_err(code("fsync")).map_err(|refusal| told(number, refusal))?;
    }
    match files.len() as u64 {
        held @ 4..FILES_MAX => Ok(held),
        held => Err(format!("{held} files fit beside those of the other mount")),
    }
}

/// `df` says the same on both mounts, as soon as they have given back what they do not need.
fn agree(mounts: [&Path; 2]) -> Result<(), String> {
    let mut seen = Vec::new();
    for _ in 0..LOOKS {
        let (one, other) = (room(mounts[0])?, room(mounts[1])?);
        if one.0 == other.0 {
            return Ok(());
        }
        seen.push((one.0, other.0));
        pause(LOOK);
    }
    Err(format!("bytes of room on the two mounts: {seen:?}"))
}
