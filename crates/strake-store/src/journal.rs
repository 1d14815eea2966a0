//! A journal of opaque entries on a [`LogRegion`]: cheap durability, one barrier for many callers.
//!
//! Entries are collected in memory in chunks (bytes in `journal/chunk.rs`) and written by
//! [`Journal::sync`]. Every flush begins at a fresh 4 KiB block and never touches a block that
//! holds durable entries. So a torn write can only destroy entries that nobody was promised.
//!
//! **Ring.** Chunks lie one after the other. No chunk crosses the ring's end: the rest of a lap is
//! skipped if the next chunk does not fit in it. Positions count bytes as if there were no ring.
//! [`Journal::trim`] names the first chunk still needed in the next chunk's header. Space before
//! that chunk is used again only once that header is durable, so recovery can tell a trimmed chunk
//! from a lost one.
//!
//! **Group commit.** A thread that finds no flush under way leads one: it takes all that is
//! pending, writes it and syncs it without holding the lock. Others append meanwhile, or wait and
//! lead the next flush.
//!
//! **Invariants.** `tail ≤ head ≤ tail + capacity`. Sequences in `live` ascend by one. If a `sync`
//! that began after an `append` has returned, the entry is recovered after any crash. The entries
//! recovered are a prefix of those appended (see `journal/recover.rs`).

mod chunk;
mod recover;
mod verify;

use crate::region::LogRegion;
use chunk::{Builder, CHUNK_BYTES_MAX, Header};
use std::collections::VecDeque;
use std::time::Duration;
use strake_env::AlignedBuffer;
use strake_env::sync::{Condvar, Mutex, MutexGuard};
use strake_proto::{Error, ErrorKind, Result};

pub use chunk::ENTRY_BYTES_MAX;

/// This many bytes are kept free beyond all appended entries. They cover the part of a lap that the
/// longest chunk may skip, and an empty chunk that records a trim.
const RESERVE_BYTES: u64 = CHUNK_BYTES_MAX as u64 + 2 * chunk::BLOCK_BYTES as u64;
/// A longer limit counts as no limit. A wait of this length is simply begun again.
const LIMIT_MAX: Duration = Duration::from_secs(3600);
/// At most this many buffers are kept for reuse. A flush of more gives the others back.
const SPARE_BUFFERS_MAX: usize = 4;

/// The number of an entry: 1 for the first, ascending, never reused within a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// Entries that recovery found, in order.
pub type Entries = Vec<(Lsn, Vec<u8>)>;

/// A journal.
pub struct Journal {
    region: LogRegion,
    incarnation: u64,
    state: Mutex<State>,
    flushed: Condvar,
}

/// A chunk on the disk that is not trimmed.
struct Live {
    sequence: u64,
    position: u64,
    /// All entries of the chunk have lower numbers than this.
    next_lsn: u64,
}

struct State {
    /// Chunks not yet written, with the LSN after each. The last one is still being filled.
    pending: VecDeque<(Builder, u64)>,
    /// The bytes that these chunks take on the disk.
    pending_bytes: u64,
    spare: Vec<AlignedBuffer>,
    next_lsn: u64,
    next_sequence: u64,
    /// The position of the next chunk.
    head: u64,
    /// The first position that must not be overwritten.
    tail: u64,
    /// Written chunks, from the first needed one on.
    live: VecDeque<Live>,
    /// All chunks up to here are durable.
    durable: u64,
    /// True if there was a trim that no durable chunk records yet.
    trim_pending: bool,
    /// The numbers of flushes begun and ended.
    flushes_begun: u64,
    flushes_done: u64,
    failed: Option<Error>,
}

impl Journal {
    /// Opens the journal and returns the entries found, in order.
    ///
    /// # Errors
    /// The disk's errors. `Corrupt` if entries that were durable are damaged.
    pub fn open(region: LogRegion) -> Result<(Journal, Entries)> {
        let found = recover::recover(&region)?;
        region.disk.sync()?;
        let live: VecDeque<Live> = found
            .chain
            .iter()
            .map(|header| Live {
                sequence: header.sequence,
                position: header.position,
                next_lsn: header.next_lsn,
            })
            .collect();
        let last = found.chain.last();
        let head = last.map_or(0, |last| last.position + u64::from(last.length));
        let sequence = last.map_or(0, |last| last.sequence);
        let state = State {
            pending: VecDeque::new(),
            pending_bytes: 0,
            spare: Vec::new(),
            next_lsn: last.map_or(1, |last| last.next_lsn),
            next_sequence: sequence + 1,
            head,
            tail: live.front().map_or(head, |first| first.position),
            live,
            durable: sequence,
            trim_pending: false,
            flushes_begun: 0,
            flushes_done: 0,
            failed: None,
        };
        let journal = Journal {
            incarnation: found.incarnation + 1,
            region,
            state: Mutex::new(state),
            flushed: Condvar::new(),
        };
        Ok((journal, found.entries))
    }

