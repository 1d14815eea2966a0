//! Reads that the calling thread can give up, through io_uring: neither a change of threads nor a
//! thread that is stuck in the kernel.
//!
//! A [`Lane`] is a ring with memory of its own, in use by one caller at a time. The kernel reads
//! into memory of the lane. So a caller that has waited long enough can leave: the lane is then
//! leaked as a whole, with all memory that the disk may yet write to. Only memory that the caller
//! has *lent* ([`crate::lent`]) is read into where it is. It is kept if the lane is leaked.
//!
//! Where the system has no io_uring (old, or forbidden to this process) there are no lanes, and
//! the guard's threads serve.
#![allow(unsafe_code, reason = "the kernel is told where to put bytes; this is the one place")]

use crate::sync::Mutex;
use crate::{AlignedBuffer, lent};
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// This many reads of one lane may be under way. Each has its place in the lane's memory.
const DEPTH: usize = 4;
/// A longer read is made in pieces of this size. One piece is copied while the next ones are on
/// their way, and it still is in the processor's cache when it is looked at.
pub(super) const PIECE_BYTES: usize = 512 << 10;
/// Reads into lent memory are made in larger pieces, because nothing is copied.
const LENT_PIECE_BYTES: usize = 1 << 20;
/// A lane for reads up to this length has little memory.
const SMALL_BYTES: usize = 64 << 10;
/// At most this many idle lanes with little memory are kept.
const SMALL_KEPT_MAX: usize = 32;
/// At most this many idle lanes with much memory are kept.
const LARGE_KEPT_MAX: usize = 8;

struct Lane {
    ring: IoUring,
    /// One run of memory for all pieces. As a huge page it is one address to the disk; small pages
    /// would be hundreds.
    memory: AlignedBuffer,
    /// Reads the kernel has not answered.
    pending: usize,
}

/// Lanes for the reads of one disk.
#[derive(Default)]
pub(super) struct Lanes {
    small: Mutex<Vec<Lane>>,
    large: Mutex<Vec<Lane>>,
    unavailable: AtomicBool,
}

/// A piece of the caller's read.
struct Piece<'a> {
    offset: u64,
    out: &'a mut [u8],
    is_lent: bool,
    /// What is there already, after a short read.
    done: usize,
}

impl Lanes {
    /// Fills `parts`, each from its offset. Returns `None` if there is no io_uring. `give_up` is
    /// asked every `step` of waiting, and ends the read with its error.
    pub(super) fn read(
        &self,
        file: BorrowedFd<'_>,
        parts: &mut [(u64, &mut [u8]); 2],
        step: Duration,
        give_up: &mut dyn FnMut() -> io::Result<()>,
    ) -> Option<io::Result<()>> {
        let is_small = |part: &[u8]| part.len() <= SMALL_BYTES || goes_in_place(part);
        let (kept, kept_max, slot_bytes) = match parts.iter().all(|(_, part)| is_small(part)) {
            true => (&self.small, SMALL_KEPT_MAX, SMALL_BYTES),
            false => (&self.large, LARGE_KEPT_MAX, PIECE_BYTES),
        };
        if self.unavailable.load(Ordering::Relaxed) {
            return None;
        }
        let found = kept.lock().pop();
        let mut lane = match found.map_or_else(|| Lane::new(slot_bytes), Ok) {
            Ok(lane) => lane,
            Err(_) => {
                self.unavailable.store(true, Ordering::Relaxed);
                return None;
            }
        };
        let result = lane.read(file, parts, step, give_up);
        // What is under way is waited for, or left to the kernel for good.
        let mut given_up = result.is_err() && give_up().is_err();
        while lane.pending > 0 && !given_up {
            given_up = lane.wait(step).is_err() || give_up().is_err();
        }
        if lane.pending > 0 {
            lent::keep();
            std::mem::forget(lane);
        } else {
            let mut kept = kept.lock();
            if kept.len() < kept_max {
                kept.push(lane);
            }
        }
        Some(result)
    }
}

