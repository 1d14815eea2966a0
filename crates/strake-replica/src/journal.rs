//! The journal of one replica on a disk: what must outlast a crash, and nothing else.
//!
//! ```text
//! block 0, block 1   superblocks, written in turn
//! area 0, area 1     records; one area is in use
//! ```
//!
//! An *epoch* is the time that one area is in use. It begins with a record of everything: hard
//! state, snapshot, entries. Each step appends a record: entries and hard state together, so that a
//! crash leaves all of a step or nothing. When a snapshot is taken or the area is full, the next
//! epoch begins in the other area. Only when its first record is durable, the superblock names it.
//! Each opening begins an epoch too. So nothing that a crash left behind the last record is ever
//! taken for a record of later.
//!
//! **What a crash leaves.** Records that were not synced may be lost, torn, or there without those
//! before them. Every record says which records were durable when it was written. So the tail can
//! be cut at the first record that is bad, unless a later one says that it was durable. Then the
//! disk has lost something, and opening fails. A bad *last* record looks like a torn one. A
//! replica that loses it learns so when it asks the others (R26); a replica alone does not.
//!
//! **Another group.** When a majority of a group is lost for good (R31), a journal goes on in
//! another group ([`Journal::go_on`], [`Journal::begin_anew`]). That begins an epoch of another
//! owner, so it happens as a whole or not at all.
//!
//! **Failures.** After a failed write or sync nothing is accepted: the replica must end.
//!
//! Integers are little-endian. A superblock, in one block of 4 KiB:
//!
//! ```text
//!  0  8  magic "STRAKErs"
//!  8  4  CRC32C over bytes 0..64 with this field zero
//! 12  4  version, 1
//! 16 16  cluster
//! 32  4  replica
//! 36  4  zero
//! 40  8  epoch; area epoch % 2 is in use
//! 48  8  bytes of an area
//! 56  8  zero
//! ```
//!
//! `record.rs` describes records.

mod record;
mod verify;

use crate::core::{Batch, Hard};
use crate::entry::{Entry, Payload, Snapshot};
use crate::log::Log;
use crate::membership::Membership;
use crate::rule::{Rule, obeys};
use crate::types::{Life, Position, ReplicaId, Stamp};
use record::{BLOCK_BYTES, Head, Record};
use std::sync::Arc;
use strake_env::{AlignedBuffer, Disk};
use strake_proto::{ClusterId, Term};
pub(crate) use verify::Span;

const MAGIC: &[u8; 8] = b"STRAKErs";
const VERSION: u32 = 1;
const SUPERBLOCK_BYTES: usize = 64;
const AREAS_AT: u64 = 2 * BLOCK_BYTES as u64;
/// A log that goes on without a majority leaves out so many terms: more than the lost replicas can
/// have begun since.
const TERMS_SKIPPED: u64 = 1 << 40;
/// A journal has at least this many bytes.
pub const JOURNAL_BYTES_MIN: u64 = AREAS_AT + 2 * 16 * BLOCK_BYTES as u64;

