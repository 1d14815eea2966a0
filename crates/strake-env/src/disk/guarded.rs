//! A disk that answers within a limit, whatever the one below does.
//!
//! A disk that hangs holds the thread that uses it inside the kernel, where nothing can end it. So
//! the I/O is done by threads of this disk's own, in buffers of their own, and callers wait for
//! them no longer than the limit. The first I/O that takes longer makes the disk *dead*: it and
//! every other caller get `TimedOut`, at once from then on. The stuck threads, and the file they
//! hold open, go when the kernel lets go of them.
//!
//! [`GuardedDisk::retire`] makes it dead by decision: the disk was found to be no longer the one
//! that was opened.
//!
//! **A disk that other machines reach, too** is used under a [`Permit`], which somebody prolongs as
//! long as no other machine may use it. An I/O that is to begin after the permit's end makes the
//! disk dead. [`Permit::is_idle`] says when no change is under way any more.
//!
//! The price is one change of threads per I/O, and one copy of what is read, made in pieces while
//! the next one is under way. What [`Disk::write_both_at`] writes is not copied: the disk below
//! takes it from where it is ([`Disk::write_raw`]), and if it hangs and the memory changes
//! meanwhile, arbitrary bytes reach the dead disk, where nothing durable names them. All other
//! writes are copied: a log writes its last block again with what was acknowledged before. With a
//! limit of zero there is no price: I/O is done by the caller, and a hang is the caller's.

use super::ring::{Lanes, PIECE_BYTES};
use super::{ALIGNMENT, Disk, RawBytes};
use crate::AlignedBuffer;
use crate::clock::Clock;
use crate::sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// A disk has at most this many threads. With more I/Os at a time, the others queue.
const THREADS_MAX: usize = 32;
/// At most this many threads stay when there is nothing to do.
const IDLE_THREADS_MAX: usize = 8;
/// A caller with many writes has at most this many of them under way.
const TOGETHER_MAX: usize = 8;
/// A waiting caller looks this often whether the disk died of somebody else's I/O.
const LOOK: Duration = Duration::from_millis(250);
/// At most this much memory is kept for the next I/Os.
const SPARE_BYTES_MAX: usize = 16 << 20;

enum Operation {
    Read(u64),
    Write { offset: u64, sync: bool },
    WriteRaw { offset: u64, parts: [RawBytes; 2] },
    Sync,
    Discard(u64, u64),
    Reserve(u64, u64),
}

/// One I/O: what is to be done, with how many bytes of `buffer`, and its result.
struct Job {
    operation: Operation,
    length: usize,
    state: Mutex<JobState>,
    ended: Condvar,
}

#[derive(Default)]
struct JobState {
    buffer: Option<AlignedBuffer>,
    result: Option<io::Result<()>>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Arc<Job>>,
    threads: usize,
    idle: usize,
    closed: bool,
    /// Buffers whose length is a power of two.
    spare: Vec<AlignedBuffer>,
    spare_bytes: usize,
}

/// Until when a disk may be used.
pub struct Permit {
    clock: Arc<dyn Clock>,
    /// Nanoseconds of the clock.
    until: AtomicU64,
    is_revoked: AtomicBool,
    /// I/Os under it that change the disk and are under way.
    changing: AtomicUsize,
}

impl Permit {
    /// A permit that is over.
    pub fn new(clock: Arc<dyn Clock>) -> Permit {
        let (until, is_revoked) = (AtomicU64::new(0), AtomicBool::new(false));
        Permit { clock, until, is_revoked, changing: AtomicUsize::new(0) }
    }

    /// The permit lasts until this time of its clock, or longer.
    pub fn prolong(&self, until: Duration) {
        let nanos = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.until.fetch_max(nanos, Ordering::AcqRel);
    }

    /// Ends the permit for good.
    pub fn revoke(&self) {
        self.is_revoked.store(true, Ordering::SeqCst);
    }

    /// True if no I/O under it that changes the disk is under way. After [`Permit::revoke`] it
    /// stays true.
    pub fn is_idle(&self) -> bool {
        self.changing.load(Ordering::SeqCst) == 0
    }

    /// Whether it lasts.
    pub fn is_valid(&self) -> bool {
        !self.is_revoked.load(Ordering::SeqCst)
            && self.clock.monotonic().as_nanos() < u128::from(self.until.load(Ordering::Acquire))
    }
}

