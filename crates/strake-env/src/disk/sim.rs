//! A disk in memory that can lose power, tear, lose, reorder, flip, fail and hang.
//!
//! **Model.** The disk holds an image (sparse 4 KiB pages) and a log of everything that changed it:
//! writes with their bytes, discards, and syncs. Every event has a *position*; disks built with one
//! [`Sequence`] share the counter, so that "the power went off at position n" means one moment for
//! all disks of a machine. What a power cut leaves is computed from the log: writes before the
//! last completed sync are there; each later one was, independently of the others, kept, lost, or
//! torn at 512-byte sectors ([`Fate`]). That is exactly the freedom the [`Disk`] trait grants.
//!
//! **Crash images** are new, independent disks ([`SimDisk::image`], [`SimDisk::crash`]); many
//! points of one history are made cheaply by one [`PowerCuts`], which walks the log forward once.
//!
//! **Faults** ([`Faults`]) are switched on while the disk is in use.
//!
//! **One user at a time**: who opens a disk ([`SimDisk::open`]) has it alone, as with a container
//! file. Tests that look at the disk from outside need not open it.

use super::Disk;
use crate::Rng;
use crate::sync::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const PAGE_BYTES: usize = 4096;
/// A disk writes this much as a whole or not at all.
pub const SECTOR_BYTES: usize = 512;

/// The least and the most that I/Os take in a simulation ([`crate::simulation`]).
#[cfg(any(test, feature = "simulation"))]
const READ_TIMES: [Duration; 2] = [Duration::from_micros(20), Duration::from_micros(120)];
#[cfg(any(test, feature = "simulation"))]
const WRITE_TIMES: [Duration; 2] = [Duration::from_micros(20), Duration::from_micros(200)];
#[cfg(any(test, feature = "simulation"))]
const SYNC_TIMES: [Duration; 2] = [Duration::from_micros(100), Duration::from_micros(1500)];

/// The counter of positions, shared by the disks of one simulated machine.
#[derive(Clone, Debug, Default)]
pub struct Sequence(Arc<AtomicU64>);

impl Sequence {
    /// How many events there were so far.
    pub fn position(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// One thing that happened to a disk.
#[derive(Clone, Debug)]
pub enum Event {
    /// Bytes were written at an offset.
    Write {
        /// Where.
        offset: u64,
        /// What.
        bytes: Arc<[u8]>,
    },
    /// All earlier writes became durable.
    Sync,
    /// A range was discarded: it reads as zeros here.
    Discard {
        /// Which.
        range: Range<u64>,
    },
}

/// The fate of one unsynced write in a power cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It reached the medium.
    Kept,
    /// It did not.
    Lost,
    /// The sectors marked true reached the medium. Missing marks count as false.
    Torn(Vec<bool>),
}

impl Fate {
    /// One of the three by chance, for a write of `length` bytes.
    pub fn random(rng: &mut Rng, length: usize) -> Fate {
        let sectors = length.div_ceil(SECTOR_BYTES);
        match rng.below(4) {
            0 => Fate::Kept,
            1 => Fate::Lost,
            // A prefix is what a real disk mostly leaves; any subset is what it may leave.
            2 => {
                let kept = rng.index(sectors + 1);
                Fate::Torn((0..sectors).map(|sector| sector < kept).collect())
            }
            _ => Fate::Torn((0..sectors).map(|_| rng.one_in(2)).collect()),
        }
    }
}

/// Faults that can be switched on. All are off at first.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Reads that touch one of these ranges fail with EIO.
    pub read_errors: Vec<Range<u64>>,
    /// Writes that touch one of these ranges fail with EIO and change nothing.
    pub write_errors: Vec<Range<u64>>,
    /// This many more writes succeed. Then every write fails with EIO.
    pub writes_until_error: Option<u64>,
    /// The next sync fails; the disk is dead afterwards.
    pub sync_failure: bool,
    /// This many more bytes may be written to never-written pages. Then writes give `StorageFull`.
    pub host_bytes_left: Option<u64>,
    /// Every call waits until this is false again, at most `hang_limit`, then fails with
    /// `TimedOut`.
    pub hang: bool,
    /// How long a hanging call waits (real time, unless simulated); `None` is 10 s.
    pub hang_limit: Option<Duration>,
}

type Page = Arc<[u8; PAGE_BYTES]>;
type Image = BTreeMap<u64, Page>;

struct State {
    /// Its contents as readers see them.
    image: Image,
    /// Its contents when the log began; all of it durable.
    start: Image,
    log: Vec<(u64, Event)>,
    faults: Faults,
    dead: bool,
    is_open: bool,
}