/// Whose journal it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The replica.
    pub replica: ReplicaId,
}

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// There is none here.
    #[error("there is no journal of a replica on this disk")]
    Missing,
    /// There is one already.
    #[error("there is a journal of a replica on this disk already")]
    Exists,
    /// It is somebody else's.
    #[error("the journal belongs to {} of cluster {}", .0.replica, .0.cluster)]
    Foreign(Identity),
    /// It was written by another version of this program.
    #[error("the journal has version {0}; this program understands version {VERSION}")]
    Version(u32),
    /// It has lost something that was durable.
    #[error("the journal is damaged: {0}; take the replica out of the group and make it anew")]
    Damaged(&'static str),
    /// The disk is too small.
    #[error("the journal's disk is too small")]
    TooSmall,
    /// Terms are used up.
    #[error("the journal's terms are used up")]
    NoNumbers,
    /// A write or sync failed, or one before.
    #[error("the journal cannot be written: {0}")]
    Io(#[from] std::io::Error),
}

/// A journal in use.
pub struct Journal {
    disk: Arc<dyn Disk>,
    identity: Identity,
    area_bytes: u64,
    epoch: u64,
    /// The number of the next record in this epoch.
    sequence: u64,
    /// All records below were synced.
    synced: u64,
    /// Where the next record goes, from the area's beginning.
    at: u64,
    has_failed: bool,
    kept: Kept,
}

/// What the journal holds. Entries and snapshots share their bytes with the replica.
#[derive(Clone, Debug, Default)]
struct Kept {
    hard: Hard,
    base: Stamp,
    snapshot: Option<Arc<Snapshot>>,
    entries: Vec<Entry>,
}

impl Kept {
    /// Takes what a record brings. `None` if it does not fit.
    fn take(&mut self, record: Record) -> Option<()> {
        if let Some(hard) = record.hard {
            self.hard = hard;
        }
        if let Some((base, snapshot)) = record.whole {
            self.base = base;
            self.snapshot = snapshot.map(Arc::new);
            self.entries.clear();
        }
        self.replace(&record.entries)
    }

    /// Replaces everything from the first of these entries on.
    fn replace(&mut self, entries: &[Entry]) -> Option<()> {
        if let Some(first) = entries.first() {
            let keep = first.position.0.checked_sub(self.base.position.0)?.checked_sub(1)?;
            let keep = usize::try_from(keep).ok().filter(|keep| *keep <= self.entries.len())?;
            self.entries.truncate(keep);
            self.entries.extend_from_slice(entries);
        }
        Some(())
    }

    fn log(&self) -> Option<Log> {
        Log::of(self.base, self.snapshot.clone(), self.entries.clone())
    }
}

impl Journal {
    /// Makes a journal for a replica that never had one. A group's first replicas all name the same
    /// members; a replica that joins names none.
    ///
    /// # Errors
    /// If there is one already, or the disk fails.
    pub fn create(
        disk: Arc<dyn Disk>,
        identity: Identity,
        members: Option<Membership>,
    ) -> Result<(), JournalError> {
        let area_bytes = area_bytes(disk.as_ref())?;
        let mut blocks = AlignedBuffer::zeroed(AREAS_AT as usize);
        disk.read_at(0, &mut blocks)?;
        if blocks.chunks_exact(BLOCK_BYTES).any(|block| &block[..8] == MAGIC) {
            return Err(JournalError::Exists);
        }
        let mut kept = Kept::default();
        if let Some(members) = members {
            // All begin with one entry of a term before the first election.
            let payload = Payload::Membership(members);
            kept.hard.term = Term(1);
            kept.entries.push(Entry { term: Term(1), position: Position(1), payload });
        }
        let mut journal = Journal::over(disk, identity, area_bytes, 0, kept);
        journal.begin_epoch()
    }

    /// Opens the journal and begins the replica's next life. `chance` is drawn at random.
    ///
    /// # Errors
    /// If there is none, if it is not this replica's, if it is damaged, or if the disk fails.
    pub fn open(
        disk: Arc<dyn Disk>,
        identity: Identity,
        chance: u32,
    ) -> Result<(Journal, Hard, Log), JournalError> {
        let (mut journal, log) = Journal::read(disk, identity)?;
        let life = &mut journal.kept.hard.life;
        *life = Life { number: life.number.saturating_add(1), chance };
        let hard = journal.kept.hard.clone();
        journal.begin_epoch()?;
        Ok((journal, hard, log))
    }

    /// The log that a journal has. Writes nothing. The journal is in no other use.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn peek(disk: Arc<dyn Disk>, identity: Identity) -> Result<Log, JournalError> {
        Journal::read(disk, identity).map(|(_, log)| log)
    }

    /// Whose journal it is.
    ///
    /// # Errors
    /// If there is none, or the disk fails.
    pub fn owner(disk: &dyn Disk) -> Result<Identity, JournalError> {
        newest_superblock(disk, area_bytes(disk)?).map(|(owner, _)| owner)
    }

    /// Makes the journal of `owner`, whose group has lost its majority, go on alone as `next` in
    /// another group. The log stays as it is, committed or not. Behind it come the membership of
    /// this replica alone and `data` for the state machine, in a term that is beyond every term of
    /// the other group. A crash leaves the old journal or the new one.
    ///
    /// # Errors
    /// As [`Journal::open`]. The old journal is in force then.
    pub fn go_on(
        disk: Arc<dyn Disk>,
        owner: Identity,
        next: Identity,
        data: &[u8],
    ) -> Result<(), JournalError> {
        let (mut journal, log) = Journal::read(disk, owner)?;
        let last = log.last();
        let known = journal.kept.hard.term.max(last.term);
        let term = Term(known.0.checked_add(TERMS_SKIPPED).ok_or(JournalError::NoNumbers)?);
        let alone = Payload::Membership(Membership::of([next.replica]));
        let level = log.level_at(last.position);
        let data = Payload::Data { level, bytes: data.into() };
        let mut position = last.position;
        for payload in [alone, data] {
            position = position.next();
            journal.kept.entries.push(Entry { term, position, payload });
        }
        let life = journal.kept.hard.life;
        // The others begin new lives in the new group.
        journal.kept.hard = Hard { term, voted: Some(next.replica), life, ..Hard::default() };
        journal.pass_on(next)
    }

    /// Makes the journal of `owner` that of a replica which joins another group as `next`, and has
    /// nothing yet. A crash leaves the old journal or the new one.
    ///
    /// # Errors
    /// If there is none of `owner`, or the disk fails. The old journal is in force then.
    pub fn begin_anew(
        disk: Arc<dyn Disk>,
        owner: Identity,
        next: Identity,
    ) -> Result<(), JournalError> {
        let area_bytes = area_bytes(disk.as_ref())?;
        let epoch = find_epoch(disk.as_ref(), owner, area_bytes)?;
        Journal::over(disk, owner, area_bytes, epoch, Kept::default()).pass_on(next)
    }

    /// Writes everything as another replica's.
    fn pass_on(&mut self, next: Identity) -> Result<(), JournalError> {
        self.identity = next;
        self.begin_epoch()?;
        // The second superblock names the old replica, until an epoch more has begun. If the first
        // one were damaged meanwhile, the old journal would be in force again.
        self.begin_epoch()
    }

    /// Reads everything, and writes nothing.
    fn read(disk: Arc<dyn Disk>, identity: Identity) -> Result<(Journal, Log), JournalError> {
        let area_bytes = area_bytes(disk.as_ref())?;
        let epoch = find_epoch(disk.as_ref(), identity, area_bytes)?;
        let area = read_area(disk.as_ref(), area_bytes, epoch)?;
        let (kept, _) = read_records(&area, identity, epoch)?;
        let other = read_area(disk.as_ref(), area_bytes, epoch + 1)?;
        let is_newer = |head: &Head| head.epoch > epoch && head.sequence > 0;
        if record::find(&other, 0, identity, is_newer) {
            return Err(JournalError::Damaged("the newest superblock is lost"));
        }
        let log = kept.log().ok_or(JournalError::Damaged("its entries do not fit together"))?;
        Ok((Journal::over(disk, identity, area_bytes, epoch, kept), log))
    }

    fn over(
        disk: Arc<dyn Disk>,
        identity: Identity,
        area_bytes: u64,
        epoch: u64,
        kept: Kept,
    ) -> Journal {
        let (sequence, synced, at) = (0, 0, 0);
        let has_failed = false;
        Journal { disk, identity, area_bytes, epoch, sequence, synced, at, has_failed, kept }
    }

    /// Writes one step. It is durable after [`Journal::sync`].
    ///
    /// # Errors
    /// If the disk fails or is too small. Nothing is accepted from then on.
    pub fn write(&mut self, batch: &Batch) -> Result<(), JournalError> {
        let outcome = self.try_write(batch, false);
        self.has_failed |= outcome.is_err();
        outcome
    }

    /// Does [`Journal::write`] and then [`Journal::sync`], with one call of the disk.
    ///
    /// # Errors
    /// As [`Journal::write`].
    pub fn write_and_sync(&mut self, batch: &Batch) -> Result<(), JournalError> {
        let outcome = self.try_write(batch, true);
        self.has_failed |= outcome.is_err();
        outcome
    }

    /// Makes everything durable that was written.
    ///
    /// # Errors
    /// As [`Journal::write`].
    pub fn sync(&mut self) -> Result<(), JournalError> {
        self.refuse_if_failed()?;
        if self.synced < self.sequence {
            let outcome = if obeys(Rule::SyncsReachTheDisk) { self.disk.sync() } else { Ok(()) };
            self.has_failed |= outcome.is_err();
            outcome?;
            self.synced = self.sequence;
        }
        Ok(())
    }

    fn try_write(&mut self, batch: &Batch, syncs: bool) -> Result<(), JournalError> {
        self.refuse_if_failed()?;
        if let Some(hard) = &batch.hard {
            self.kept.hard = hard.clone();
        }
        if let Some((snapshot, base)) = &batch.snapshot {
            self.kept.base = *base;
            self.kept.snapshot = Some(Arc::clone(snapshot));
            self.kept.entries.clear();
        }
        let fits = self.kept.replace(&batch.entries);
        assert!(fits.is_some(), "a step follows the one before");
        if batch.snapshot.is_some() {
            return self.begin_epoch();
        }
        let entries = batch.entries.clone();
        let record = Record { hard: batch.hard.clone(), whole: None, entries };
        let bytes = record::encode(&self.head(), &record);
        if self.at + bytes.len() as u64 > self.area_bytes {
            return self.begin_epoch();
        }
        self.write_record(&bytes, syncs)
    }

    fn refuse_if_failed(&self) -> Result<(), JournalError> {
        if self.has_failed {
            return Err(std::io::Error::other("it has failed before").into());
        }
        Ok(())
    }

    fn head(&self) -> Head {
        let Journal { identity, epoch, sequence, synced, .. } = *self;
        Head { identity, epoch, sequence, synced, length: 0, body_bytes: 0 }
    }

    /// Appends a record. With `syncs` it is durable then, and all before it.
    fn write_record(&mut self, bytes: &[u8], syncs: bool) -> Result<(), JournalError> {
        let place = area_at(self.area_bytes, self.epoch) + self.at;
        match syncs && obeys(Rule::SyncsReachTheDisk) {
            true => self.disk.write_and_sync(place, bytes)?,
            false => self.disk.write_at(place, bytes)?,
        }
        self.at += bytes.len() as u64;
        self.sequence += 1;
        if syncs {
            self.synced = self.sequence;
        }
        Ok(())
    }

    /// Writes everything into the other area, and uses that from then on.
    fn begin_epoch(&mut self) -> Result<(), JournalError> {
        self.epoch += 1;
        (self.sequence, self.synced, self.at) = (0, 0, 0);
        let Kept { hard, base, snapshot, entries } = self.kept.clone();
        let whole = Some((base, snapshot.map(|snapshot| (*snapshot).clone())));
        let record = Record { hard: Some(hard), whole, entries };
        let bytes = record::encode(&self.head(), &record);
        if bytes.len() as u64 > self.area_bytes {
            return Err(JournalError::TooSmall);
        }
        self.write_record(&bytes, false)?;
        self.disk.sync()?;
        self.synced = self.sequence;
        let block = superblock(self.identity, self.epoch, self.area_bytes);
        let at = (self.epoch % 2) * BLOCK_BYTES as u64;
        self.disk.write_and_sync(at, &block)?;
        Ok(())
    }
}

