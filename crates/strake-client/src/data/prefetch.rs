//! Reading ahead of sequential readers.

use crate::block_io::load::load;
use crate::data::of::Of;
use crate::inode::queue::{Job, Next};
use crate::memory::file::Content;
use crate::mount::Mount;
use std::sync::Arc;
use strake_env::cause;
use strake_env::sync::Mutex;

/// A read this near to the expected offset still continues the sequence, because kernels send the
/// parts of one large read in any order.
const SLACK: u64 = 1 << 20;

/// A reader that reads so many bytes at once at the beginning of a file will go on.
const STREAM_BYTES: u64 = 256 << 10;

/// The record of how a handle is read.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    next: u64,
    streak: u32,
    /// Blocks before this one were already asked for.
    ahead_to: u64,
    /// The kernel keeps the pages that are read: see [`crate::Vfs::pages_are_kept`].
    pub(crate) kept: bool,
}

impl ReadAhead {
    /// Notes a read. Returns whether it continues a sequence.
    pub(crate) fn note(&mut self, offset: u64, length: u64) -> bool {
        let near = offset.abs_diff(self.next) <= SLACK.min(4 * length);
        self.streak = if near { self.streak.saturating_add(1) } else { 0 };
        if !near {
            self.ahead_to = 0;
        }
        self.next = if near { self.next.max(offset + length) } else { offset + length };
        // The first read at offset 0 may want only one page. A second one makes a sequence, and so
        // does a first long one.
        self.streak >= 2 || (self.streak >= 1 && length >= STREAM_BYTES)
    }
}

/// Queues the blocks behind `offset` to be fetched.
pub(crate) fn run_ahead(of: &Of<'_>, ahead: &Mutex<ReadAhead>, offset: u64) {
    let mount = of.mount;
    let count = mount.settings.prefetch_blocks;
    let Some(content) = of.file.content.try_read() else { return };
    let Content::Object(layout) = &*content else { return };
    let block_size = u64::from(layout.block_size);
    let first = offset / block_size + 1;
    let stored = of.file.size().div_ceil(block_size);
    let end = (first + count).min(stored);
    // No further blocks are queued while the readers' queue is long.
    if count == 0 || mount.prefetch.len() as u64 > 4 * count {
        return;
    }
    let from = {
        let mut ahead = ahead.lock();
        let from = ahead.ahead_to.max(first);
        ahead.ahead_to = ahead.ahead_to.max(end);
        from
    };
    for index in from..end {
        if of.file.find_block(index).is_none() && of.file.stored_limit(layout, index) > 0 {
            let inode = mount.table.pin(of.inode.ino);
            mount.prefetch.push(Job::new(inode, Arc::clone(of.file), index));
        }
    }
}

/// The main function of a thread that reads ahead.
pub(crate) fn serve(mount: &Mount) {
    loop {
        match mount.prefetch.next() {
            Next::Job(job) => fetch(mount, &job),
            Next::Press | Next::Idle => {}
            Next::End => return,
        }
    }
}

/// Reads a block into the page pool. An error is ignored: the reader that needs the block gets it.
fn fetch(mount: &Mount, job: &Job) {
    if job.file.find_block(job.index).is_some() {
        return;
    }
    let _cause = cause::take(job.cause);
    let bytes = {
        let content = job.file.content.read();
        let Content::Object(layout) = &*content else { return };
        job.file.stored_limit(layout, job.index) as usize
    };
    mount.admit(bytes);
    let content = job.file.content.read();
    let Content::Object(layout) = &*content else { return };
    let block = job.file.block(layout, job.index);
    let mut data = block.data.write();
    if !data.detached {
        let end = data.limit as usize;
        let (range, access) = ((0, end), mount.access_of_readers());
        let _ = load(mount, &job.inode, &job.file, layout, &block, &mut data, range, access);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_readers_are_recognised_and_random_ones_are_not() {
        let mut ahead = ReadAhead::default();
        assert!(!ahead.note(0, 65536));
        assert!(ahead.note(65536, 65536));
        assert!(ahead.note(131_072, 65536));
        assert!(!ahead.note(1 << 30, 65536));
        assert!(!ahead.note(5 << 30, 4096));
        assert!(!ahead.note(9 << 30, 4096));
        assert!(ReadAhead::default().note(0, 1 << 20));
        assert!(!ReadAhead::default().note(1 << 30, 1 << 20));
    }
}