impl State {
    /// Counts pages that the host does not hold yet against what it has left. Like a host that
    /// allocates on write, a page discarded must be taken again.
    fn take_from_host(&mut self, pages: Range<u64>) -> io::Result<()> {
        let Some(left) = self.faults.host_bytes_left else {
            return Ok(());
        };
        let mut missing = Vec::new();
        for page in pages {
            if !self.image.contains_key(&page) {
                missing.push(page);
            }
        }
        let needed = missing.len() as u64 * PAGE_BYTES as u64;
        if needed > left {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the host is full"));
        }
        self.faults.host_bytes_left = Some(left - needed);
        self.image.extend(missing.into_iter().map(|page| (page, zero_page())));
        Ok(())
    }
}

/// A disk in memory.
pub struct SimDisk {
    length: u64,
    sequence: Sequence,
    state: Mutex<State>,
    released: Condvar,
}

/// A simulated disk that somebody has opened. It is closed when this is dropped.
pub struct OpenSimDisk(Arc<SimDisk>);

impl Drop for OpenSimDisk {
    fn drop(&mut self) {
        self.0.state.lock().is_open = false;
        self.0.released.notify_all();
    }
}

impl SimDisk {
    /// A disk of `length` zero bytes with positions of its own.
    pub fn new(length: u64) -> Arc<SimDisk> {
        SimDisk::with_sequence(length, &Sequence::default())
    }

    /// A disk of `length` zero bytes that counts positions together with others.
    pub fn with_sequence(length: u64, sequence: &Sequence) -> Arc<SimDisk> {
        assert_eq!(length % PAGE_BYTES as u64, 0, "disks are multiples of 4 KiB");
        SimDisk::from_image(length, Image::new(), sequence)
    }

    fn from_image(length: u64, image: Image, sequence: &Sequence) -> Arc<SimDisk> {
        let state = State {
            start: image.clone(),
            image,
            log: Vec::new(),
            faults: Faults::default(),
            dead: false,
            is_open: false,
        };
        Arc::new(SimDisk {
            length,
            sequence: sequence.clone(),
            state: Mutex::new(state),
            released: Condvar::new(),
        })
    }

    /// Opens the disk. If somebody has it open, waits for at most `wait`.
    ///
    /// # Errors
    /// `ResourceBusy` if somebody still has it open.
    pub fn open(self: &Arc<SimDisk>, wait: Duration) -> io::Result<Arc<OpenSimDisk>> {
        let mut state = self.state.lock();
        while state.is_open {
            if self.released.wait_for(&mut state, wait).timed_out() && state.is_open {
                let detail = "somebody has the disk open";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, detail));
            }
        }
        state.is_open = true;
        Ok(Arc::new(OpenSimDisk(Arc::clone(self))))
    }

    /// The position reached: the number of the last event.
    pub fn position(&self) -> u64 {
        self.sequence.position()
    }

    /// The events so far, each with its position.
    pub fn events(&self) -> Vec<(u64, Event)> {
        self.state.lock().log.clone()
    }

    /// Forgets the log. The contents as they are now become durable, and images can be made from
    /// here on.
    pub fn forget_log(&self) {
        let mut state = self.state.lock();
        state.start = state.image.clone();
        state.log.clear();
    }

    /// Changes the faults.
    pub fn set_faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.state.lock().faults);
        self.released.notify_all();
    }

    /// Flips bits of one byte without an event. So a crash does not undo it.
    pub fn flip(&self, offset: u64, mask: u8) {
        assert!(offset < self.length);
        let mut state = self.state.lock();
        let State { image, start, .. } = &mut *state;
        for pages in [image, start] {
            let page = pages.entry(offset / PAGE_BYTES as u64).or_insert_with(zero_page);
            Arc::make_mut(page)[(offset % PAGE_BYTES as u64) as usize] ^= mask;
        }
    }

    /// The disk after a power cut at `position`; `fate` decides for each unsynced write, in order.
    pub fn image(&self, position: u64, fate: impl FnMut(&Event) -> Fate) -> Arc<SimDisk> {
        let mut cuts = self.power_cuts();
        cuts.advance(position);
        cuts.image(fate)
    }

    /// The disk after a power cut at `position` with fates drawn from `rng`.
    pub fn crash(&self, position: u64, rng: &mut Rng) -> Arc<SimDisk> {
        let mut cuts = self.power_cuts();
        cuts.advance(position);
        cuts.crash(rng)
    }

    /// A copy of the disk as readers see it now (what a killed process leaves).
    pub fn copy(&self) -> Arc<SimDisk> {
        let image = self.state.lock().image.clone();
        SimDisk::from_image(self.length, image, &Sequence::default())
    }

    /// The walk over this disk's log, at its start.
    pub fn power_cuts(&self) -> PowerCuts {
        let state = self.state.lock();
        PowerCuts {
            length: self.length,
            images_sequence: None,
            log: state.log.clone(),
            next: 0,
            durable: state.start.clone(),
            unsynced: 0..0,
        }
    }

    /// Waits while the disk hangs.
    fn enter(&self) -> io::Result<crate::sync::MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        while state.faults.hang {
            let limit = state.faults.hang_limit.unwrap_or(Duration::from_secs(10));
            if self.released.wait_for(&mut state, limit).timed_out() && state.faults.hang {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the disk hangs"));
            }
        }
        Ok(state)
    }

    fn range(&self, offset: u64, length: usize) -> io::Result<Range<u64>> {
        assert_eq!(offset % PAGE_BYTES as u64, 0, "offsets are multiples of 4 KiB");
        assert_eq!(length % PAGE_BYTES, 0, "lengths are multiples of 4 KiB");
        match offset.checked_add(length as u64) {
            Some(end) if end <= self.length => Ok(offset..end),
            _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the end of the disk")),
        }
    }
}