fn area_bytes(disk: &dyn Disk) -> Result<u64, JournalError> {
    if disk.len() < JOURNAL_BYTES_MIN {
        return Err(JournalError::TooSmall);
    }
    let blocks = (disk.len() - AREAS_AT) / BLOCK_BYTES as u64;
    Ok(blocks / 2 * BLOCK_BYTES as u64)
}

fn area_at(area_bytes: u64, epoch: u64) -> u64 {
    AREAS_AT + (epoch % 2) * area_bytes
}

fn read_area(disk: &dyn Disk, bytes: u64, epoch: u64) -> Result<AlignedBuffer, JournalError> {
    let mut area = AlignedBuffer::zeroed(bytes as usize);
    disk.read_at(area_at(bytes, epoch), &mut area)?;
    Ok(area)
}

fn superblock(identity: Identity, epoch: u64, area_bytes: u64) -> AlignedBuffer {
    let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
    block[..8].copy_from_slice(MAGIC);
    block[12..16].copy_from_slice(&VERSION.to_le_bytes());
    block[16..32].copy_from_slice(&identity.cluster.0);
    block[32..36].copy_from_slice(&identity.replica.0.to_le_bytes());
    block[40..48].copy_from_slice(&epoch.to_le_bytes());
    block[48..56].copy_from_slice(&area_bytes.to_le_bytes());
    let crc = record::checksum(&block[..SUPERBLOCK_BYTES]);
    block[8..12].copy_from_slice(&crc.to_le_bytes());
    block
}

