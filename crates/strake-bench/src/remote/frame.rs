//! Frames: how messages travel once both sides share a key.
//!
//! ```text
//!  0  magic "SKB1"                                  4 bytes
//!  4  length n of the body, u32 little-endian       4 bytes, at most 16 MiB
//!  8  body, JSON                                    n bytes
//!  8+n  HMAC-SHA256(key, direction ‖ sequence ‖ magic ‖ length ‖ body)   32 bytes
//! ```
//!
//! `direction` is 0 from the caller and 1 from the agent, `sequence` counts the frames of a
//! direction from 0 (u64 little-endian). Both are known, not sent: a frame that was replayed,
//! reflected, reordered or left out has a wrong MAC, and the connection ends.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::secret::{Key, TAG_BYTES};
use crate::error::{BenchError, Result};

const MAGIC: &[u8; 4] = b"SKB1";
/// An outcome of 1,000 tasks with their histograms stays below this.
const BODY_BYTES_MAX: usize = 16 << 20;

/// A stream that can be asked whether something waits to be read.
pub trait Transport: Read + Write + AsFd {}
impl<S: Read + Write + AsFd> Transport for S {}

/// One side of a connection.
pub struct Channel<S> {
    stream: S,
    key: Key,
    /// 0 for the caller, 1 for the agent.
    direction: u8,
    sent: u64,
    received: u64,
}

impl<S: Transport> Channel<S> {
    /// The side of whoever called.
    pub fn caller(stream: S, key: Key) -> Self {
        Channel::new(stream, key, 0)
    }

    /// The side of whoever was called.
    pub fn agent(stream: S, key: Key) -> Self {
        Channel::new(stream, key, 1)
    }

    fn new(stream: S, key: Key, direction: u8) -> Self {
        Channel { stream, key, direction, sent: 0, received: 0 }
    }

    /// The stream.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// The stream itself, for what follows the last frame.
    pub fn into_stream(self) -> S {
        self.stream
    }

    /// Sends a message.
    pub fn send<T: Serialize>(&mut self, message: &T) -> Result<()> {
        let body = serde_json::to_vec(message)
            .map_err(|error| BenchError::Protocol(format!("a message without JSON: {error}")))?;
        if body.len() > BODY_BYTES_MAX {
            return Err(BenchError::Protocol(format!("a message of {} bytes", body.len())));
        }
        let mut frame = Vec::with_capacity(8 + body.len() + TAG_BYTES);
        frame.extend_from_slice(MAGIC);
        frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
        frame.extend_from_slice(&body);
        let sequence = self.sent.to_le_bytes();
        let tag = self.key.tag(&[&[self.direction], &sequence, &frame]);
        frame.extend_from_slice(&tag);
        self.sent += 1;
        self.stream
            .write_all(&frame)
            .and_then(|()| self.stream.flush())
            .map_err(|error| BenchError::system("the connection broke", error))
    }

