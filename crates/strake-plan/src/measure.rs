//! Small bounded measurements of this machine: disks below directories, a mounted file system,
//! the loopback network, the speed of its interfaces.
//!
//! The only code of the planner that touches the machine. Every run is bounded in bytes and in
//! time, repeats three times and takes the median; its files are removed again, also after an
//! error. These are not benchmarks (that is `strake bench`): they give the planner constants.

use crate::error::PlanError;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use strake_env::net::{Ipv4Addr, TcpListener, TcpStream};
use strake_env::{AlignedBuffer, Clock, Rng};

/// How much a measurement may cost.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Bytes of the file that is written and read.
    pub bytes: u64,
    /// Time of each single run.
    pub time: Duration,
}

/// What a disk delivers to direct I/O.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskRates {
    /// Number of the device, to recognise directories on the same disk.
    pub device: u64,
    /// Size of the file system on it, bytes.
    pub capacity: f64,
    /// Bytes per second, in 4 MiB transfers from four threads, syncs included.
    pub write: f64,
    pub read: f64,
    /// Bytes per second of random 2 MiB reads from four threads.
    pub random_2m: f64,
    /// Seconds of one 4 KiB read at a random place, and of each MiB of a larger one, alone.
    pub seek: f64,
    pub first_mib: f64,
    /// Random 4 KiB transfers per second from sixteen threads.
    pub iops_write: f64,
    pub iops_read: f64,
    /// Whether the file system accepted direct I/O; else its page cache was in the way.
    pub direct: bool,
}

/// What applications get through a mounted file system.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MountRates {
    /// Bytes per second of four tasks, fsync included.
    pub write: f64,
    pub read: f64,
}

const CHUNK: u64 = 4 << 20;
const SMALL: u64 = 4 << 10;

/// A file that is removed when it goes out of scope.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new(directory: &Path, number: usize) -> Scratch {
        let name = format!(".strake-calibrate-{}-{number}", std::process::id());
        Scratch { path: directory.join(name) }
    }

    fn open(&self, direct: bool) -> std::io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        if direct {
            let flag = rustix::fs::OFlags::DIRECT.bits();
            options.custom_flags(flag.cast_signed());
        }
        options.open(&self.path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The measurement stands whether or not its file could be removed.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Measures the disk below a directory.
pub fn disk(clock: &dyn Clock, directory: &Path, budget: Budget) -> Result<DiskRates, PlanError> {
    let io = |error| PlanError::read(directory, error);
    let metadata = std::fs::metadata(directory).map_err(io)?;
    let space = rustix::fs::statvfs(directory).map_err(|error| io(error.into()))?;
    let bytes = budget.bytes / CHUNK * CHUNK;
    if bytes == 0 || space.f_bavail * space.f_frsize < 2 * bytes {
        return Err(PlanError::Measure(format!(
            "{}: needs twice the --size free and at least 4M; free some space or lower --size",
            directory.display()
        )));
    }
    let scratch = Scratch::new(directory, 0);
    let (file, direct) = match scratch.open(true) {
        Ok(file) => (file, true),
        // tmpfs and some network file systems know no direct I/O.
        Err(_) => (scratch.open(false).map_err(io)?, false),
    };
    // The first pass allocates and is not counted. It has more time; on a slow disk the file
    // stays shorter, without gaps, since every chunk that is begun is finished.
    let contents = noise(CHUNK, 1);
    let first = Run { clock, file: &file, contents: &contents, bytes, time: budget.time * 10 };
    let bytes = first.pass(true).map_err(io)?;
    let run = Run { bytes, time: budget.time, ..first };
    let write = median(|| run.sequential(true)).map_err(io)?;
    let read = median(|| run.sequential(false)).map_err(io)?;
    const TWO_MIB: u64 = 2 << 20;
    let seek = 1.0 / median(|| run.random(false, SMALL, 1)).map_err(io)?;
    let two_mib = 1.0 / median(|| run.random(false, TWO_MIB, 1)).map_err(io)?;
    let random_2m = median(|| run.random(false, TWO_MIB, 4)).map_err(io)? * TWO_MIB as f64;
    Ok(DiskRates {
        device: metadata.dev(),
        capacity: space.f_blocks as f64 * space.f_frsize as f64,
        write,
        read,
        random_2m,
        seek,
        first_mib: (two_mib - seek).max(0.0) / 2.0,
        iops_write: median(|| run.random(true, SMALL, 16)).map_err(io)?,
        iops_read: median(|| run.random(false, SMALL, 16)).map_err(io)?,
        direct,
    })
}

/// The middle of three runs.
fn median(mut run: impl FnMut() -> std::io::Result<f64>) -> std::io::Result<f64> {
    let mut rates = [run()?, run()?, run()?];
    rates.sort_by(f64::total_cmp);
    Ok(rates[1])
}

/// Contents that no compression on the way can shorten.
fn noise(length: u64, seed: u64) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(length as usize);
    let mut rng = Rng::new(seed);
    for word in buffer.chunks_exact_mut(8) {
        word.copy_from_slice(&rng.next_u64().to_le_bytes());
    }
    buffer
}

