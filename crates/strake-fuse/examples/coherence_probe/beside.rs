//! Two mounts write different parts of one file at the same time; a third one verifies it.

use crate::mapped::Mapped;
use crate::world::World;
use crate::{MOUNTS, Outcome, byte};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use strake_env::thread;
use strake_env::{Clock, RealClock, Rng};

/// Mounts that write.
const WRITERS: usize = 2;
/// Of the records that the benchmark IOR interleaves in one file.
const RECORD: usize = 47_008;
const MIB: usize = 1 << 20;

fn both() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

fn piece(from: usize, count: usize, round: usize) -> Vec<u8> {
    (from..from + count).map(|at| byte(at, round)).collect()
}

/// Has both writers do `work`, each on a thread of its own, with a handle of its own.
fn on_both(
    world: &World,
    name: &str,
    work: impl Fn(usize, &File) -> std::io::Result<()> + Sync,
) -> Outcome {
    thread::scope(|scope| {
        let work = &work;
        let writers: Vec<_> = (0..WRITERS)
            .map(|at| scope.spawn(move || work(at, &both().open(world.path(at, name))?)))
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("no panic"))
    })?;
    Ok(())
}

fn verify(world: &World, name: &str, expected: &[u8]) -> Outcome {
    for mount in (0..MOUNTS).rev() {
        let path = world.path(mount, name);
        let size = fs::metadata(&path)?.len();
        let bytes = fs::read(&path)?;
        let wrong = (0..bytes.len().min(expected.len())).find(|at| bytes[*at] != expected[*at]);
        if size != expected.len() as u64 || bytes.len() != expected.len() || wrong.is_some() {
            let sizes = format!("size {size}, {} of {} bytes", bytes.len(), expected.len());
            return Err(format!("mount {mount}: {sizes}, first wrong one {wrong:?}").into());
        }
    }
    Ok(())
}

/// The mounts write pieces of a new file in turn, while the third one looks at its size.
fn interleaved(world: &World, name: &str, count: usize, pieces: usize) -> Outcome {
    File::create(world.path(0, name))?;
    let done = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let done = &done;
        let looking = scope.spawn(move || {
            let mut last = 0;
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                let size = fs::metadata(world.path(MOUNTS - 1, name))?.len();
                if size < last {
                    return Err(std::io::Error::other(format!("size {size} after {last}")));
                }
                last = size;
                RealClock.sleep(std::time::Duration::from_millis(50));
            }
            Ok(())
        });
        let outcome = on_both(world, name, |at, file| {
            (at..pieces).step_by(WRITERS).try_for_each(|number| {
                let from = number * count;
                file.write_all_at(&piece(from, count, 0), from as u64)
            })
        });
        done.store(true, std::sync::atomic::Ordering::Release);
        looking.join().expect("no panic")?;
        outcome
    })?;
    verify(world, name, &piece(0, count * pieces, 0))
}

pub(crate) fn records(world: &World) -> Outcome {
    interleaved(world, "records", RECORD, 400)
}

pub(crate) fn blocks(world: &World) -> Outcome {
    interleaved(world, "blocks", MIB, 48)
}

/// Each mount writes its half of a file, three times over. Prints how fast that was.
pub(crate) fn halves(world: &World) -> Outcome {
    const HALF: usize = 24 * MIB;
    const ROUNDS: usize = 3;
    File::create(world.path(0, "halves"))?.set_len((WRITERS * HALF) as u64)?;
    let start = RealClock.monotonic();
    on_both(world, "halves", |at, file| {
        for round in 0..ROUNDS {
            for from in (at * HALF..(at + 1) * HALF).step_by(MIB) {
                file.write_all_at(&piece(from, MIB, round), from as u64)?;
            }
        }
        file.sync_all()
    })?;
    let seconds = (RealClock.monotonic() - start).as_secs_f64();
    println!("{:.0} MiB/s", (ROUNDS * WRITERS * HALF / MIB) as f64 / seconds);
    verify(world, "halves", &piece(0, WRITERS * HALF, ROUNDS - 1))
}

/// A process on one mount stores to pages of its half and writes some of it, while another mount
/// writes its own.
pub(crate) fn mapped(world: &World) -> Outcome {
    const HALF: usize = 2 * MIB;
    const STEP: usize = 8192;
    fs::write(world.path(0, "mapped"), vec![0; 2 * HALF])?;
    let write = |mount: usize, from: usize| {
        let file = both().open(world.path(mount, "mapped"))?;
        file.write_all_at(&piece(from, STEP, 0), from as u64)
    };
    thread::scope(|scope| {
        let write = &write;
        let writing =
            scope.spawn(move || (HALF..2 * HALF).step_by(STEP).try_for_each(|from| write(1, from)));
        let mut rng = Rng::new(1);
        let mut mapped = Mapped::of(world, 0, "mapped", 2 * HALF)?;
        for from in (0..HALF).step_by(STEP) {
            match rng.one_in(2) {
                true => mapped.store_piece(from, STEP)?,
                false => write(0, from)?,
            }
        }
        mapped.sync()?;
        writing.join().expect("no panic")?;
        Outcome::Ok(())
    })?;
    verify(world, "mapped", &piece(0, 2 * HALF, 0))
}

fn fio(path: &Path, seed: u64, from: usize, more: &[&str]) -> Result<(), String> {
    let output = Command::new("fio")
        .args(["--name=half", "--rw=randwrite", "--bsrange=4k-256k", "--blockalign=4k"])
        .args(["--ioengine=psync", "--verify=crc32c", "--size=8m", "--fallocate=none"])
        .args([format!("--filename={}", path.display()), format!("--randseed={seed}")])
        .arg(format!("--offset={from}"))
        .args(more)
        .current_dir(std::env::temp_dir())
        .output()
        .map_err(|error| format!("fio: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// `fio` writes and verifies at offsets of one file on two mounts; the third one verifies all.
pub(crate) fn with_fio(world: &World) -> Outcome {
    const HALF: usize = 8 * MIB;
    File::create(world.path(0, "fio"))?.set_len((WRITERS * HALF) as u64)?;
    let failures: Vec<String> = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|at| {
                let path = world.path(at, "fio");
                scope.spawn(move || {
                    let more = ["--fsync=16", "--verify_state_save=0"];
                    fio(&path, at as u64, at * HALF, &more)
                })
            })
            .collect();
        writers.into_iter().filter_map(|it| it.join().expect("no panic").err()).collect()
    });
    if !failures.is_empty() {
        return Err(failures.join("; ").into());
    }
    for at in 0..WRITERS {
        let path = world.path(MOUNTS - 1, "fio");
        fio(&path, at as u64, at * HALF, &["--verify_only", "--verify_state_load=0"])?;
    }
    Ok(())
}
