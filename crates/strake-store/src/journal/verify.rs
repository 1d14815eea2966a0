//! Reads back the chunks that a journal in use would need after a crash. If the disk has lost some
//! of them, the journal is written anew: the owner still has the entries that count in memory.

use super::chunk::{self, BLOCK_BYTES, Header};
use super::{Journal, Lsn};
use strake_env::AlignedBuffer;
use strake_proto::Result;

impl Journal {
    /// Reads every durable chunk that a recovery would need, and returns the sequence of the first
    /// damaged one. Chunks that are appended or trimmed meanwhile are left out.
    ///
    /// # Errors
    /// The disk's errors.
    pub fn verify(&self) -> Result<Option<u64>> {
        let needed: Vec<(u64, u64)> = {
            let state = self.state.lock();
            let durable = state.live.iter().take_while(|live| live.sequence <= state.durable);
            durable.map(|live| (live.sequence, live.position)).collect()
        };
        let mut buffer = AlignedBuffer::zeroed(BLOCK_BYTES);
        for (sequence, position) in needed {
            let is_whole = self.is_whole(sequence, position, &mut buffer)?;
            let first = self.state.lock().live.front().map(|live| live.sequence);
            // A chunk that was trimmed meanwhile may be overwritten.
            if !is_whole && first.is_some_and(|first| first <= sequence) {
                return Ok(Some(sequence));
            }
        }
        Ok(None)
    }

    fn is_whole(&self, sequence: u64, position: u64, buffer: &mut AlignedBuffer) -> Result<bool> {
        let within = position % self.region.length;
        let (disk, offset) = (&self.region.disk, self.region.offset + within);
        disk.read_at(offset, &mut buffer[..BLOCK_BYTES])?;
        let header = Header::read(&buffer[..BLOCK_BYTES]).filter(|header| {
            header.seed == self.region.seed
                && (header.sequence, header.position) == (sequence, position)
                && within + u64::from(header.length) <= self.region.length
        });
        let Some(header) = header else { return Ok(false) };
        let length = header.length as usize;
        if buffer.len() < length {
            *buffer = AlignedBuffer::zeroed(length);
        }
        let bytes = &mut buffer[..length];
        disk.read_at(offset, bytes)?;
        Ok(chunk::is_valid(bytes))
    }

    /// Like [`Journal::trim`], but an empty chunk replaces the last chunk too. Afterwards no chunk
    /// written before this call counts, if it held only entries below `before`.
    ///
    /// # Errors
    /// As [`Journal::sync`].
    pub fn renew(&self, before: Lsn) -> Result<()> {
        self.state.lock().trim_pending = true;
        self.sync()?;
        self.trim(before)
    }
}