#[derive(Clone, Copy)]
struct Run<'a> {
    clock: &'a dyn Clock,
    file: &'a File,
    /// What is written, made before any clock runs.
    contents: &'a [u8],
    bytes: u64,
    time: Duration,
}

impl Run<'_> {
    /// Bytes per second of one pass over the file.
    fn sequential(&self, writes: bool) -> std::io::Result<f64> {
        let started = self.clock.monotonic();
        let moved = self.pass(writes)?;
        self.rate(writes, moved, started)
    }

    /// One pass over the file in large transfers from four threads; bytes moved, at least a chunk.
    fn pass(&self, writes: bool) -> std::io::Result<u64> {
        let next = AtomicU64::new(0);
        let started = self.clock.monotonic();
        crew(4, |_| {
            let mut buffer = AlignedBuffer::zeroed(if writes { 0 } else { CHUNK as usize });
            let mut moved = 0;
            loop {
                let offset = next.fetch_add(CHUNK, Ordering::Relaxed);
                if offset >= self.bytes {
                    return Ok(moved);
                }
                self.transfer(&mut buffer, CHUNK, offset)?;
                moved += CHUNK;
                if self.clock.monotonic() - started >= self.time {
                    return Ok(moved);
                }
            }
        })
    }

    /// Transfers per second at random places.
    fn random(&self, writes: bool, size: u64, threads: u64) -> std::io::Result<f64> {
        let places = self.bytes / size;
        let started = self.clock.monotonic();
        // Random transfers need less time than a pass over the file to give a figure.
        let time = self.time.min(Duration::from_secs(1));
        let moved = crew(threads, |seed| {
            let mut rng = Rng::new(seed);
            let mut buffer = AlignedBuffer::zeroed(if writes { 0 } else { size as usize });
            let mut moved = 0;
            // A thread that a busy machine starts late moves one all the same: no rate is zero.
            loop {
                let offset = rng.below(places) * size;
                self.transfer(&mut buffer, size, offset)?;
                moved += 1;
                if self.clock.monotonic() - started >= time {
                    return Ok(moved);
                }
            }
        })?;
        self.rate(writes, moved, started)
    }

    /// Reads into `buffer`; into an empty one nothing is read: the contents are written.
    fn transfer(&self, buffer: &mut [u8], size: u64, offset: u64) -> std::io::Result<()> {
        if buffer.is_empty() {
            self.file.write_all_at(&self.contents[..size as usize], offset)
        } else {
            self.file.read_exact_at(buffer, offset)
        }
    }

    fn rate(&self, writes: bool, moved: u64, started: Duration) -> std::io::Result<f64> {
        if writes {
            self.file.sync_data()?;
        }
        let elapsed = (self.clock.monotonic() - started).as_secs_f64();
        Ok(moved as f64 / elapsed.max(1e-9))
    }
}

