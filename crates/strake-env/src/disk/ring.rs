//! Reads that the calling thread can give up, through io_uring: neither a change of threads nor a
//! thread that is stuck in the kernel.
//!
//! A [`Lane`] is a ring with buffers of its own, in use by one caller at a time. What the kernel
//! reads into belongs to the lane, never to the caller, so that a caller who has waited long enough
//! can leave: the lane is then leaked as a whole, and with it whatever the disk may yet write.
//!
//! Where the system has no io_uring (old, or forbidden to this process) there are no lanes, and
//! the guard's threads serve.
#![allow(unsafe_code, reason = "the kernel is told where to put bytes; this is the one place")]

use crate::AlignedBuffer;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Reads of one lane that are under way, each with its buffer.
const DEPTH: usize = 2;
/// What is longer is read in pieces of this size: one is copied while the next is on its way.
pub(super) const PIECE_BYTES: usize = 1 << 20;
/// Lanes for reads up to this length have small buffers.
const SMALL_BYTES: usize = 64 << 10;
/// Idle lanes that are kept: of small buffers, of large ones.
const SMALL_KEPT_MAX: usize = 16;
const LARGE_KEPT_MAX: usize = 4;

struct Lane {
    ring: IoUring,
    buffers: [AlignedBuffer; DEPTH],
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
    slot: usize,
    /// What is there already, after a short read.
    done: usize,
}

impl Lanes {
    /// Fills `parts` from `offset`, one behind the other; `None` where there is no io_uring.
    /// `give_up` is asked every `step` of waiting, and ends the read with its error.
    pub(super) fn read(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        parts: [&mut [u8]; 2],
        step: Duration,
        give_up: &mut dyn FnMut() -> io::Result<()>,
    ) -> Option<io::Result<()>> {
        let (kept, kept_max, capacity) = match parts.iter().all(|part| part.len() <= SMALL_BYTES) {
            true => (&self.small, SMALL_KEPT_MAX, SMALL_BYTES),
            false => (&self.large, LARGE_KEPT_MAX, PIECE_BYTES),
        };
        if self.unavailable.load(Ordering::Relaxed) {
            return None;
        }
        let found = kept.lock().pop();
        let mut lane = match found.map_or_else(|| Lane::new(capacity), Ok) {
            Ok(lane) => lane,
            Err(_) => {
                self.unavailable.store(true, Ordering::Relaxed);
                return None;
            }
        };
        let result = lane.read(file, offset, parts, step, give_up);
        // What is under way is waited for, or left to the kernel for good.
        let mut given_up = result.is_err() && give_up().is_err();
        while lane.pending > 0 && !given_up {
            given_up = lane.wait(step).is_err() || give_up().is_err();
        }
        if lane.pending > 0 {
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
    fn new(capacity: usize) -> io::Result<Lane> {
        let ring = IoUring::new(DEPTH as u32)?;
        if !ring.params().is_feature_ext_arg() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let buffers = std::array::from_fn(|_| AlignedBuffer::zeroed(capacity));
        Ok(Lane { ring, buffers, pending: 0 })
    }

    fn read(
        &mut self,
        file: BorrowedFd<'_>,
        mut offset: u64,
        [first, second]: [&mut [u8]; 2],
        step: Duration,
        give_up: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut under_way: [Option<Piece<'_>>; DEPTH] = std::array::from_fn(|_| None);
        let pieces = first.chunks_mut(PIECE_BYTES).chain(second.chunks_mut(PIECE_BYTES));
        let mut rest = pieces.map(|out| {
            let at = offset;
            offset += out.len() as u64;
            (at, out)
        });
        for (slot, place) in under_way.iter_mut().enumerate() {
            let Some((offset, out)) = rest.next() else { break };
            let piece = Piece { offset, out, slot, done: 0 };
            self.begin(file, &piece)?;
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
                self.begin(file, &piece)?;
                under_way[slot] = Some(piece);
                continue;
            }
            piece.out.copy_from_slice(&self.buffers[slot][..piece.out.len()]);
            if let Some((offset, out)) = rest.next() {
                let next = Piece { offset, out, slot, done: 0 };
                self.begin(file, &next)?;
                under_way[slot] = Some(next);
            }
        }
        Ok(())
    }

    /// Has the kernel read what is missing of a piece.
    fn begin(&mut self, file: BorrowedFd<'_>, piece: &Piece<'_>) -> io::Result<()> {
        let missing = piece.out.len() - piece.done;
        let target = self.buffers[piece.slot][piece.done..][..missing].as_mut_ptr();
        let entry = opcode::Read::new(Fd(file.as_raw_fd()), target, missing as u32)
            .offset(piece.offset + piece.done as u64)
            .build()
            .user_data(piece.slot as u64);
        // SAFETY: the target lies within a buffer of this lane, which nobody looks at before the
        // answer has come, and which is freed only when nothing is pending. The kernel holds the
        // file itself.
        unsafe { self.ring.submission().push(&entry) }
            .map_err(|_| io::Error::other("a lane takes as many reads as it has buffers"))?;
        self.ring.submit()?;
        self.pending += 1;
        Ok(())
    }

    /// Waits for an answer: whose, and what; `None` after `step`.
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
