//! The base's storage: redb's file inside a container's chunks, with a checksum per 4 KiB unit.
//!
//! redb verifies its own checksums only when it repairs, so it would believe a flipped bit.
//! Therefore each chunk begins with *table units* and goes on with *data units*. The file's bytes
//! lie in the data units of the region's chunks, in order:
//!
//! ```text
//! chunk of n units:  t = ceil(n / 1025) table units, then n − t data units
//! table unit:        1024 × CRC32C (4, little-endian) of the chunk's data units in order;
//!                    0 means never written (a CRC of 0 is stored as 1)
//! ```
//!
//! **Crash safety.** redb writes pages only to space that no durable commit uses, except unit 0,
//! its header. A table unit is rewritten in place, but only the entries of such pages differ. The
//! disk tears at sectors, so the entries of live pages are the same before and after. Unit 0 has no
//! entry: redb's header carries its own checksums and lies within one sector.
//!
//! **Write-back.** redb writes page by page in no order. Units collect here. They go to the disk in
//! ascending runs, several at a time, when redb syncs or when [`DIRTY_UNITS_MAX`] is reached.
//!
//! The scrub reads units past all caches; see `pages/verify.rs`.

mod verify;

use super::ahead::{Ahead, UNIT_BYTES};
use crate::container::Geometry;
use crate::region::KvRegion;
use crate::superblock::{KvSpace, u32_at};
use redb::StorageBackend;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use strake_env::sync::{RwLock, WatchedMutex};
use strake_env::thread::undisturbed;
use strake_env::{AlignedBuffer, Disk};
use strake_proto::ErrorKind;

pub use verify::Verified;

const ENTRIES_PER_TABLE: u64 = UNIT_BYTES / 4;
/// At most this many changed units wait to be written: 4 MiB.
const DIRTY_UNITS_MAX: usize = 1024;
/// A single write takes at most this many units.
const RUN_UNITS_MAX: usize = 256;

/// How units lie in a chunk.
#[derive(Clone, Copy, Debug)]
struct Layout {
    table_units: u64,
    data_units: u64,
}

impl Layout {
    fn of(chunk_bytes: u64) -> Layout {
        let units = chunk_bytes / UNIT_BYTES;
        let table_units = units.div_ceil(ENTRIES_PER_TABLE + 1);
        Layout { table_units, data_units: units - table_units }
    }
}

/// Makes a chunk read as never written, although data may have left something in it.
pub(crate) fn clear_chunk(disk: &dyn Disk, geometry: &Geometry, chunk: u32) -> io::Result<()> {
    let tables = Layout::of(geometry.chunk_bytes).table_units * UNIT_BYTES;
    disk.write_at(geometry.chunk_range(chunk).start, &AlignedBuffer::zeroed(tables as usize))
}

/// The bytes of a file that a KV can hold in `chunk_count` chunks.
pub(crate) fn capacity_bytes(geometry: &Geometry, chunk_count: u64) -> u64 {
    Layout::of(geometry.chunk_bytes).data_units * UNIT_BYTES * chunk_count
}

strake_env::lock_names! {
    /// Held across the writes of units.
    Writing = "pages of a key-value store";
}

/// redb's file.
pub(super) struct Pages {
    region: KvRegion,
    layout: Layout,
    state: RwLock<State>,
    ahead: Ahead,
    /// Set when redb's state can no longer be trusted, so that its writes must be refused.
    refused: AtomicBool,
    /// A thread holds this while it changes or writes back units, so no unit is dropped from
    /// `dirty` unwritten. It is taken before `state`.
    writing: WatchedMutex<Writing>,
}

struct State {
    space: KvSpace,
    /// Units not yet on the disk.
    dirty: BTreeMap<u64, Box<[u8]>>,
    /// Table units read so far, by their index over all chunks.
    tables: BTreeMap<u64, Table>,
    /// Unit 0 as redb last read or wrote it. Nothing else can tell its contents.
    header: Option<Box<[u8]>>,
}

struct Table {
    entries: Box<[u8]>,
    dirty: bool,
}

