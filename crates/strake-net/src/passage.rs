//! Connections that a node passes on to another one, for a client that does not reach it
//! ([`crate::detour`]). Bytes go as they come, in both directions, until an end closes, or until
//! nothing has come for [`IDLE_MAX`]. A client gets its seat before it is welcomed, so that one
//! without a seat asks another node.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;
use strake_env::stream::Stream;
use strake_proto::{Error, ErrorKind, Result};

/// At most so many at a time. Each takes two threads and as many buffers.
const PASSAGES_MAX: usize = 64;
/// A client that needs the connection again makes another one.
const IDLE_MAX: Duration = Duration::from_secs(60);
const BUFFER_BYTES: usize = 64 << 10;

/// Counts the seats that are taken: one for each copy besides the first.
#[derive(Default)]
pub(crate) struct Seats(Arc<()>);

/// Room for one connection, until it is dropped.
pub(crate) struct Seat {
    _taken: Arc<()>,
}

impl Seats {
    /// Takes a seat.
    ///
    /// # Errors
    /// `Busy` if none is left.
    pub(crate) fn take(&self) -> Result<Seat> {
        let taken = Arc::clone(&self.0);
        if Arc::strong_count(&taken) > PASSAGES_MAX + 1 {
            let detail = "as many connections are passed on here as may be";
            return Err(Error::new(ErrorKind::Busy, detail));
        }
        Ok(Seat { _taken: taken })
    }
}

/// The connections that are passed on, to end them with.
#[derive(Default)]
pub(crate) struct Passages(BTreeMap<u64, [Stream; 2]>);

impl Passages {
    pub(crate) fn add(&mut self, id: u64, ends: [Stream; 2]) {
        self.0.insert(id, ends);
    }

    pub(crate) fn remove(&mut self, id: u64) {
        self.0.remove(&id);
    }

    /// Ends all of them.
    pub(crate) fn shutdown(&self) {
        self.0.values().flatten().for_each(Stream::shutdown);
    }
}

/// Prepares an end. `limit` is for a write that makes no progress.
pub(crate) fn prepare(end: &Stream, limit: Duration) -> Result<()> {
    Ok(end.set_limits(Some(IDLE_MAX), Some(limit))?)
}

/// Passes on what comes from one end, until an end has closed. Then both have.
pub(crate) fn pass(mut from: Stream, mut to: Stream) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) if to.write_all(&buffer[..count]).is_ok() => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    from.shutdown();
    to.shutdown();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_bounded_and_come_back() {
        let seats = Seats::default();
        let mut taken: Vec<Seat> = (0..PASSAGES_MAX).filter_map(|_| seats.take().ok()).collect();
        assert_eq!(taken.len(), PASSAGES_MAX);
        assert_eq!(seats.take().err().expect("full").kind(), ErrorKind::Busy);
        taken.pop();
        assert!(seats.take().is_ok());
    }
}