/// The epoch in use, by the newest superblock that is valid.
fn find_epoch(disk: &dyn Disk, identity: Identity, bytes: u64) -> Result<u64, JournalError> {
    match newest_superblock(disk, bytes)? {
        (owner, epoch) if owner == identity => Ok(epoch),
        (owner, _) => Err(JournalError::Foreign(owner)),
    }
}

/// The owner and the epoch of the newest superblock that is valid.
fn newest_superblock(disk: &dyn Disk, bytes: u64) -> Result<(Identity, u64), JournalError> {
    let mut blocks = AlignedBuffer::zeroed(AREAS_AT as usize);
    disk.read_at(0, &mut blocks)?;
    let mut newest: Option<(Identity, u64)> = None;
    for block in blocks.chunks_exact(BLOCK_BYTES) {
        let head = &block[..SUPERBLOCK_BYTES];
        if &head[..8] != MAGIC || record::checksum(head) != record::u32_at(head, 8) {
            continue;
        }
        if record::u32_at(head, 12) != VERSION {
            return Err(JournalError::Version(record::u32_at(head, 12)));
        }
        if record::u64_at(head, 48) != bytes {
            return Err(JournalError::Damaged("its disk has another size"));
        }
        let epoch = record::u64_at(head, 40);
        if newest.is_none_or(|(_, known)| epoch > known) {
            newest = Some((record::identity_at(head, 16), epoch));
        }
    }
    let is_empty = blocks.iter().all(|&byte| byte == 0);
    newest.ok_or(match is_empty {
        true => JournalError::Missing,
        false => JournalError::Damaged("both superblocks are bad"),
    })
}

/// The contents of an area's records, up to the first one that a crash has left incomplete, and
/// the number of these records.
fn read_records(area: &[u8], identity: Identity, epoch: u64) -> Result<(Kept, u64), JournalError> {
    let mut kept = Kept::default();
    let (mut at, mut sequence) = (0usize, 0u64);
    while let Some((head, body)) = record::at(area, at, identity) {
        if (head.epoch, head.sequence) != (epoch, sequence) {
            break;
        }
        let record =
            record::decode(body).ok_or(JournalError::Damaged("a record makes no sense"))?;
        if record.whole.is_some() != (sequence == 0) || kept.take(record).is_none() {
            return Err(JournalError::Damaged("a record does not follow the one before"));
        }
        at += head.length;
        sequence += 1;
    }
    if sequence == 0 {
        return Err(JournalError::Damaged("the first record is bad"));
    }
    let knows_better = |head: &Head| head.epoch == epoch && head.synced > sequence;
    if record::find(area, at, identity, knows_better) {
        return Err(JournalError::Damaged("a record is bad that was durable"));
    }
    Ok((kept, sequence))
}

#[cfg(test)]
#[path = "journal_test.rs"]
mod journal_test;
