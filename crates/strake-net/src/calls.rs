//! The calls that one end of a connection has in flight, matched to their replies by number. Each
//! end numbers its own calls, so the two directions know nothing of each other.
//!
//! The number of calls in flight and their bytes are limited. A caller that begins one more waits
//! for room. A call whose time ran out keeps its place until its reply comes, because the other end
//! still works on it. So this count bounds the memory that the other end needs for us.

use crate::frame::Frame;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex};
use strake_proto::{Error, ErrorKind, Result};

/// The limits of what may be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLimits {
    /// The most calls, at least 1.
    pub calls_max: usize,
    /// The most bytes of their requests. A single request may exceed it.
    pub bytes_max: usize,
}

/// The calls of one end of a connection.
pub(crate) struct Calls {
    limits: CallLimits,
    state: Mutex<State>,
    room: Condvar,
}

#[derive(Default)]
struct State {
    in_flight: BTreeMap<u64, Entry>,
    bytes: usize,
    last: u64,
    /// Set once, when the connection ends.
    broken: Option<Error>,
}

struct Entry {
    bytes: usize,
    /// `None` if the caller does not wait any more.
    slot: Option<Arc<Slot>>,
}

/// The place where a reply arrives.
#[derive(Default)]
struct Slot {
    reply: Mutex<Option<Result<Frame>>>,
    arrived: Condvar,
}

/// A call in flight.
pub(crate) struct Call {
    number: u64,
    slot: Arc<Slot>,
}

/// The reason why a call has no reply.
#[derive(Debug)]
pub enum CallError {
    /// The connection is gone; the request may have been executed or not.
    Disconnected(Error),
    /// The connection may be fine; the call is over.
    Failed(Error),
}

impl Calls {
    pub(crate) fn new(limits: CallLimits) -> Calls {
        assert!(limits.calls_max > 0, "a call must be possible");
        Calls { limits, state: Mutex::default(), room: Condvar::new() }
    }

    /// Registers a call of `bytes`. This happens before the call is sent, so that a quick reply
    /// finds it. Waits for room, at most for `limit`.
    pub(crate) fn begin(
        &self,
        bytes: usize,
        limit: Duration,
    ) -> std::result::Result<Call, CallError> {
        let is_full = |state: &mut State| {
            let count = state.in_flight.len();
            let is_over = count >= self.limits.calls_max
                || state.bytes.saturating_add(bytes) > self.limits.bytes_max;
            state.broken.is_none() && count > 0 && is_over
        };
        let mut state = self.state.lock();
        if is_full(&mut state) {
            self.room.wait_while_for(&mut state, is_full, limit);
        }
        if let Some(error) = &state.broken {
            return Err(CallError::Disconnected(error.clone()));
        }
        if is_full(&mut state) {
            let detail = "the connection takes no more requests";
            return Err(CallError::Failed(Error::new(ErrorKind::TimedOut, detail)));
        }
        state.last += 1;
        state.bytes += bytes;
        let (number, slot) = (state.last, Arc::new(Slot::default()));
        state.in_flight.insert(number, Entry { bytes, slot: Some(Arc::clone(&slot)) });
        Ok(Call { number, slot })
    }

    /// Takes a reply. A reply to no known call is dropped. Returns whether a caller waited for it.
    pub(crate) fn deliver(&self, frame: Frame) -> bool {
        let Some(slot) = self.remove(frame.number).and_then(|entry| entry.slot) else {
            return false;
        };
        *slot.reply.lock() = Some(Ok(frame));
        slot.arrived.notify_one();
        true
    }

    fn remove(&self, number: u64) -> Option<Entry> {
        let mut state = self.state.lock();
        let entry = state.in_flight.remove(&number)?;
        state.bytes -= entry.bytes;
        self.room.notify_one();
        Some(entry)
    }

    /// Takes a call back that was never sent.
    pub(crate) fn withdraw(&self, call: &Call) {
        drop(self.remove(call.number));
    }

