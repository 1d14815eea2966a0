//! One task of an I/O phase: opens its file, moves its records, closes.
//!
//! The measured loop makes one system call and reads the clock once per record. With `--verify` it
//! also fills and compares whole buffers. That happens outside the timed operation but inside the
//! time of the task. A verified rate is therefore lower, and it is labelled as verified.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, OFlags};

use super::phase::{Counting, Files, Layout, Operation, Phase};
use crate::content::Content;
use crate::error::{BenchError, Result};
use crate::pattern::{Order, Pattern};
use crate::team::{Meter, Task};
use crate::work::CacheFlush;

/// The alignment that O_DIRECT asks of a buffer on every device known to us.
const ALIGNMENT: usize = 4096;

/// A buffer whose first byte is aligned for O_DIRECT.
struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBuffer {
    fn new(length: usize) -> Self {
        let memory = vec![0; length + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        assert!(start < ALIGNMENT, "invariant: a byte pointer can be aligned");
        AlignedBuffer { memory, start, length }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

/// The task of one rank.
pub struct IoTask {
    phase: Phase,
    tasks: u32,
    owner: u32,
    path: PathBuf,
    content: Content,
    file: Option<File>,
    buffer: Option<AlignedBuffer>,
}

impl IoTask {
    /// The task of `rank` among `tasks`.
    pub fn new(phase: Phase, rank: u32, tasks: u32, directory: &Path) -> Self {
        let owner = phase.owner(rank, tasks);
        let number = phase.file_number(owner);
        let path = match &phase.files {
            Files::Named(path) => path.clone(),
            Files::Scratch(tag) => directory.join(match phase.layout {
                Layout::FilePerTask => format!("data.{tag}.{number}"),
                Layout::Segmented | Layout::Interleaved => format!("data.{tag}"),
            }),
        };
        IoTask {
            content: Content::new(phase.seed, number, phase.generation),
            phase,
            tasks,
            owner,
            path,
            file: None,
            buffer: None,
        }
    }

    fn open(&self) -> Result<File> {
        let mut options = OpenOptions::new();
        match self.phase.operation {
            Operation::Read => options.read(true),
            Operation::Rewrite => options.write(true),
            // The first task to come makes a shared file. No task may truncate it.
            Operation::Create | Operation::Write => options.write(true).create(true),
        };
        if self.phase.direct {
            options.custom_flags(OFlags::DIRECT.bits().cast_signed());
        }
        let result = options.open(&self.path);
        result.map_err(|error| {
            if self.phase.direct && error.raw_os_error() == Some(22) {
                let doing = "this file system does not do O_DIRECT; run without --direct";
                return BenchError::system(doing, error);
            }
            BenchError::path("open", &self.path, error)
        })
    }

    /// Rewriting and reading need data in the file. An empty file is reported here, and not later
    /// as a short read.
    fn check_length(&self, mut file: &File) -> Result<()> {
        if !matches!(self.phase.operation, Operation::Read | Operation::Rewrite) {
            return Ok(());
        }
        // Seeks to the end, because the metadata of a device has no length.
        let length = file
            .seek(SeekFrom::End(0))
            .map_err(|error| BenchError::path("find the size of", &self.path, error))?;
        if length == 0 {
            return Err(BenchError::Usage(format!(
                "{} is empty; create it first (operation `create`)",
                self.path.display()
            )));
        }
        Ok(())
    }

    fn flush_cache(&self, file: &File) -> Result<()> {
        let doing = "flush the cache of";
        file.sync_all().map_err(|error| BenchError::path(doing, &self.path, error))?;
        rustix::fs::fadvise(file, 0, None, Advice::DontNeed)
            .map_err(|error| BenchError::path(doing, &self.path, error))
    }

    /// Advises the kernel on this task's pattern. The random patterns switch read-ahead off,
    /// because their hints replace the kernel's guesses. All other patterns leave read-ahead as it
    /// is.
    fn advise(&self, file: &File) -> Result<()> {
        let advice = match self.phase.pattern {
            Pattern::Random | Pattern::RandomHint => Advice::Random,
            _ => return Ok(()),
        };
        rustix::fs::fadvise(file, 0, None, advice)
            .map_err(|error| BenchError::path("advise on", &self.path, error))
    }

    fn transfer(&self, file: &File, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let result = if self.phase.operation.writes() {
            file.write_all_at(buffer, offset)
        } else {
            file.read_exact_at(buffer, offset)
        };
        result.map_err(|error| {
            let verb = if self.phase.operation.writes() { "write" } else { "read" };
            BenchError::path(verb, &self.path, error)
        })?;
        if self.phase.fsync_each && self.phase.operation.writes() {
            return self.sync(file);
        }
        Ok(())
    }

    fn sync(&self, file: &File) -> Result<()> {
        file.sync_all().map_err(|error| BenchError::path("fsync", &self.path, error))
    }

    /// Gives the buffer the contents that belong at `offset`. If contents are verified, the whole
    /// buffer is filled. Otherwise only its first word is filled: no two records are alike, and the
    /// loop still measures the system.
    fn refill(&self, offset: u64, buffer: &mut [u8]) {
        let length = if self.phase.verify { buffer.len() } else { buffer.len().min(8) };
        self.content.fill(offset, &mut buffer[..length]);
    }

    fn compare(&self, offset: u64, buffer: &[u8]) -> Result<()> {
        self.content.check(offset, buffer).map_err(|mismatch| {
            BenchError::Verification(format!(
                "{}: byte {} is {:#04x}, should be {:#04x} (record at {offset}, {} bytes)",
                self.path.display(),
                mismatch.offset,
                mismatch.found,
                mismatch.expected,
                buffer.len(),
            ))
        })
    }
}

/// Announces the records that a random order will visit, a window ahead of the visits.
struct Hints {
    ahead: Order,
    left: u64,
}

impl Hints {
    fn announce(&mut self, task: &IoTask, file: &File, count: u64) -> Result<()> {
        for _ in 0..count.min(self.left) {
            let Some(record) = self.ahead.next() else { break };
            self.left -= 1;
            let offset = task.phase.offset(task.owner, task.tasks, record);
            let length = std::num::NonZeroU64::new(task.phase.record_bytes);
            rustix::fs::fadvise(file, offset, length, Advice::WillNeed)
                .map_err(|error| BenchError::path("advise on", &task.path, error))?;
        }
        Ok(())
    }
}

impl Task for IoTask {
    fn prepare(&mut self) -> Result<()> {
        let file = self.open()?;
        self.check_length(&file)?;
        if self.phase.operation == Operation::Read && self.phase.cache == CacheFlush::File {
            self.flush_cache(&file)?;
        }
        self.advise(&file)?;
        let length = usize::try_from(self.phase.record_bytes)
            .map_err(|_| BenchError::Usage("the record does not fit into memory".into()))?;
        let mut buffer = AlignedBuffer::new(length);
        // Touches every page, and gives unverified writes bytes that do not compress.
        self.content.fill(0, buffer.bytes());
        self.file = Some(file);
        self.buffer = Some(buffer);
        Ok(())
    }

    fn run(&mut self, meter: &mut Meter) -> Result<()> {
        let file = self.file.take().expect("invariant: prepare opened the file");
        let mut held = self.buffer.take().expect("invariant: prepare made the buffer");
        let buffer = held.bytes();
        let (records, seed) = (self.phase.records, self.phase.order_seed(self.owner));
        let visits = self.phase.visits_of(self.owner);
        let order = self.phase.pattern.order(records, seed);
        let hinting = self.phase.pattern == Pattern::RandomHint && !self.phase.operation.writes();
        let mut hints = hinting.then(|| Hints { ahead: order.clone(), left: visits });
        if let Some(hints) = &mut hints {
            hints.announce(self, &file, self.phase.hint_records)?;
        }
        let (writes, verify) = (self.phase.operation.writes(), self.phase.verify);
        meter.operation_begins();
        for record in order.take(usize::try_from(visits).unwrap_or(usize::MAX)) {
            if meter.is_over() {
                break;
            }
            let offset = self.phase.offset(self.owner, self.tasks, record);
            if writes {
                self.refill(offset, buffer);
            }
            if verify {
                meter.operation_begins();
            }
            self.transfer(&file, offset, buffer)?;
            meter.operation_ends(self.phase.record_bytes);
            if verify && !writes {
                self.compare(offset, buffer)?;
            }
            if let Some(hints) = &mut hints {
                hints.announce(self, &file, 1)?;
            }
        }
        self.end(file, meter)
    }
}

impl IoTask {
    /// Syncs and closes the file, before or after the clock stops, as the user wants.
    fn end(&self, file: File, meter: &mut Meter) -> Result<()> {
        let writes = self.phase.operation.writes();
        if writes && self.phase.fsync == Counting::Counted {
            self.sync(&file)?;
        }
        if !self.phase.close_counted {
            meter.clock_stops();
        }
        if writes && self.phase.fsync == Counting::Uncounted {
            // If the close counts, the clock must stop after the close but before this fsync. The
            // file is therefore closed through one handle and synced through another.
            let second = file
                .try_clone()
                .map_err(|error| BenchError::path("duplicate the handle of", &self.path, error))?;
            drop(file);
            meter.clock_stops();
            return self.sync(&second);
        }
        drop(file);
        meter.clock_stops();
        Ok(())
    }
}

#[cfg(test)]
#[path = "task_test.rs"]
mod task_test;
