//! Channels on the seam's own locks, so that the scheduler knows who waits for a message.

use super::lock::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};
use std::time::Duration;

struct State<T> {
    messages: VecDeque<T>,
    /// So many messages may wait; `None` for any number.
    room: Option<usize>,
    senders: usize,
    has_receiver: bool,
}

struct Inner<T> {
    state: Mutex<State<T>>,
    came: Condvar,
    left: Condvar,
}

impl<T> Inner<T> {
    fn new(room: Option<usize>) -> Arc<Inner<T>> {
        let state = State { messages: VecDeque::new(), room, senders: 1, has_receiver: true };
        Arc::new(Inner { state: Mutex::new(state), came: Condvar::new(), left: Condvar::new() })
    }

    fn begin(self: &Arc<Inner<T>>) -> Arc<Inner<T>> {
        self.state.lock().senders += 1;
        Arc::clone(self)
    }

    fn end(&self) {
        self.state.lock().senders -= 1;
        self.came.notify_all();
    }

    fn send(&self, message: T) -> Result<(), SendError<T>> {
        let mut state = self.state.lock();
        while state.has_receiver && state.room.is_some_and(|room| state.messages.len() >= room) {
            self.left.wait(&mut state);
        }
        if !state.has_receiver {
            return Err(SendError(message));
        }
        state.messages.push_back(message);
        drop(state);
        self.came.notify_one();
        Ok(())
    }
}

/// The sending end, as [`std::sync::mpsc::Sender`].
pub struct Sender<T>(Arc<Inner<T>>);

impl<T> Sender<T> {
    /// Sends; never waits.
    ///
    /// # Errors
    /// When the receiver is gone.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        self.0.send(message)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        Sender(self.0.begin())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The sending end of a bounded channel, as [`std::sync::mpsc::SyncSender`].
pub struct SyncSender<T>(Arc<Inner<T>>);

impl<T> SyncSender<T> {
    /// Sends; waits for room.
    ///
    /// # Errors
    /// When the receiver is gone.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        self.0.send(message)
    }

    /// Sends if there is room.
    ///
    /// # Errors
    /// When there is none, or the receiver is gone.
    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        let mut state = self.0.state.lock();
        if !state.has_receiver {
            return Err(TrySendError::Disconnected(message));
        }
        if state.room.is_some_and(|room| state.messages.len() >= room) {
            return Err(TrySendError::Full(message));
        }
        state.messages.push_back(message);
        drop(state);
        self.0.came.notify_one();
        Ok(())
    }
}

impl<T> Clone for SyncSender<T> {
    fn clone(&self) -> SyncSender<T> {
        SyncSender(self.0.begin())
    }
}

impl<T> Drop for SyncSender<T> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The receiving end, as [`std::sync::mpsc::Receiver`].
pub struct Receiver<T>(Arc<Inner<T>>);

impl<T> Receiver<T> {
    /// The next message; waits for one.
    ///
    /// # Errors
    /// When there is none and all senders are gone.
    pub fn recv(&self) -> Result<T, RecvError> {
        let mut state = self.0.state.lock();
        while state.messages.is_empty() && state.senders > 0 {
            self.0.came.wait(&mut state);
        }
        let message = state.messages.pop_front();
        drop(state);
        self.0.left.notify_one();
        message.ok_or(RecvError)
    }

    /// The next message, if one comes within `limit`.
    ///
    /// # Errors
    /// When none came, or all senders are gone.
    pub fn recv_timeout(&self, limit: Duration) -> Result<T, RecvTimeoutError> {
        let mut state = self.0.state.lock();
        let waits = |state: &mut State<T>| state.messages.is_empty() && state.senders > 0;
        let timed_out = self.0.came.wait_while_for(&mut state, waits, limit).timed_out();
        let message = state.messages.pop_front();
        drop(state);
        self.0.left.notify_one();
        message.ok_or(match timed_out {
            true => RecvTimeoutError::Timeout,
            false => RecvTimeoutError::Disconnected,
        })
    }

    /// The next message, if there is one.
    ///
    /// # Errors
    /// When there is none.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut state = self.0.state.lock();
        let message = state.messages.pop_front();
        let senders = state.senders;
        drop(state);
        self.0.left.notify_one();
        message.ok_or(if senders > 0 { TryRecvError::Empty } else { TryRecvError::Disconnected })
    }

    /// All messages, until all senders are gone.
    pub fn iter(&self) -> Iter<'_, T> {
        Iter(self)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.has_receiver = false;
        let messages = std::mem::take(&mut state.messages);
        drop(state);
        drop(messages);
        self.0.left.notify_all();
    }
}

/// The messages of a channel, as [`std::sync::mpsc::Iter`].
pub struct Iter<'a, T>(&'a Receiver<T>);

impl<T> Iterator for Iter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.recv().ok()
    }
}

impl<'a, T> IntoIterator for &'a Receiver<T> {
    type Item = T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

/// A channel of any number of messages.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let inner = Inner::new(None);
    (Sender(Arc::clone(&inner)), Receiver(inner))
}

/// A channel in which at most `room` messages wait.
///
/// # Panics
/// If `room` is 0: a sender that waits for its receiver is not simulated.
pub fn sync_channel<T>(room: usize) -> (SyncSender<T>, Receiver<T>) {
    assert!(room > 0, "channels without room are not simulated");
    let inner = Inner::new(Some(room));
    (SyncSender(Arc::clone(&inner)), Receiver(inner))
}