struct Inner {
    disk: Arc<dyn Disk>,
    permit: Option<Arc<Permit>>,
    queue: Mutex<Queue>,
    filled: Condvar,
    lanes: Lanes,
    is_dead: AtomicBool,
    /// The reason why the disk is dead.
    cause: Mutex<Option<(io::ErrorKind, String)>>,
}

/// See the module.
pub struct GuardedDisk {
    inner: Arc<Inner>,
    limit: Duration,
}

impl GuardedDisk {
    /// Guards `disk`: no I/O takes longer than `limit`. Zero means no limit.
    pub fn new(disk: Arc<dyn Disk>, limit: Duration) -> GuardedDisk {
        GuardedDisk::under(None, disk, limit)
    }

    /// As [`GuardedDisk::new`], for as long as `permit` lasts, if there is one.
    pub fn under(permit: Option<Arc<Permit>>, disk: Arc<dyn Disk>, limit: Duration) -> GuardedDisk {
        let inner = Inner {
            disk,
            permit,
            queue: Mutex::default(),
            filled: Condvar::new(),
            lanes: Lanes::default(),
            is_dead: AtomicBool::new(false),
            cause: Mutex::new(None),
        };
        GuardedDisk { inner: Arc::new(inner), limit }
    }

    /// Refuses every I/O from now on. It does not wait for those under way.
    pub fn retire(&self, reason: &str) {
        self.inner.die(io::ErrorKind::NotConnected, reason.to_owned());
    }

    /// The reason why the disk is not used any more; `None` while it is used.
    pub fn cause_of_death(&self) -> Option<String> {
        self.inner.cause.lock().as_ref().map(|(_, text)| text.clone())
    }

    /// Does one I/O on a thread of the disk. `fill` puts the data to be written into the buffer,
    /// and `take` gets the data that was read.
    fn run(
        &self,
        operation: Operation,
        length: usize,
        fill: impl FnOnce(&mut [u8]),
        take: impl FnOnce(&[u8]),
    ) -> io::Result<()> {
        let job = self.begin(operation, length, fill)?;
        self.end(&job, take)
    }

    /// Hands one I/O to the threads of the disk.
    fn begin(
        &self,
        operation: Operation,
        length: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> io::Result<Arc<Job>> {
        self.inner.check()?;
        let mut buffer = self.inner.buffer(length);
        fill(&mut buffer[..length]);
        let state = Mutex::new(JobState { buffer: Some(buffer), result: None });
        let job = Arc::new(Job { operation, length, state, ended: Condvar::new() });
        Inner::submit(&self.inner, Arc::clone(&job))?;
        Ok(job)
    }

    /// Waits for an I/O.
    fn end(&self, job: &Job, take: impl FnOnce(&[u8])) -> io::Result<()> {
        let mut waited = Duration::ZERO;
        let mut state = job.state.lock();
        while state.result.is_none() {
            let step = LOOK.min(self.limit.saturating_sub(waited));
            if step.is_zero() {
                drop(state);
                let text = format!("the disk does not answer within {:?}", self.limit);
                self.inner.die(io::ErrorKind::TimedOut, text);
                return self.inner.check();
            }
            if job.ended.wait_for(&mut state, step).timed_out() && state.result.is_none() {
                waited += step;
                self.inner.check()?;
            }
        }
        let result = state.result.take().expect("invariant: looked at above");
        if let Some(buffer) = state.buffer.take() {
            if result.is_ok() {
                take(&buffer[..job.length]);
            }
            self.inner.keep(buffer);
        }
        result
    }

    /// Reads on this thread through a lane, or by the disk's threads if there is no lane.
    fn read(&self, mut parts: [(u64, &mut [u8]); 2]) -> io::Result<()> {
        if let Some(file) = self.inner.disk.descriptor() {
            self.inner.check()?;
            for (offset, bytes) in &parts {
                self.inner.disk.check_range(*offset, bytes.len())?;
            }
            let mut waited = Duration::ZERO;
            let mut give_up = || {
                waited += LOOK;
                if waited >= self.limit {
                    let text = format!("the disk does not answer within {:?}", self.limit);
                    self.inner.die(io::ErrorKind::TimedOut, text);
                }
                self.inner.check()
            };
            let step = LOOK.min(self.limit);
            let read = self.inner.lanes.read(file, &mut parts, step, &mut give_up);
            if let Some(result) = read {
                return result;
            }
        }
        for (mut at, bytes) in parts {
            for piece in bytes.chunks_mut(PIECE_BYTES) {
                let length = piece.len();
                self.run(Operation::Read(at), length, |_| {}, |read| piece.copy_from_slice(read))?;
                at += length as u64;
            }
        }
        Ok(())
    }

    /// Writes a copy. The copy stays, whatever the caller does after the limit.
    fn write(&self, offset: u64, [first, second]: [&[u8]; 2], sync: bool) -> io::Result<()> {
        let fill = |buffer: &mut [u8]| {
            let (front, back) = buffer.split_at_mut(first.len());
            front.copy_from_slice(first);
            back.copy_from_slice(second);
        };
        let length = first.len() + second.len();
        self.run(Operation::Write { offset, sync }, length, fill, |_| {})
    }

    /// Whether the calling thread does the I/O itself.
    fn is_direct(&self) -> bool {
        self.limit.is_zero()
    }
}

impl Inner {
    fn die(&self, kind: io::ErrorKind, text: String) {
        self.cause.lock().get_or_insert((kind, text));
        self.is_dead.store(true, Ordering::Release);
    }

