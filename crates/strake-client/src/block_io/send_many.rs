//! Sends small blocks of several files together: an NSD gets its strips of all of them in one
//! request.
//!
//! This comes before each of them is sent by itself ([`super::send`]). So it leaves out blocks that
//! are stored already, that somebody is at work on, or for which something has to be read. A block
//! that fails here is dirty as before.

use super::send::{Attempt, Outgoing};
use crate::inode::core::InodeState;
use crate::memory::block::{Block, BlockData};
use crate::memory::file::FileState;
use crate::mount::Mount;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use strake_array::stripe_io::{Patched, SMALL_BLOCK_BYTES, SmallBlock};

/// How many blocks are sent together at most.
pub(crate) const TOGETHER_MAX: usize = 32;

/// A block that may be sent together with others.
pub(crate) struct Small {
    inode: Arc<InodeState>,
    file: Arc<FileState>,
    block: Arc<Block>,
}

impl Small {
    /// A block of a file, if the file is small and the block is in memory.
    pub(crate) fn of(inode: &Arc<InodeState>, file: &Arc<FileState>, index: u64) -> Option<Small> {
        if !is_small(file) {
            return None;
        }
        let block = file.find_block(index)?;
        Some(Small { inode: Arc::clone(inode), file: Arc::clone(file), block })
    }

    /// Makes the block ready to be sent, if that is simple. It waits for no lock, because others
    /// may hold one of them and wait for one that is held here.
    fn prepare<'a>(&'a self, mount: &'a Mount) -> Option<Outgoing<'a>> {
        let Small { inode, file, block } = self;
        let content = file.content.try_read()?;
        if !mount.array.meta.is_durable(file.barrier.load(Ordering::Acquire)) {
            return None;
        }
        let data = block.data.try_write()?;
        if block.stored.load(Ordering::Acquire) != 0 || !is_simple(&data) {
            return None;
        }
        let attempt = Attempt::default();
        Outgoing::prepare(mount, (inode, file, block), &attempt, content, data).ok()?.ok()
    }
}

/// Whether the blocks of a file may be sent together with those of others.
pub(crate) fn is_small(file: &FileState) -> bool {
    file.size() <= SMALL_BLOCK_BYTES as u64
}

fn is_simple(data: &BlockData) -> bool {
    let is_small = data.length as usize <= SMALL_BLOCK_BYTES;
    is_small && !data.is_sparse() && !data.is_missing(0, data.limit as usize)
}

/// Sends those of the blocks for which that is simple. Returns how many bytes were accepted.
pub(crate) fn send_together(mount: &Mount, blocks: &[Small]) -> u64 {
    assert!(blocks.len() <= TOGETHER_MAX, "they fit into one request");
    // New objects are durable before their strips are sent: one sync for all of them.
    let barrier = blocks.iter().map(|it| it.file.barrier.load(Ordering::Acquire)).max();
    let is_durable = |changes| mount.array.meta.is_durable(changes);
    if !barrier.is_none_or(is_durable) && mount.array.meta.sync().is_err() {
        return 0;
    }
    let outgoing: Vec<Outgoing<'_>> = blocks.iter().filter_map(|it| it.prepare(mount)).collect();
    let whole: Vec<SmallBlock<'_>> = outgoing.iter().map(Outgoing::whole).collect();
    let begin = |_: &SmallBlock<'_>| mount.timings.block_write.begin();
    let starts: Vec<_> = whole.iter().map(begin).collect();
    let sent = mount.array.io.write_blocks(&whole);
    for ((block, start), sent) in whole.iter().zip(starts).zip(&sent) {
        mount.timings.block_write.end(start, block.bytes.len() as u64, sent.is_ok());
    }
    let accepted = whole.iter().zip(&sent).filter(|(_, sent)| sent.is_ok());
    let bytes = accepted.map(|(block, _)| u64::from(block.block_bytes)).sum();
    for (outgoing, sent) in outgoing.into_iter().zip(sent) {
        // After an error the block is sent by itself, and the error counts if there is one again.
        let _ = outgoing.finish(sent.map(Patched::Accepted));
    }
    bytes
}

#[cfg(test)]
#[path = "send_many_test.rs"]
mod send_many_test;