    /// Begins the log of a new container with an empty chunk. This distinguishes a log that has
    /// lost everything from one that was never written.
    ///
    /// # Errors
    /// The disk's errors.
    pub(crate) fn begin(region: LogRegion) -> Result<()> {
        let (journal, _) = Journal::open(LogRegion { is_begun: false, ..region })?;
        journal.state.lock().trim_pending = true;
        journal.sync()
    }

    /// Adds an entry in memory. [`Journal::sync`] makes it durable.
    ///
    /// # Errors
    /// `NoSpace` if the ring is full: make a checkpoint, trim, try again. `TooBig` above
    /// [`ENTRY_BYTES_MAX`]. After the disk has failed, its error.
    pub fn append(&self, entry: &[u8]) -> Result<Lsn> {
        if entry.len() > ENTRY_BYTES_MAX {
            return Err(Error::new(ErrorKind::TooBig, "a journal entry above 1 MiB"));
        }
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let room = state.pending.back().and_then(|(open, _)| open.length_with(entry.len()));
        let growth = match (room, state.pending.back()) {
            (Some(length), Some((open, _))) => length - open.length(),
            _ => chunk::length_alone(entry.len()),
        } as u64;
        let used = state.head - state.tail + state.pending_bytes;
        if used + growth + RESERVE_BYTES > self.region.length {
            return Err(Error::new(ErrorKind::NoSpace, "the log is full"));
        }
        if room.is_none() {
            let builder = state.builder();
            state.pending.push_back((builder, 0));
        }
        let lsn = state.next_lsn;
        let (open, next_lsn) = state.pending.back_mut().expect("invariant: a chunk is open");
        assert!(open.push(lsn, entry), "the entry was found to fit");
        *next_lsn = lsn + 1;
        state.next_lsn = lsn + 1;
        state.pending_bytes += growth;
        Ok(Lsn(lsn))
    }

    /// Makes every entry appended before this call durable. Callers at the same time share one
    /// write and one barrier. A log that follows data ([`crate::Container::index_log`]) adds a
    /// barrier before the write. That barrier makes all data durable that was written to the disk
    /// before the entries were appended, so the caller needs no barrier of its own.
    ///
    /// # Errors
    /// The disk's errors. After one, the journal refuses everything.
    pub fn sync(&self) -> Result<()> {
        self.sync_within(Duration::MAX)
    }

    /// Like [`Journal::sync`]. If another caller's flush takes longer than `limit` from now on,
    /// returns `TimedOut`. The entries stay, and a later call may succeed. The limit does not end a
    /// flush of the caller itself; only the disk can end that.
    ///
    /// # Errors
    /// As [`Journal::sync`], and `TimedOut`.
    pub fn sync_within(&self, limit: Duration) -> Result<()> {
        let mut state = self.state.lock();
        let has_work = !state.pending.is_empty() || state.trim_pending;
        let wanted = state.flushes_begun + u64::from(has_work);
        loop {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if state.flushes_done >= wanted {
                return Ok(());
            }
            if state.flushes_begun == state.flushes_done {
                self.flush(&mut state);
                continue;
            }
            let begun = (state.flushes_begun, state.flushes_done);
            let waited = self.flushed.wait_for(&mut state, limit.min(LIMIT_MAX));
            // A flush that ended during the wait is a sign of life.
            if waited.timed_out()
                && limit < LIMIT_MAX
                && begun == (state.flushes_begun, state.flushes_done)
            {
                let detail = format!("a flush of the log takes longer than {limit:?}");
                return Err(Error::new(ErrorKind::TimedOut, detail));
            }
        }
    }

    /// Gives up the entries before `before`. This is durable when the call returns.
    ///
    /// # Errors
    /// As [`Journal::sync`].
    pub fn trim(&self, before: Lsn) -> Result<()> {
        let mut state = self.state.lock();
        // The last chunk always stays, because it tells the next recovery where things are.
        while state.live.len() > 1 && state.live[0].next_lsn <= before.0 {
            // A chunk being written may not be durable yet. Its place must not be lost either.
            if state.live[0].sequence > state.durable {
                break;
            }
            state.live.pop_front();
            state.trim_pending = true;
        }
        drop(state);
        self.sync()
    }

