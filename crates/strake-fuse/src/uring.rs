//! FUSE over io_uring. Requests arrive in memory that is shared with the kernel, on the processor
//! where they were made. One system call hands over a reply and fetches the next request.
//!
//! The kernel has a queue for each processor. It puts a request into any entry of that queue that
//! waits. Here every thread owns one entry, with a ring of its own, and is pinned to the queue's
//! processor. A thread that blocks in a request holds up no other: its entry does not wait, so the
//! kernel chooses another one. The kernel uses first the entry that became free last, so one thread
//! with warm caches serves a single program.
//!
//! FORGET and INTERRUPT still come through `/dev/fuse`; see [`crate::session`].
//!
//! ```text
//! head   0    fuse_in_header, then fuse_out_header        128 bytes
//!        128  the operation's own struct                  128 bytes
//!        256  sizes and the request's id (RingInOut)      32 bytes
//!        1024 two iovecs that name head and payload       32 bytes, read at registration
//! body   ..   the operation's own struct is put before the payload, so that both are one piece
//!        4096 payload                                     1 MiB
//! ```
//! Source: `linux/fuse.h` 7.42 and later (`fuse_uring_req_header`, `fuse_uring_cmd_req`).
#![allow(unsafe_code, reason = "the kernel writes to memory that it was told of")]

use crate::abi::{InHeader, OutHeader, RingCommand, RingInOut};
use crate::adapter::Answer;
use crate::overdue::Slot;
use crate::session::{Server, TRANSFER_BYTES_MAX};
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use std::ops::Range;
use strake_env::AlignedBuffer;
use strake_proto::{Error, Result};
use tracing::warn;

/// The command that makes an entry known and waits for its first request.
const COMMAND_REGISTER: u32 = 1;
/// The command that hands over a reply and waits for the next request.
const COMMAND_COMMIT_AND_FETCH: u32 = 2;

const HEAD_BYTES: usize = 4096;
const OPERATION: Range<usize> = 128..256;
const IN_OUT: Range<usize> = 256..288;
const IOVECS: Range<usize> = 1024..1056;
/// The offset of the payload in the body. The operation's own struct ends here.
const PAYLOAD: usize = 4096;
/// Offset of `len` in `struct io_uring_sqe`.
const SQE_LEN: usize = 24;

const _: () = assert!(size_of::<Entry128>() == 128, "an entry is what the kernel reads");

/// One entry of a queue, with the ring through which it goes to the kernel and back.
pub(crate) struct Entry {
    processor: u16,
    ring: IoUring<Entry128, cqueue::Entry>,
    head: AlignedBuffer,
    body: AlignedBuffer,
}

/// The outcome of a wait for a request.
enum Woken {
    Request,
    /// The kernel did not want the reply any more. It does not know the entry now.
    Unregistered,
    End,
}

/// Makes `each` entries for every processor. The kernel does not know them yet.
///
/// # Errors
/// The host's errors, if rings cannot be made.
pub(crate) fn entries(each: usize) -> Result<Vec<Entry>> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let mut entries = Vec::new();
    for processor in 0..processors(&text) {
        for _ in 0..each {
            entries.push(Entry::new(processor)?);
        }
    }
    Ok(entries)
}

/// The number of queues that the kernel has, from its list of possible processors: `0-3` are four.
fn processors(list: &str) -> u16 {
    let last = list.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<u16>().ok());
    last.map_or(1, |last| last.saturating_add(1))
}