impl Lane {
    fn new(slot_bytes: usize) -> io::Result<Lane> {
        let ring = IoUring::new(DEPTH as u32)?;
        if !ring.params().is_feature_ext_arg() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Lane { ring, memory: AlignedBuffer::zeroed(DEPTH * slot_bytes), pending: 0 })
    }

    fn slot_bytes(&self) -> usize {
        self.memory.len() / DEPTH
    }

    fn read(
        &mut self,
        file: BorrowedFd<'_>,
        parts: &mut [(u64, &mut [u8]); 2],
        step: Duration,
        give_up: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut under_way: [Option<Piece<'_>>; DEPTH] = std::array::from_fn(|_| None);
        let slot_bytes = self.slot_bytes();
        let mut rest = parts.iter_mut().flat_map(|(offset, out)| cut(*offset, out, slot_bytes));
        for (slot, place) in under_way.iter_mut().enumerate() {
            let Some(mut piece) = rest.next() else { break };
            self.begin(file, slot, &mut piece)?;
            *place = Some(piece);
        }
        while self.pending > 0 {
            let Some((slot, result)) = self.wait(step)? else {
                give_up()?;
                continue;
            };
            let mut piece = under_way[slot].take().expect("invariant: it was under way");
            match result {
                0 => {
                    let detail = "the file is cut short";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, detail));
                }
                count if count > 0 => piece.done += count as usize,
                error if -error == libc::EAGAIN || -error == libc::EINTR => {}
                error => return Err(io::Error::from_raw_os_error(-error)),
            }
            if piece.done < piece.out.len() {
                self.begin(file, slot, &mut piece)?;
                under_way[slot] = Some(piece);
                continue;
            }
            if !piece.is_lent {
                let length = piece.out.len();
                piece.out.copy_from_slice(&self.memory[slot * slot_bytes..][..length]);
            }
            if let Some(mut next) = rest.next() {
                self.begin(file, slot, &mut next)?;
                under_way[slot] = Some(next);
            }
        }
        Ok(())
    }

    /// Makes the kernel read the missing rest of a piece.
    fn begin(
        &mut self,
        file: BorrowedFd<'_>,
        slot: usize,
        piece: &mut Piece<'_>,
    ) -> io::Result<()> {
        let missing = piece.out.len() - piece.done;
        let target = match piece.is_lent {
            true => piece.out[piece.done..].as_mut_ptr(),
            false => {
                let start = slot * self.slot_bytes() + piece.done;
                self.memory[start..][..missing].as_mut_ptr()
            }
        };
        let entry = opcode::Read::new(Fd(file.as_raw_fd()), target, missing as u32)
            .offset(piece.offset + piece.done as u64)
            .build()
            .user_data(slot as u64);
        // SAFETY: the target lies within this lane's memory, of which nobody looks at this slot
        // before the answer has come, and which is freed only when nothing is pending; or within
        // lent memory, whose owner leaves it alone for good if the answer is not waited for. The
        // kernel holds the file itself.
        unsafe { self.ring.submission().push(&entry) }
            .map_err(|_| io::Error::other("a lane takes as many reads as it has places"))?;
        self.pending += 1;
        // At once, not with the wait for it: together they took longer.
        self.ring.submit()?;
        Ok(())
    }

    /// Waits for an answer. Returns the piece and the result, or `None` after `step`.
    fn wait(&mut self, step: Duration) -> io::Result<Option<(usize, i32)>> {
        loop {
            if let Some(answer) = self.ring.completion().next() {
                self.pending -= 1;
                return Ok(Some((answer.user_data() as usize, answer.result())));
            }
            let limit = Timespec::from(step);
            match self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit)) {
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::ETIME) => return Ok(None),
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => {}
                    _ => return Err(error),
                },
            }
        }
    }
}

/// Whether a part is read directly into the caller's memory. For a short part that costs more than
/// a copy.
fn goes_in_place(out: &[u8]) -> bool {
    out.len() > SMALL_BYTES && lent::is_lent(out)
}

/// Cuts a part into the pieces that are read at once.
fn cut(offset: u64, out: &mut [u8], slot_bytes: usize) -> impl Iterator<Item = Piece<'_>> {
    let is_lent = goes_in_place(out);
    let piece_bytes = if is_lent { LENT_PIECE_BYTES } else { slot_bytes };
    let offsets = (offset..).step_by(piece_bytes);
    let pieces = offsets.zip(out.chunks_mut(piece_bytes));
    pieces.map(move |(offset, out)| Piece { offset, out, is_lent, done: 0 })
}