fn corrupt(unit: u64) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("unit {unit} of a key-value store does not match its checksum"),
    )
}

fn checksum(unit: &[u8]) -> u32 {
    crc32c::crc32c(unit).max(1)
}

impl Pages {
    pub(super) fn open(region: KvRegion) -> Pages {
        let layout = Layout::of(region.container.geometry().chunk_bytes);
        let space = region.space();
        let state = State { space, dirty: BTreeMap::new(), tables: BTreeMap::new(), header: None };
        let (state, ahead) = (RwLock::new(state), Ahead::new());
        let refused = AtomicBool::new(false);
        Pages { region, layout, state, ahead, refused, writing: WatchedMutex::default() }
    }

    /// Ends all writing.
    pub(super) fn refuse_writes(&self) {
        self.refused.store(true, Ordering::Release);
    }

    fn require_trust(&self) -> io::Result<()> {
        match self.refused.load(Ordering::Acquire) {
            true => Err(io::Error::other("the key-value store is not trusted any more")),
            false => Ok(()),
        }
    }

    fn disk(&self) -> &dyn Disk {
        &**self.region.container.disk()
    }

    /// The place of a unit, and how many of the file's units lie there in a row, this one included.
    fn place(&self, space: &KvSpace, unit: u64) -> (u64, u64) {
        let chunk = space.chunks[(unit / self.layout.data_units) as usize];
        let within = unit % self.layout.data_units;
        let start = self.region.container.geometry().chunk_range(chunk).start;
        let offset = start + (self.layout.table_units + within) * UNIT_BYTES;
        (offset, self.layout.data_units - within)
    }

    /// The table that covers a unit, and the byte of its entry there.
    fn table_of(&self, unit: u64) -> (u64, usize) {
        let within = unit % self.layout.data_units;
        let table =
            unit / self.layout.data_units * self.layout.table_units + within / ENTRIES_PER_TABLE;
        (table, (within % ENTRIES_PER_TABLE * 4) as usize)
    }

    fn table_offset(&self, space: &KvSpace, table: u64) -> u64 {
        let chunk = space.chunks[(table / self.layout.table_units) as usize];
        self.region.container.geometry().chunk_range(chunk).start
            + table % self.layout.table_units * UNIT_BYTES
    }

    /// Makes sure that the tables of these units are in memory.
    fn load_tables(&self, first: u64, end: u64) -> io::Result<()> {
        let mut unit = first;
        while unit < end {
            let (table, entry) = self.table_of(unit);
            let loaded = self.state.read().tables.contains_key(&table);
            if !loaded {
                let mut buffer = AlignedBuffer::zeroed(UNIT_BYTES as usize);
                let offset = self.table_offset(&self.state.read().space, table);
                self.disk().read_at(offset, &mut buffer)?;
                let entries: Box<[u8]> = buffer[..].into();
                let fresh = Table { entries, dirty: false };
                self.state.write().tables.entry(table).or_insert(fresh);
            }
            let left_in_table = ENTRIES_PER_TABLE - entry as u64 / 4;
            let left_in_chunk = self.layout.data_units - unit % self.layout.data_units;
            unit += left_in_table.min(left_in_chunk);
        }
        Ok(())
    }

    fn check_range(&self, offset: u64, length: usize) -> io::Result<(u64, u64)> {
        let end = offset.checked_add(length as u64);
        match end {
            Some(end) if end <= self.state.read().space.length => {
                Ok((offset / UNIT_BYTES, end.div_ceil(UNIT_BYTES)))
            }
            _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the store's end")),
        }
    }