fn zero_page() -> Page {
    Arc::new([0; PAGE_BYTES])
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error())
}

fn touches(ranges: &[Range<u64>], range: &Range<u64>) -> bool {
    ranges.iter().any(|bad| bad.start < range.end && range.start < bad.end)
}

fn write_pages(image: &mut Image, offset: u64, bytes: &[u8]) {
    for (index, bytes) in bytes.chunks_exact(PAGE_BYTES).enumerate() {
        let page: [u8; PAGE_BYTES] = bytes.try_into().expect("invariant: chunks are pages");
        image.insert(offset / PAGE_BYTES as u64 + index as u64, Arc::new(page));
    }
}

fn discard_pages(image: &mut Image, range: &Range<u64>) {
    let first = range.start.div_ceil(PAGE_BYTES as u64);
    let end = range.end / PAGE_BYTES as u64;
    let gone: Vec<u64> = image.range(first..end.max(first)).map(|(&index, _)| index).collect();
    for index in gone {
        image.remove(&index);
    }
}

fn apply(image: &mut Image, event: &Event) {
    match event {
        Event::Write { offset, bytes } => write_pages(image, *offset, bytes),
        Event::Discard { range } => discard_pages(image, range),
        Event::Sync => {}
    }
}

/// Applies those sectors of a write that are marked.
fn apply_torn(image: &mut Image, offset: u64, bytes: &[u8], marks: &[bool]) {
    for (sector, chunk) in bytes.chunks_exact(SECTOR_BYTES).enumerate() {
        if marks.get(sector).copied().unwrap_or(false) {
            let at = offset + (sector * SECTOR_BYTES) as u64;
            let page = image.entry(at / PAGE_BYTES as u64).or_insert_with(zero_page);
            let within = (at % PAGE_BYTES as u64) as usize;
            Arc::make_mut(page)[within..within + SECTOR_BYTES].copy_from_slice(chunk);
        }
    }
}

impl Disk for SimDisk {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let range = self.range(offset, bytes.len())?;
        #[cfg(any(test, feature = "simulation"))]
        crate::simulation::disk_time(READ_TIMES);
        let state = self.enter()?;
        if touches(&state.faults.read_errors, &range) {
            return Err(eio());
        }
        for (index, bytes) in bytes.chunks_exact_mut(PAGE_BYTES).enumerate() {
            match state.image.get(&(offset / PAGE_BYTES as u64 + index as u64)) {
                Some(page) => bytes.copy_from_slice(&page[..]),
                None => bytes.fill(0),
            }
        }
        // Before it is filled, the buffer holds what another user of it has left.
        #[cfg(any(test, feature = "simulation"))]
        crate::simulation::disk_bytes("disk read", offset, bytes);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let range = self.range(offset, bytes.len())?;
        #[cfg(any(test, feature = "simulation"))]
        {
            crate::simulation::disk_bytes("disk write", offset, bytes);
            crate::simulation::disk_time(WRITE_TIMES);
        }
        let mut state = self.enter()?;
        if state.dead || touches(&state.faults.write_errors, &range) {
            return Err(eio());
        }
        match &mut state.faults.writes_until_error {
            Some(0) => return Err(eio()),
            Some(left) => *left -= 1,
            None => {}
        }
        state.take_from_host(range.start / PAGE_BYTES as u64..range.end / PAGE_BYTES as u64)?;
        let event = Event::Write { offset, bytes: bytes.into() };
        apply(&mut state.image, &event);
        let position = self.sequence.next();
        state.log.push((position, event));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        #[cfg(any(test, feature = "simulation"))]
        {
            crate::simulation::disk_bytes("disk sync", 0, &[]);
            crate::simulation::disk_time(SYNC_TIMES);
        }
        let mut state = self.enter()?;
        if state.faults.sync_failure {
            state.dead = true;
        }
        if state.dead {
            return Err(eio());
        }
        let position = self.sequence.next();
        state.log.push((position, Event::Sync));
        Ok(())
    }

    fn len(&self) -> u64 {
        self.length
    }

    fn reserve(&self, offset: u64, length: u64) -> io::Result<()> {
        let mut state = self.enter()?;
        let pages = offset / PAGE_BYTES as u64..(offset + length).div_ceil(PAGE_BYTES as u64);
        state.take_from_host(pages)
    }

    fn discard(&self, offset: u64, length: u64) {
        let mut state = self.state.lock();
        let range = offset..offset.saturating_add(length).min(self.length);
        if state.dead || range.is_empty() {
            return;
        }
        let pages = |image: &Image| image.len() as u64 * PAGE_BYTES as u64;
        let held = pages(&state.image);
        let event = Event::Discard { range };
        apply(&mut state.image, &event);
        let freed = held - pages(&state.image);
        if let Some(left) = &mut state.faults.host_bytes_left {
            *left += freed;
        }
        let position = self.sequence.next();
        state.log.push((position, event));
    }
}