    /// Does an I/O that changes the disk, if the disk may be used.
    fn change(&self, io: impl FnOnce(&dyn Disk) -> io::Result<()>) -> io::Result<()> {
        let Some(permit) = &self.permit else {
            return self.check().and_then(|()| io(&*self.disk));
        };
        // It counts before the permit is looked at: a permit that is revoked and idle stays idle.
        permit.changing.fetch_add(1, Ordering::SeqCst);
        let result = self.check().and_then(|()| io(&*self.disk));
        permit.changing.fetch_sub(1, Ordering::SeqCst);
        result
    }

    fn check(&self) -> io::Result<()> {
        if self.permit.as_ref().is_some_and(|permit| !permit.is_valid()) {
            let text = "the reservation of the disk was not renewed in time".to_owned();
            self.die(io::ErrorKind::NotConnected, text);
        }
        if !self.is_dead.load(Ordering::Acquire) {
            return Ok(());
        }
        let cause = self.cause.lock().clone();
        let (kind, text) = cause.expect("invariant: the cause is noted before the death");
        Err(io::Error::new(kind, text))
    }

    fn buffer(&self, length: usize) -> AlignedBuffer {
        let wanted = if length == 0 { 0 } else { length.next_power_of_two() };
        let mut queue = self.queue.lock();
        // The one that was used last: its bytes may still be in the processor's cache.
        if let Some(at) = queue.spare.iter().rposition(|buffer| buffer.len() == wanted) {
            queue.spare_bytes -= wanted;
            return queue.spare.remove(at);
        }
        drop(queue);
        AlignedBuffer::zeroed(wanted)
    }

    fn keep(&self, buffer: AlignedBuffer) {
        let mut queue = self.queue.lock();
        if !buffer.is_empty() && queue.spare_bytes + buffer.len() <= SPARE_BYTES_MAX {
            queue.spare_bytes += buffer.len();
            queue.spare.push(buffer);
        }
    }

    fn submit(inner: &Arc<Inner>, job: Arc<Job>) -> io::Result<()> {
        let mut queue = inner.queue.lock();
        queue.jobs.push_back(job);
        if queue.idle >= queue.jobs.len() || queue.threads >= THREADS_MAX {
            drop(queue);
            inner.filled.notify_one();
            return Ok(());
        }
        queue.threads += 1;
        drop(queue);
        let thread_shared = Arc::clone(inner);
        let spawned = crate::thread::Builder::new()
            .name("disk".to_owned())
            .spawn(move || thread_shared.serve())
            .map(drop);
        spawned.inspect_err(|_| inner.queue.lock().threads -= 1)
    }

    fn serve(&self) {
        loop {
            let job = {
                let mut queue = self.queue.lock();
                loop {
                    if let Some(job) = queue.jobs.pop_front() {
                        break job;
                    }
                    if queue.closed || queue.idle >= IDLE_THREADS_MAX {
                        queue.threads -= 1;
                        return;
                    }
                    queue.idle += 1;
                    self.filled.wait(&mut queue);
                    queue.idle -= 1;
                }
            };
            let buffer = job.state.lock().buffer.take();
            let mut buffer = buffer.expect("invariant: a job comes with its buffer");
            let result = self.perform(&job, &mut buffer[..job.length]);
            let mut state = job.state.lock();
            state.buffer = Some(buffer);
            state.result = Some(result);
            job.ended.notify_one();
        }
    }

