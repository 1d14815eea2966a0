//! Pings: once a second each node to which this process has sessions is asked whether it is there.
//!
//! A ping is a frame of its own kind without contents, which a client sends. The server's thread
//! that reads the connection answers it at once, past the queue of requests: so the round trip is
//! that of the network and of a thread that wakes up, and no disk has a part in it. The answer says
//! how many packets the server has sent to that node, and how many of them again. So each end knows
//! of losses in both directions.
//!
//! [`strake_env::links`] counts what comes of it. One thread sends all pings. It never waits for a
//! peer, so a silent one holds up nobody.

use crate::frame::PONG_BYTES;
use std::sync::Arc;
use strake_env::links::{Links, PERIOD};
use strake_env::sync::{Condvar, Mutex};
use strake_env::thread::{Builder, JoinHandle};
use strake_proto::Result;

/// The message of an answer: packets sent, and sent again.
pub(crate) fn pong((packets, again): (u64, u64)) -> [u8; PONG_BYTES] {
    let mut message = [0; PONG_BYTES];
    message[..8].copy_from_slice(&packets.to_le_bytes());
    message[8..].copy_from_slice(&again.to_le_bytes());
    message
}

/// The meaning of an answer. One that is too short says that nothing was sent.
pub(crate) fn theirs(message: &[u8]) -> (u64, u64) {
    let word = |at: usize| {
        let bytes = message.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    (word(0), word(8))
}

/// The thread that sends pings, until this is dropped.
pub struct Pings {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    links: Arc<Links>,
    has_ended: Mutex<bool>,
    changed: Condvar,
}

impl Pings {
    /// Sends pings to all peers of `links` from now on.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(links: &Arc<Links>) -> Result<Pings> {
        let (links, changed) = (Arc::clone(links), Condvar::new());
        let shared = Arc::new(Shared { links, has_ended: Mutex::default(), changed });
        let of_thread = Arc::clone(&shared);
        let thread = Builder::new().name("pings".into()).spawn(move || of_thread.run())?;
        Ok(Pings { shared, thread: Some(thread) })
    }
}

impl Shared {
    fn run(&self) {
        let mut has_ended = self.has_ended.lock();
        while !*has_ended {
            drop(has_ended);
            self.links.tick();
            has_ended = self.has_ended.lock();
            self.changed.wait_while_for(&mut has_ended, |ended| !*ended, PERIOD);
        }
    }
}

impl Drop for Pings {
    fn drop(&mut self) {
        *self.shared.has_ended.lock() = true;
        self.shared.changed.notify_all();
        // A panic ends the process, and was printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
#[path = "ping_test.rs"]
mod ping_test;