    /// Reads whole units from memory or disk, and verifies them.
    fn read_units(&self, first: u64, bytes: &mut [u8]) -> io::Result<()> {
        let count = bytes.len() as u64 / UNIT_BYTES;
        let mut done = 0;
        while done < count {
            let unit = first + done;
            let at = (done * UNIT_BYTES) as usize;
            // The ticket is taken before the look at `dirty`: see `Ahead`.
            let (ticket, wanted) = self.ahead.ticket();
            let (offset, together) = {
                let state = self.state.read();
                if let Some(dirty) = state.dirty.get(&unit) {
                    bytes[at..at + UNIT_BYTES as usize].copy_from_slice(dirty);
                    done += 1;
                    continue;
                }
                let (offset, together) = self.place(&state.space, unit);
                let next_dirty = state.dirty.range(unit..).next().map_or(u64::MAX, |(&u, _)| u);
                let end = state.space.length.div_ceil(UNIT_BYTES);
                (offset, together.min(next_dirty - unit).min(end - unit))
            };
            let run = together.min(count - done);
            let run_bytes = &mut bytes[at..at + (run * UNIT_BYTES) as usize];
            if !(self.ahead.copy(unit, run_bytes) && self.verify(unit, run_bytes).is_ok()) {
                self.read_run(unit, offset, (ticket, wanted.min(together)), run_bytes)?;
            }
            done += run;
        }
        Ok(())
    }

    /// Reads units that are not dirty from the disk and verifies them. Reads up to `wanted` units.
    fn read_run(
        &self,
        first: u64,
        offset: u64,
        (ticket, wanted): (u64, u64),
        out: &mut [u8],
    ) -> io::Result<()> {
        let length = (wanted * UNIT_BYTES) as usize;
        if length > out.len() {
            let mut buffer = self.ahead.buffer(length);
            // If another unit of the run cannot be read, this one may still be readable.
            if self.disk().read_at(offset, &mut buffer).is_ok() {
                out.copy_from_slice(&buffer[..out.len()]);
                if self.verify(first, out).is_ok() {
                    self.ahead.fill(ticket, first, buffer);
                    return Ok(());
                }
            }
        }
        self.disk().read_at(offset, out)?;
        self.verify(first, out)
    }

    fn verify(&self, first: u64, bytes: &[u8]) -> io::Result<()> {
        let state = self.state.read();
        for (unit, bytes) in (first..).zip(bytes.chunks_exact(UNIT_BYTES as usize)) {
            let (table, entry) = self.table_of(unit);
            let table = state.tables.get(&table).expect("invariant: tables were loaded");
            if unit != 0 && u32_at(&table.entries, entry) != checksum(bytes) {
                return Err(corrupt(unit));
            }
        }
        Ok(())
    }

    /// Writes all dirty units and tables. The caller holds `writing`.
    fn write_back(&self) -> io::Result<()> {
        // Units stay readable in `dirty` until they are on the disk.
        let mut parts = Vec::new();
        {
            let state = self.state.read();
            let units: Vec<u64> = state.dirty.keys().copied().collect();
            let mut rest = &units[..];
            while let Some(&first) = rest.first() {
                let (offset, together) = self.place(&state.space, first);
                let limit = (together as usize).min(RUN_UNITS_MAX);
                let run = (first..).zip(rest).take(limit).take_while(|(a, b)| a == *b).count();
                let mut buffer = AlignedBuffer::zeroed(run * UNIT_BYTES as usize);
                for (unit, bytes) in rest[..run].iter().zip(buffer.chunks_exact_mut(4096)) {
                    bytes.copy_from_slice(&state.dirty[unit]);
                }
                parts.push((offset, buffer));
                rest = &rest[run..];
            }
            for (&index, table) in state.tables.iter().filter(|(_, table)| table.dirty) {
                let offset = self.table_offset(&state.space, index);
                parts.push((offset, AlignedBuffer::from_slice(&table.entries)));
            }
        }
        let parts: Vec<(u64, &[u8])> = parts.iter().map(|(at, bytes)| (*at, &**bytes)).collect();
        self.disk().write_many_at(&parts)?;
        let mut state = self.state.write();
        state.dirty.clear();
        state.tables.values_mut().for_each(|table| table.dirty = false);
        Ok(())
    }

    /// True if a unit was ever written. The tables must be loaded.
    fn is_written(&self, unit: u64) -> bool {
        let (table, entry) = self.table_of(unit);
        let state = self.state.read();
        state.tables.get(&table).is_some_and(|table| u32_at(&table.entries, entry) != 0)
    }