    /// Makes the next entry's number higher than `lsn`. Call this with `Kv::applied_in_base` after
    /// opening, so that no number that the KV counts as applied is given again.
    pub fn advance(&self, lsn: Lsn) {
        let mut state = self.state.lock();
        state.next_lsn = state.next_lsn.max(lsn.0 + 1);
    }

    /// The number of the last entry appended or advanced to; 0 before the first.
    pub fn last(&self) -> Lsn {
        Lsn(self.state.lock().next_lsn - 1)
    }

    /// Ends all writing, even by callers that still have a handle. Another log will take the place.
    pub fn close(&self) {
        let mut state = self.state.lock();
        while state.flushes_begun != state.flushes_done {
            self.flushed.wait(&mut state);
        }
        let closed = || Error::new(ErrorKind::Io, "the log is closed");
        state.failed.get_or_insert_with(closed);
    }

    /// True if no flush is under way.
    pub fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.flushes_begun == state.flushes_done
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        let state = self.state.lock();
        state.head - state.tail + state.pending_bytes
    }

    /// The bytes that entries can use. [`Journal::append`] refuses entries beyond.
    pub fn capacity(&self) -> u64 {
        self.region.length - RESERVE_BYTES
    }

    /// Writes all pending chunks and syncs. The lock is released meanwhile.
    fn flush(&self, guard: &mut MutexGuard<'_, State>) {
        let state = &mut **guard;
        state.flushes_begun += 1;
        if state.pending.is_empty() {
            // An empty chunk records a trim when there are no entries.
            let builder = state.builder();
            let next_lsn = state.next_lsn;
            state.pending.push_back((builder, next_lsn));
        }
        let mut chunks = std::mem::take(&mut state.pending);
        state.pending_bytes = 0;
        state.trim_pending = false;
        let first = state.live.front().map(|first| (first.sequence, first.position));
        let needed = first.map_or(state.next_sequence, |(sequence, _)| sequence);
        let headers: Vec<Header> = chunks
            .iter()
            .map(|(chunk, next_lsn)| {
                state.place(&self.region, self.incarnation, chunk, *next_lsn, needed)
            })
            .collect();
        let tail = first.map_or(headers[0].position, |(_, position)| position);
        assert!(state.head - state.tail <= self.region.length, "the ring overtook itself");

        let result = MutexGuard::unlocked(guard, || -> std::io::Result<()> {
            let disk = &self.region.disk;
            if self.region.follows_data {
                disk.sync()?;
            }
            let last = chunks.len() - 1;
            for (index, ((chunk, _), header)) in chunks.iter_mut().zip(&headers).enumerate() {
                let offset = self.region.offset + header.position % self.region.length;
                let bytes = chunk.finish(header);
                match index == last {
                    true => disk.write_and_sync(offset, bytes)?,
                    false => disk.write_at(offset, bytes)?,
                }
            }
            Ok(())
        });

        let state = &mut **guard;
        state.flushes_done += 1;
        match result {
            Ok(()) => {
                let last = headers.last().expect("invariant: a flush writes a chunk");
                state.durable = last.sequence;
                state.tail = tail;
                let buffers = chunks.into_iter().map(|(chunk, _)| chunk.into_buffer());
                let missing = SPARE_BUFFERS_MAX.saturating_sub(state.spare.len());
                state.spare.extend(buffers.take(missing));
            }
            Err(error) => {
                state.failed = Some(Error::from(error).context("the log cannot be written"));
            }
        }
        self.flushed.notify_all();
    }
}

impl State {
    fn builder(&mut self) -> Builder {
        let spare = self.spare.pop();
        Builder::new(spare.unwrap_or_else(|| AlignedBuffer::zeroed(chunk::BUFFER_BYTES_MIN)))
    }

    /// Gives a chunk its sequence and place.
    fn place(
        &mut self,
        region: &LogRegion,
        incarnation: u64,
        chunk: &Builder,
        next_lsn: u64,
        needed: u64,
    ) -> Header {
        let length = chunk.length() as u64;
        let left_in_lap = region.length - self.head % region.length;
        if left_in_lap < length {
            self.head += left_in_lap;
        }
        let header = Header {
            length: length as u32,
            seed: region.seed,
            incarnation,
            sequence: self.next_sequence,
            position: self.head,
            durable: self.durable,
            needed,
            next_lsn,
            entry_count: 0,
            entry_bytes: 0,
        };
        self.live.push_back(Live {
            sequence: header.sequence,
            position: header.position,
            next_lsn,
        });
        self.next_sequence += 1;
        self.head += length;
        header
    }
}

#[cfg(test)]
#[path = "journal_test.rs"]
mod journal_test;