    /// Receives the next message; waits for it as long as the stream's own timeout allows.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut head = [0; 8];
        self.read_exact(&mut head)?;
        if head[..4] != MAGIC[..] {
            return Err(BenchError::Protocol("no frame begins here".into()));
        }
        let length = <[u8; 4]>::try_from(&head[4..]).expect("invariant: four bytes");
        let length = u32::from_le_bytes(length) as usize;
        if length > BODY_BYTES_MAX {
            return Err(BenchError::Protocol(format!("a frame of {length} bytes")));
        }
        // Read in steps: memory follows what was really sent, not what a header claims.
        let mut body = Vec::new();
        while body.len() < length {
            let step = (length - body.len()).min(64 << 10);
            let start = body.len();
            body.resize(start + step, 0);
            self.read_exact(&mut body[start..])?;
        }
        let mut tag = [0; TAG_BYTES];
        self.read_exact(&mut tag)?;
        let sequence = self.received.to_le_bytes();
        let parts: [&[u8]; 4] = [&[1 - self.direction], &sequence, &head, &body];
        if !self.key.is_tag(&parts, &tag) {
            return Err(BenchError::Protocol("a frame that the peer did not make".into()));
        }
        self.received += 1;
        serde_json::from_slice(&body)
            .map_err(|error| BenchError::Protocol(format!("a message not understood: {error}")))
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.stream.read_exact(buffer).map_err(|error| {
            let doing = match error.kind() {
                ErrorKind::UnexpectedEof => "the peer closed the connection",
                ErrorKind::WouldBlock | ErrorKind::TimedOut => "the peer does not answer",
                _ => "the connection broke",
            };
            BenchError::system(doing, error)
        })
    }

    /// True if a message (or the end of the connection) waits; waits for that up to `patience`.
    pub fn is_readable(&self, patience: Duration) -> Result<bool> {
        let mut set = [PollFd::new(&self.stream, PollFlags::IN)];
        let patience = Timespec::try_from(patience).expect("invariant: patience is short");
        match rustix::event::poll(&mut set, Some(&patience)) {
            Ok(count) => Ok(count > 0),
            // A signal arrived; whoever asked looks at the stop flag next.
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(BenchError::system("cannot wait for a connection", error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::pattern::Dice;

    fn pair() -> (Channel<UnixStream>, Channel<UnixStream>) {
        let (near, far) = UnixStream::pair().unwrap();
        let key = Key::of_child();
        (Channel::caller(near, key.clone()), Channel::agent(far, key))
    }

    #[test]
    fn messages_arrive_in_order_and_both_ways() {
        let (mut caller, mut agent) = pair();
        for round in 0..5u64 {
            assert!(!agent.is_readable(Duration::ZERO).unwrap());
            caller.send(&round).unwrap();
            caller.send(&"x".repeat(100_000)).unwrap();
            assert!(agent.is_readable(Duration::ZERO).unwrap());
            assert_eq!(agent.receive::<u64>().unwrap(), round);
            assert_eq!(agent.receive::<String>().unwrap().len(), 100_000);
            agent.send(&(round + 1)).unwrap();
            assert_eq!(caller.receive::<u64>().unwrap(), round + 1);
        }
    }

    /// The bytes of one frame; they change only with `VERSION`.
    #[test]
    fn golden_frame() {
        let (near, mut far) = UnixStream::pair().unwrap();
        Channel::caller(near, Key::of_child()).send(&"hi").unwrap();
        let mut frame = Vec::new();
        far.read_to_end(&mut frame).unwrap();
        assert_eq!(frame[..12], *b"SKB1\x04\0\0\0\"hi\"");
        let tag: String = frame[12..].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(tag, GOLDEN_TAG);
    }

    const GOLDEN_TAG: &str = "6a961c16c8d47ac80aa9f6df76a737a55f20f7cd0cb8a3680ee33505e69572c1";

    #[test]
    fn changed_cut_and_invented_frames_are_refused() {
        let (near, mut far) = UnixStream::pair().unwrap();
        Channel::caller(near, Key::of_child()).send(&vec![7u32; 50]).unwrap();
        let mut good = Vec::new();
        far.read_to_end(&mut good).unwrap();
        let receive = |bytes: &[u8]| {
            let (mut near, far) = UnixStream::pair().unwrap();
            near.write_all(bytes).unwrap();
            drop(near);
            Channel::agent(far, Key::of_child()).receive::<Vec<u32>>()
        };
        assert_eq!(receive(&good).unwrap(), vec![7; 50]);
        for seed in 0..2_000 {
            let mut dice = Dice::new(seed);
            let mut bad = good.clone();
            match dice.below(3) {
                0 => bad.truncate(dice.below(good.len() as u64) as usize),
                1 => bad[dice.below(good.len() as u64) as usize] ^= 1 << dice.below(8),
                _ => bad = (0..dice.below(300)).map(|_| dice.roll() as u8).collect(),
            }
            assert!(receive(&bad).is_err(), "seed {seed}");
        }
    }

    #[test]
    fn replayed_and_reflected_frames_are_refused() {
        let (near, mut far) = UnixStream::pair().unwrap();
        Channel::caller(near, Key::of_child()).send(&1u8).unwrap();
        let mut frame = Vec::new();
        far.read_to_end(&mut frame).unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(&frame.repeat(2)).unwrap();
        let mut agent = Channel::agent(far, Key::of_child());
        assert_eq!(agent.receive::<u8>().unwrap(), 1);
        assert!(matches!(agent.receive::<u8>(), Err(BenchError::Protocol(_))));
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(&frame).unwrap();
        let mut caller = Channel::caller(far, Key::of_child());
        assert!(matches!(caller.receive::<u8>(), Err(BenchError::Protocol(_))));
    }
}