impl Entry {
    fn new(processor: u16) -> Result<Entry> {
        let ring = IoUring::builder().build(2).map_err(Error::from)?;
        let mut entry = Entry {
            processor,
            ring,
            head: AlignedBuffer::zeroed(HEAD_BYTES),
            body: AlignedBuffer::zeroed(PAYLOAD + TRANSFER_BYTES_MAX),
        };
        let named = [
            (entry.head.as_ptr() as usize, IOVECS.start),
            (entry.body[PAYLOAD..].as_ptr() as usize, TRANSFER_BYTES_MAX),
        ];
        let words = named.into_iter().flat_map(|(start, length)| [start, length]);
        for (place, word) in entry.head[IOVECS].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&(word as u64).to_ne_bytes());
        }
        Ok(entry)
    }

    /// Serves until the mount is gone.
    pub(crate) fn serve(mut self, server: &Server, connection: &OwnedFd) {
        let mut processors = rustix::thread::CpuSet::new();
        processors.set(usize::from(self.processor));
        // This fails if the processor is off or not available to us. The queue must be served all
        // the same.
        let _ = rustix::thread::sched_setaffinity(None, &processors);
        let slot = server.slot();
        let mut next = self.command(connection, COMMAND_REGISTER, 0);
        loop {
            match self.exchange(&next) {
                Ok(Woken::Request) => {
                    let id = self.answer(server, &slot);
                    next = self.command(connection, COMMAND_COMMIT_AND_FETCH, id);
                }
                Ok(Woken::Unregistered) => next = self.command(connection, COMMAND_REGISTER, 0),
                Ok(Woken::End) => return,
                Err(error) => {
                    warn!(target: "fuse", "a ring of processor {} is lost: {error}", self.processor);
                    return;
                }
            }
        }
    }

    fn command(&self, connection: &OwnedFd, operation: u32, commit_id: u64) -> Entry128 {
        let queue = self.processor;
        let mut entry = opcode::UringCmd80::new(types::Fd(connection.as_raw_fd()), operation)
            .cmd(RingCommand { commit_id, queue }.encode())
            .addr(Some(self.head[IOVECS].as_ptr() as u64))
            .build();
        // SAFETY: `Entry128` is the 128 bytes of `struct io_uring_sqe` as the kernel reads them
        // (asserted above); `len` is 4 bytes at this offset, and any value is a valid one.
        unsafe { (&raw mut entry).cast::<u8>().add(SQE_LEN).cast::<u32>().write_unaligned(2) };
        entry
    }

    /// Hands a command over and waits until the kernel has put a request into the entry.
    fn exchange(&mut self, command: &Entry128) -> std::io::Result<Woken> {
        // SAFETY: the command names `head` and `body`, which live as long as the ring. Nobody else
        // touches them until the completion is here, because `self` is borrowed exclusively.
        unsafe { self.ring.submission().push(command) }.map_err(std::io::Error::other)?;
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
                Err(error) => return Err(error),
            }
            let Some(completion) = self.ring.completion().next() else { continue };
            if completion.result() >= 0 {
                return Ok(Woken::Request);
            }
            return match Errno::from_raw_os_error(-completion.result()) {
                Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED | Errno::NODEV => {
                    Ok(Woken::End)
                }
                Errno::NOENT => Ok(Woken::Unregistered),
                error => Err(error.into()),
            };
        }
    }

    /// Has the request in the entry answered, puts the reply there, and returns the request's id.
    fn answer(&mut self, server: &Server, slot: &Slot) -> u64 {
        let header = InHeader::decode(&self.head).expect("invariant: the head is long enough");
        let sizes = RingInOut::decode(&self.head[IN_OUT]).expect("invariant: as long");
        let payload = (sizes.payload_size as usize).min(TRANSFER_BYTES_MAX);
        let own =
            (header.len as usize).saturating_sub(InHeader::SIZE + payload).min(OPERATION.len());
        let start = PAYLOAD - own;
        self.body[start..PAYLOAD].copy_from_slice(&self.head[OPERATION][..own]);
        let (request, data) = self.body.split_at_mut(PAYLOAD + payload);
        let (error, length) = match server.serve(slot, &header, &request[start..], data) {
            Ok(Answer::Silence | Answer::Empty) => (0, 0),
            Ok(Answer::Bytes(reply)) => {
                self.body[PAYLOAD..][..reply.len()].copy_from_slice(&reply);
                (0, reply.len())
            }
            Ok(Answer::Data(length)) => {
                let data = PAYLOAD + payload;
                if payload > 0 {
                    self.body.copy_within(data..data + length, PAYLOAD);
                }
                (0, length)
            }
            Ok(Answer::Written(size)) => {
                let reply = crate::abi::WriteOut { size }.encode();
                self.body[PAYLOAD..][..reply.len()].copy_from_slice(&reply);
                (0, reply.len())
            }
            Err(errno) => (-errno, 0),
        };
        let reply =
            OutHeader { len: (OutHeader::SIZE + length) as u32, error, unique: header.unique };
        self.head[..OutHeader::SIZE].copy_from_slice(&reply.encode());
        let sizes = RingInOut { commit_id: sizes.commit_id, payload_size: length as u32 };
        self.head[IN_OUT].copy_from_slice(&sizes.encode());
        sizes.commit_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_possible_processor_has_a_queue() {
        assert_eq!(processors("0-1\n"), 2);
        assert_eq!(processors("0"), 1);
        assert_eq!(processors("0-3,8-11"), 12);
        assert_eq!(processors(""), 1);
    }

    #[test]
    fn a_command_is_laid_out_as_the_kernel_reads_it() {
        let file = std::fs::File::open("/dev/null").expect("there");
        let descriptor = OwnedFd::from(file);
        let entry = Entry::new(3).expect("rings can be made");
        let command = entry.command(&descriptor, COMMAND_COMMIT_AND_FETCH, 0x0102_0304_0506_0708);
        // SAFETY: 128 initialised bytes (asserted above) of a value that lives here.
        let bytes = unsafe { *(&raw const command).cast::<[u8; 128]>() };
        let word = |at: usize| u64::from_ne_bytes(*bytes[at..].first_chunk().expect("inside"));
        let half = |at: usize| u32::from_ne_bytes(*bytes[at..].first_chunk().expect("inside"));
        assert_eq!(bytes[0], 46, "IORING_OP_URING_CMD");
        assert_eq!(half(4), descriptor.as_raw_fd() as u32);
        assert_eq!((half(8), half(24)), (COMMAND_COMMIT_AND_FETCH, 2));
        assert_eq!(word(16), entry.head[IOVECS].as_ptr() as u64);
        assert_eq!((word(56), word(64) & 0xffff), (0x0102_0304_0506_0708, 3));
        let iovecs: Vec<u64> = entry.head[IOVECS]
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(*word.first_chunk().expect("eight")))
            .collect();
        let payload = entry.body[PAYLOAD..].as_ptr() as u64;
        assert_eq!(iovecs, [entry.head.as_ptr() as u64, 1024, payload, TRANSFER_BYTES_MAX as u64]);
        assert_eq!(payload % 4096, 0);
    }
}