    /// Waits for the reply, at most for `limit`.
    pub(crate) fn wait(
        &self,
        call: &Call,
        limit: Duration,
    ) -> std::result::Result<Frame, CallError> {
        self.wait_looking(call, (limit, limit), Duration::ZERO, &|| ())
    }

    /// As [`Calls::wait`], when so much of the limit is `spent`; calls `look` once an `interval`
    /// while the reply does not come. It may end all calls.
    pub(crate) fn wait_looking(
        &self,
        call: &Call,
        (limit, interval): (Duration, Duration),
        spent: Duration,
        look: &dyn Fn(),
    ) -> std::result::Result<Frame, CallError> {
        let mut left = limit.saturating_sub(spent);
        loop {
            let step = left.min(interval);
            left -= step;
            let mut reply = call.slot.reply.lock();
            if reply.is_none() {
                call.slot.arrived.wait_while_for(&mut reply, |reply| reply.is_none(), step);
            }
            if let Some(reply) = reply.take() {
                return reply.map_err(CallError::Disconnected);
            }
            drop(reply);
            if left.is_zero() {
                return Err(self.late(call, limit));
            }
            look();
        }
    }

    /// The reply has not come within its limit.
    pub(crate) fn late(&self, call: &Call, limit: Duration) -> CallError {
        self.forsake(call);
        let detail = format!("no reply within {:.1} s", limit.as_secs_f64());
        CallError::Failed(Error::new(ErrorKind::TimedOut, detail))
    }

    /// Nobody waits for this call any more. It keeps its place until its reply comes.
    pub(crate) fn forsake(&self, call: &Call) {
        if let Some(entry) = self.state.lock().in_flight.get_mut(&call.number) {
            entry.slot = None;
        }
    }

    /// The number of the oldest call in flight.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.state.lock().in_flight.keys().next().copied()
    }

    /// The calls in flight: their number, and their bytes.
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.in_flight.len(), state.bytes)
    }

    /// How many calls are in flight.
    pub(crate) fn count(&self) -> usize {
        self.state.lock().in_flight.len()
    }

    /// Ends all calls, because the connection is gone: every call in flight and every later one
    /// gets `error`, or the error of the first who said so, which is returned.
    pub(crate) fn end(&self, error: &Error) -> Error {
        let mut state = self.state.lock();
        let error = state.broken.get_or_insert_with(|| error.clone()).clone();
        state.bytes = 0;
        for entry in std::mem::take(&mut state.in_flight).into_values() {
            if let Some(slot) = entry.slot {
                *slot.reply.lock() = Some(Err(error.clone()));
                slot.arrived.notify_one();
            }
        }
        self.room.notify_all();
        error
    }

    /// Whether [`Calls::end`] was called.
    pub(crate) fn is_broken(&self) -> bool {
        self.state.lock().broken.is_some()
    }
}

impl Call {
    /// The reply, if it has come. It is taken once.
    pub(crate) fn reply(&self) -> Option<std::result::Result<Frame, CallError>> {
        Some(self.slot.reply.lock().take()?.map_err(CallError::Disconnected))
    }

    /// The number that its request carries and its reply echoes.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_proto::ErrorKind;

    #[test]
    fn the_first_reason_counts_for_all_who_end_the_calls_later() {
        let calls = Calls::new(CallLimits { calls_max: 1, bytes_max: 1 });
        let error = |detail: &str| Error::new(ErrorKind::Unreachable, detail.to_owned());
        assert!(calls.end(&error("too many requests")).to_string().contains("too many requests"));
        assert!(calls.end(&error("broken pipe")).to_string().contains("too many requests"));
        let Err(CallError::Disconnected(error)) = calls.begin(1, Duration::ZERO) else {
            panic!("there are no calls any more");
        };
        assert!(error.to_string().contains("too many requests"));
    }
}