/// Runs `work` on several threads and adds up what each moved.
fn crew(threads: u64, work: impl Fn(u64) -> std::io::Result<u64> + Sync) -> std::io::Result<u64> {
    strake_env::thread::scope(|scope| {
        let work = &work;
        let handles: Vec<_> =
            (0..threads).map(|number| scope.spawn(move || work(number + 1))).collect();
        let results = handles.into_iter().map(|handle| match handle.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        results.sum()
    })
}

/// Measures what four tasks write (with fsync) and read through a mounted file system. The reads
/// follow a request to drop cached pages; a cache of the file system itself may still answer.
pub fn mount(clock: &dyn Clock, directory: &Path, budget: Budget) -> Result<MountRates, PlanError> {
    let io = |error| PlanError::read(directory, error);
    const TASKS: u64 = 4;
    let share = (budget.bytes / TASKS / CHUNK * CHUNK).max(CHUNK);
    let scratch: Vec<Scratch> =
        (0..TASKS as usize).map(|number| Scratch::new(directory, number)).collect();
    let contents = noise(CHUNK, 1);
    let write = median(|| {
        let started = clock.monotonic();
        let moved = crew(TASKS, |number| {
            let mut file = File::create(&scratch[number as usize - 1].path)?;
            for _ in 0..share / CHUNK {
                file.write_all(&contents)?;
            }
            file.sync_all().map(|()| share)
        })?;
        Ok(moved as f64 / (clock.monotonic() - started).as_secs_f64().max(1e-9))
    });
    let write = write.map_err(io)?;
    let read = median(|| {
        let files: Vec<File> =
            scratch.iter().map(|file| File::open(&file.path)).collect::<Result<_, _>>()?;
        for file in &files {
            let advice = rustix::fs::Advice::DontNeed;
            // A hint: a file system that does not know it has nothing to drop.
            let _ = rustix::fs::fadvise(file, 0, None, advice);
        }
        let started = clock.monotonic();
        let moved = crew(TASKS, |number| {
            let mut file = &files[number as usize - 1];
            let mut buffer = AlignedBuffer::zeroed(CHUNK as usize);
            let mut moved = 0;
            loop {
                match file.read(&mut buffer)? {
                    0 => return Ok(moved),
                    count => moved += count as u64,
                }
            }
        })?;
        Ok(moved as f64 / (clock.monotonic() - started).as_secs_f64().max(1e-9))
    });
    Ok(MountRates { write, read: read.map_err(io)? })
}

/// Bytes per second of four TCP connections over the loopback interface: what the network stack
/// of this machine carries with sender and receiver on the same processors.
pub fn loopback(clock: &dyn Clock, time: Duration) -> Result<f64, PlanError> {
    loopback_run(clock, time)
        .map_err(|error| PlanError::Measure(format!("loopback network: {error}")))
}

fn loopback_run(clock: &dyn Clock, time: Duration) -> std::io::Result<f64> {
    const CONNECTIONS: usize = 4;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let mut pairs = Vec::new();
    for _ in 0..CONNECTIONS {
        let sender = TcpStream::connect(address)?;
        let (receiver, _) = listener.accept()?;
        pairs.push((sender, receiver));
    }
    let stop = AtomicBool::new(false);
    let received = AtomicU64::new(0);
    let buffer = noise(1 << 20, 1);
    let started = clock.monotonic();
    strake_env::thread::scope(|scope| {
        let (stop, received, buffer) = (&stop, &received, &buffer);
        for (mut sender, mut receiver) in pairs {
            // The sender's end closes its connection, which ends the receiver.
            scope.spawn(
                move || {
                    while !stop.load(Ordering::Relaxed) && sender.write_all(buffer).is_ok() {}
                },
            );
            scope.spawn(move || {
                let mut into = AlignedBuffer::zeroed(1 << 20);
                while let Ok(count @ 1..) = receiver.read(&mut into) {
                    received.fetch_add(count as u64, Ordering::Relaxed);
                }
            });
        }
        clock.sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
    let elapsed = (clock.monotonic() - started).as_secs_f64();
    Ok(received.load(Ordering::Relaxed) as f64 / elapsed.max(1e-9))
}

/// Interfaces that say how fast they are: name and bits per second.
pub fn interfaces() -> Vec<(String, f64)> {
    let Ok(entries) = std::fs::read_dir("/sys/class/net") else { return Vec::new() };
    let mut found: Vec<(String, f64)> = entries
        .flatten()
        .filter_map(|entry| {
            let speed = std::fs::read_to_string(entry.path().join("speed")).ok()?;
            let megabits: f64 = speed.trim().parse().ok()?;
            // A link that is down says -1.
            (megabits > 0.0)
                .then(|| (entry.file_name().to_string_lossy().into_owned(), megabits * 1e6))
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::RealClock;

    const BUDGET: Budget = Budget { bytes: 16 << 20, time: Duration::from_millis(50) };

    #[test]
    fn a_directory_is_measured_and_left_empty() {
        let directory = std::env::temp_dir().join(format!("strake-plan-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let rates = disk(&RealClock, &directory, BUDGET).unwrap();
        for rate in [rates.write, rates.read, rates.iops_write, rates.iops_read, rates.capacity] {
            assert!(rate > 0.0 && rate.is_finite(), "{rates:?}");
        }
        let through = mount(&RealClock, &directory, BUDGET).unwrap();
        assert!(through.write > 0.0 && through.read > 0.0);
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
        std::fs::remove_dir(&directory).unwrap();
    }

    #[test]
    fn what_cannot_be_measured_says_what_to_do() {
        let missing = disk(&RealClock, Path::new("/nonexistent"), BUDGET).unwrap_err();
        assert!(missing.is_usage());
        let huge = Budget { bytes: 1 << 60, ..BUDGET };
        let error = disk(&RealClock, &std::env::temp_dir(), huge).unwrap_err();
        assert!(error.to_string().contains("--size"), "{error}");
    }

    #[test]
    fn the_loopback_network_carries_something() {
        assert!(loopback(&RealClock, Duration::from_millis(50)).unwrap() > 0.0);
    }
}