    fn perform(&self, job: &Job, bytes: &mut [u8]) -> io::Result<()> {
        if let Operation::Read(offset) = job.operation {
            self.check()?;
            return self.disk.read_at(offset, bytes);
        }
        self.change(|disk| match job.operation {
            Operation::Read(_) => unreachable!("invariant: handled above"),
            Operation::Write { offset, sync: false } => disk.write_at(offset, bytes),
            Operation::Write { offset, sync: true } => disk.write_and_sync(offset, bytes),
            Operation::WriteRaw { offset, parts } => disk.write_raw(offset, parts),
            Operation::Sync => disk.sync(),
            Operation::Discard(offset, length) => {
                disk.discard(offset, length);
                Ok(())
            }
            Operation::Reserve(offset, length) => disk.reserve(offset, length),
        })
    }
}

impl Disk for GuardedDisk {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        if self.is_direct() {
            self.inner.check()?;
            return self.inner.disk.read_at(offset, bytes);
        }
        self.read([(offset, bytes), (offset, &mut [])])
    }

    fn read_two_at(&self, parts: [(u64, &mut [u8]); 2]) -> io::Result<()> {
        if self.is_direct() {
            self.inner.check()?;
            return self.inner.disk.read_two_at(parts);
        }
        self.read(parts)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.is_direct() {
            return self.inner.change(|disk| disk.write_at(offset, bytes));
        }
        self.write(offset, [bytes, &[]], false)
    }

    fn write_both_at(&self, offset: u64, first: &[u8], second: &[u8]) -> io::Result<()> {
        if self.is_direct() {
            return self.inner.change(|disk| disk.write_both_at(offset, first, second));
        }
        let aligned = |part: &[u8]| (part.as_ptr() as usize).is_multiple_of(ALIGNMENT);
        let parts = [first, second];
        if self.inner.disk.has_raw_writes() && parts.iter().all(|p| p.is_empty() || aligned(p)) {
            let parts = parts.map(RawBytes::of);
            return self.run(Operation::WriteRaw { offset, parts }, 0, |_| {}, |_| {});
        }
        self.write(offset, [first, second], false)
    }

    fn write_many_at(&self, parts: &[(u64, &[u8])]) -> io::Result<()> {
        if self.is_direct() {
            return self.inner.change(|disk| disk.write_many_at(parts));
        }
        let (mut under_way, mut outcome) = (VecDeque::<Arc<Job>>::new(), Ok(()));
        for (offset, bytes) in parts {
            if under_way.len() == TOGETHER_MAX
                && let Some(first) = under_way.pop_front()
            {
                outcome = outcome.and(self.end(&first, |_| {}));
            }
            if outcome.is_err() {
                break;
            }
            let operation = Operation::Write { offset: *offset, sync: false };
            match self.begin(operation, bytes.len(), |buffer| buffer.copy_from_slice(bytes)) {
                Ok(job) => under_way.push_back(job),
                Err(error) => outcome = Err(error),
            }
        }
        // Also after an error: a write that is late would undo what the caller writes next.
        for job in under_way {
            outcome = outcome.and(self.end(&job, |_| {}));
        }
        outcome
    }

    fn write_and_sync(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.is_direct() {
            return self.inner.change(|disk| disk.write_and_sync(offset, bytes));
        }
        self.write(offset, [bytes, &[]], true)
    }

    fn sync(&self) -> io::Result<()> {
        if self.is_direct() {
            return self.inner.change(|disk| disk.sync());
        }
        self.run(Operation::Sync, 0, |_| {}, |_| {})
    }

    fn len(&self) -> u64 {
        self.inner.disk.len()
    }

    fn discard(&self, offset: u64, length: u64) {
        if self.is_direct() {
            let discard = |disk: &dyn Disk| {
                disk.discard(offset, length);
                Ok(())
            };
            let _ = self.inner.change(discard);
            return;
        }
        // A hint; what becomes of a disk that hangs over it, the next I/O tells.
        let _ = self.run(Operation::Discard(offset, length), 0, |_| {}, |_| {});
    }

    fn is_hosted(&self) -> bool {
        self.inner.disk.is_hosted()
    }

    fn reserve(&self, offset: u64, length: u64) -> io::Result<()> {
        if self.is_direct() {
            return self.inner.change(|disk| disk.reserve(offset, length));
        }
        self.run(Operation::Reserve(offset, length), 0, |_| {}, |_| {})
    }
}

impl Drop for GuardedDisk {
    /// Ends the threads that are not stuck, without waiting for them.
    fn drop(&mut self) {
        self.inner.queue.lock().closed = true;
        self.inner.filled.notify_all();
    }
}

#[cfg(test)]
#[path = "guarded_test.rs"]
mod guarded_test;