impl Disk for OpenSimDisk {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn reserve(&self, offset: u64, length: u64) -> io::Result<()> {
        self.0.reserve(offset, length)
    }

    fn discard(&self, offset: u64, length: u64) {
        self.0.discard(offset, length);
    }
}

/// A forward walk over a disk's log that makes the image after each position.
pub struct PowerCuts {
    length: u64,
    /// Given to images; each has its own if there is none.
    images_sequence: Option<Sequence>,
    log: Vec<(u64, Event)>,
    /// The first event not yet passed.
    next: usize,
    /// Everything up to the last sync passed.
    durable: Image,
    /// Events after that sync, up to `next`.
    unsynced: Range<usize>,
}

impl PowerCuts {
    /// Lets images count their positions in `sequence`, for machines that run on after a crash.
    #[must_use]
    pub fn counting_in(mut self, sequence: &Sequence) -> PowerCuts {
        self.images_sequence = Some(sequence.clone());
        self
    }

    /// A walk over a log of a disk that was zero when the log began.
    pub fn of_log(length: u64, log: Vec<(u64, Event)>) -> PowerCuts {
        PowerCuts {
            length,
            images_sequence: None,
            log,
            next: 0,
            durable: Image::new(),
            unsynced: 0..0,
        }
    }

    /// How many events the last sync passed has made durable.
    pub fn synced(&self) -> usize {
        self.unsynced.start
    }

    /// Goes forward to `position`; never back.
    pub fn advance(&mut self, position: u64) {
        while let Some((at, event)) = self.log.get(self.next) {
            if *at > position {
                break;
            }
            self.next += 1;
            self.unsynced.end = self.next;
            if matches!(event, Event::Sync) {
                for (_, event) in &self.log[self.unsynced.clone()] {
                    apply(&mut self.durable, event);
                }
                self.unsynced = self.next..self.next;
            }
        }
    }

    /// The writes that a cut here may lose.
    pub fn unsynced(&self) -> impl Iterator<Item = &Event> {
        self.log[self.unsynced.clone()].iter().map(|(_, event)| event)
    }

    /// The disk after a power cut here; `fate` decides for each unsynced event, in order.
    pub fn image(&self, fate: impl FnMut(&Event) -> Fate) -> Arc<SimDisk> {
        self.image_in(&self.images_sequence.clone().unwrap_or_default(), fate)
    }

    /// The same, counting its positions in `sequence`.
    pub fn image_in(
        &self,
        sequence: &Sequence,
        mut fate: impl FnMut(&Event) -> Fate,
    ) -> Arc<SimDisk> {
        let mut image = self.durable.clone();
        for event in self.unsynced() {
            match (fate(event), event) {
                (Fate::Lost, _) => {}
                (Fate::Torn(marks), Event::Write { offset, bytes }) => {
                    apply_torn(&mut image, *offset, bytes, &marks);
                }
                (Fate::Torn(_) | Fate::Kept, _) => apply(&mut image, event),
            }
        }
        SimDisk::from_image(self.length, image, sequence)
    }

    /// The disk after a power cut here with fates drawn from `rng`.
    pub fn crash(&self, rng: &mut Rng) -> Arc<SimDisk> {
        self.image(|event| match event {
            Event::Write { bytes, .. } => Fate::random(rng, bytes.len()),
            _ => Fate::random(rng, SECTOR_BYTES),
        })
    }
}

#[cfg(test)]
#[path = "sim_test.rs"]
mod sim_test;
