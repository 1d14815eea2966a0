//! Several application threads at once.
//!
//! * Each thread has a file of its own, which it writes and syncs. Commits and hardened writes of
//!   several files meet. The operations on each file are in one order, so its promises are the
//!   usual ones.
//! * Two threads write different parts of one file. Nobody knows the order of their writes, so the
//!   file may hold any combination of how far each thread was.

use super::{Actor, BLOCK_SIZE, Sync};
use crate::recording::Mark;
use std::sync::Arc;
use strake_client::vfs::{Handle, Vfs};
use strake_env::disk::sim::Sequence;

/// Threads of one step in an ordinary history, and parts of a file that threads share.
const THREADS: usize = 3;
/// The most threads of one step in a crowded history.
const CROWD_MAX: usize = 4;
/// Operations of each thread.
const OPERATIONS: usize = 3;

/// One operation of a thread: its description, the positions before and after it, what it made
/// durable, and the bytes of the file afterwards, if it changed them.
type Done = (String, u64, u64, Sync, Option<Vec<u8>>);

/// A file, its handle, its bytes, and the writes to make: each an offset with data.
type Work = (u64, Handle, Vec<u8>, Vec<(usize, Vec<u8>)>);

impl Actor {
    pub(super) fn together(&mut self) {
        if self.rng.one_in(2) { self.apart() } else { self.in_one_file() }
    }

    /// Runs threads that each have a file of their own.
    fn apart(&mut self) {
        let mut work: Vec<Work> = Vec::new();
        let threads = if self.is_crowded { 2 + self.rng.index(CROWD_MAX - 1) } else { THREADS };
        for _ in 0..threads {
            let Some(ino) = self.any_file() else { return };
            if work.iter().any(|(other, ..)| *other == ino) {
                continue;
            }
            let handle = self.handle(ino);
            let mut writes = Vec::new();
            let mut size = self.latest(ino).len() as u64;
            for _ in 0..OPERATIONS {
                let (offset, length) = self.extent(size);
                size = size.max(offset + length);
                writes.push((offset as usize, self.fresh_bytes(length as usize)));
            }
            work.push((ino, handle, self.latest(ino), writes));
        }
        let (vfs, sequence) = (self.vfs(), &self.sequence);
        let done: Vec<(u64, Vec<Done>)> = strake_env::thread::scope(|scope| {
            let threads: Vec<_> = work
                .iter()
                .map(|(ino, handle, bytes, writes)| {
                    let run = move || one_file(vfs, sequence, *ino, *handle, bytes, writes);
                    (*ino, scope.spawn(run))
                })
                .collect();
            let joined = threads.into_iter();
            joined.map(|(ino, thread)| (ino, thread.join().expect("a thread works"))).collect()
        });
        let mut all: Vec<(u64, Done)> = done
            .into_iter()
            .flat_map(|(ino, done)| done.into_iter().map(move |done| (ino, done)))
            .collect();
        all.sort_by_key(|(_, done)| done.1);
        for (ino, (what, begin, end, sync, bytes)) in all {
            if let Some(bytes) = bytes {
                self.now_holds(ino, bytes);
            }
            self.mark_between(what, (begin, end), sync);
        }
    }

    /// Runs two threads in parts of one file. A part is a third of the file's size.
    fn in_one_file(&mut self) {
        let Some(ino) = self.any_file() else { return };
        let handle = self.handle(ino);
        let before = self.latest(ino);
        let part = before.len() / THREADS;
        if part == 0 {
            return;
        }
        // Two threads with two writes each can leave nine states.
        let parts: Vec<(usize, [Vec<u8>; 2])> = (0..2)
            .map(|at| {
                let length = part.min(BLOCK_SIZE as usize / 2);
                (at * part, [self.fresh_bytes(length), self.fresh_bytes(length)])
            })
            .collect();
        let begin = self.sequence.position();
        let vfs = self.vfs();
        strake_env::thread::scope(|scope| {
            for (offset, writes) in &parts {
                scope.spawn(move || {
                    for data in writes {
                        let written = vfs.write(handle, *offset as u64, data);
                        assert_eq!(written.expect("writes"), data.len());
                        // Nobody can tell whether this sync covers the other thread's writes.
                        vfs.fsync(handle).expect("syncs");
                    }
                });
            }
        });
        for first in 0..=2 {
            for second in 0..=2 {
                let mut bytes = before.clone();
                for ((offset, writes), progress) in parts.iter().zip([first, second]) {
                    if let Some(data) = writes[..progress].last() {
                        bytes[*offset..offset + data.len()].copy_from_slice(data);
                    }
                }
                self.now_holds(ino, bytes);
            }
        }
        self.mark(format!("two threads write and sync {ino}"), begin, Sync::Nothing);
        // Both threads have returned, so each of their syncs has: all writes are durable.
        let end = self.sequence.position();
        let last = self.latest(ino);
        self.now_holds(ino, last);
        self.mark_between(format!("both have synced {ino}"), (end, end), Sync::File(ino));
    }

    /// Like `mark`, for an operation that has already ended.
    fn mark_between(&mut self, what: String, (begin, end): (u64, u64), sync: Sync) {
        let tree = Arc::clone(&self.tree);
        let (begins_life, away) = (false, self.away);
        self.push(Mark { what, begin, end, sync, begins_life, away, tree });
    }
}

/// Writes to a file and syncs it, one operation after the other.
fn one_file(
    vfs: &dyn Vfs,
    sequence: &Sequence,
    ino: u64,
    handle: Handle,
    bytes: &[u8],
    writes: &[(usize, Vec<u8>)],
) -> Vec<Done> {
    let mut bytes = bytes.to_vec();
    let mut done = Vec::new();
    for (index, (offset, data)) in writes.iter().enumerate() {
        if data.is_empty() {
            continue;
        }
        let begin = sequence.position();
        let written = vfs.write(handle, *offset as u64, data).expect("writes");
        assert_eq!(written, data.len(), "there is room");
        bytes.resize(bytes.len().max(offset + data.len()), 0);
        bytes[*offset..offset + data.len()].copy_from_slice(data);
        let what = format!("a thread writes {ino} at {offset}, {}", data.len());
        done.push((what, begin, sequence.position(), Sync::Nothing, Some(bytes.clone())));
        if !(ino as usize + index).is_multiple_of(3) {
            let begin = sequence.position();
            vfs.fsync(handle).expect("syncs");
            let what = format!("a thread syncs {ino}");
            done.push((what, begin, sequence.position(), Sync::File(ino), None));
        }
    }
    done
}