    fn grow_or_shrink(&self, length: u64) -> io::Result<()> {
        let KvRegion { container, role, is_draft } = &self.region;
        let grown = container.set_kv_length(*role, *is_draft, length);
        grown.map_err(|error| match error.kind() {
            ErrorKind::NoSpace => io::Error::new(io::ErrorKind::StorageFull, error),
            _ => io::Error::other(error),
        })?;
        self.state.write().space = self.region.space();
        Ok(())
    }
}

/// The handle that redb gets.
#[derive(Debug)]
pub(super) struct File(pub(super) Arc<Pages>);

/// redb holds its own locks when it calls us. A simulation does not see threads that wait for them.
impl StorageBackend for File {
    fn len(&self) -> io::Result<u64> {
        undisturbed(|| self.0.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        undisturbed(|| self.0.read(offset, out))
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        undisturbed(|| self.0.set_len(length))
    }

    fn sync_data(&self) -> io::Result<()> {
        undisturbed(|| self.0.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        undisturbed(|| self.0.write(offset, data))
    }
}

/// The calls that redb makes on its file.
impl Pages {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.read().space.length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (first, end) = self.check_range(offset, out.len())?;
        self.load_tables(first, end)?;
        let mut buffer = AlignedBuffer::zeroed(((end - first) * UNIT_BYTES) as usize);
        self.read_units(first, &mut buffer)?;
        if first == 0 {
            let mut state = self.state.write();
            state.header.get_or_insert_with(|| buffer[..UNIT_BYTES as usize].into());
        }
        let skip = (offset - first * UNIT_BYTES) as usize;
        out.copy_from_slice(&buffer[skip..skip + out.len()]);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.require_trust()?;
        let _writing = self.writing.lock();
        self.write_back()?;
        let old = self.state.read().space.length;
        if length < old {
            // If the file grows again, the units beyond its end must read as never written.
            let (first, end) = (length.div_ceil(UNIT_BYTES), old.div_ceil(UNIT_BYTES));
            self.load_tables(first, end)?;
            let mut state = self.state.write();
            for unit in first..end {
                let (table, entry) = self.table_of(unit);
                let table = state.tables.get_mut(&table).expect("invariant: tables were loaded");
                table.entries[entry..entry + 4].fill(0);
                table.dirty = true;
            }
        }
        self.grow_or_shrink(length)?;
        self.ahead.clear();
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.require_trust()?;
        {
            let _writing = self.writing.lock();
            self.write_back()?;
        }
        self.disk().sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.require_trust()?;
        let _writing = self.writing.lock();
        let (first, end) = self.check_range(offset, data.len())?;
        self.load_tables(first, end)?;
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let unit = at / UNIT_BYTES;
            let within = (at % UNIT_BYTES) as usize;
            let length = rest.len().min(UNIT_BYTES as usize - within);
            let bytes: Box<[u8]> = if length == UNIT_BYTES as usize {
                rest[..length].into()
            } else {
                let mut whole = AlignedBuffer::zeroed(UNIT_BYTES as usize);
                if self.is_written(unit) {
                    self.read_units(unit, &mut whole)?;
                }
                whole[within..within + length].copy_from_slice(&rest[..length]);
                whole[..].into()
            };
            let mut state = self.state.write();
            let (table, entry) = self.table_of(unit);
            let table = state.tables.get_mut(&table).expect("invariant: tables were loaded");
            table.entries[entry..entry + 4].copy_from_slice(&checksum(&bytes).to_le_bytes());
            table.dirty = true;
            if unit == 0 {
                state.header = Some(bytes.clone());
            }
            state.dirty.insert(unit, bytes);
            drop(state);
            self.ahead.forget(unit);
            at += length as u64;
            rest = &rest[length..];
        }
        if self.state.read().dirty.len() >= DIRTY_UNITS_MAX {
            self.write_back()?;
        }
        Ok(())
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Pages({:?})", self.region.role)
    }
}
